"""Compiled models: against the oracle, memory planning, model files, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import arena
from tilewright.compiled import Array, ModelError, Port
from tilewright.compiler import Choice, MissError, compile_graph
from tilewright.frames import Binding
from tilewright.graph import ops
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload
from tilewright.measure.inputs import NORMAL, generate
from tilewright.runtime import load, random_input
from tilewright.schedules.steps import parse
from tilewright.schedules.target import Target
from tilewright.tasks import extract

TARGET = Target.host(threads=2)


def small_model() -> Graph:
    """Convolution, activation, residual, pool, view, product, softmax; one output is an intermediate, one an input."""
    rng = np.random.default_rng(0)
    g = Graph()
    x = g.input("x", (1, 4, 9, 11))
    w = g.constant(rng.standard_normal((8, 4, 3, 3)).astype(np.float32) / 6, "w")
    v = g.constant(rng.standard_normal((8 * 5 * 6, 7)).astype(np.float32) / 16, "v")
    y = ops.relu(ops.conv(x, w, None, strides=(1, 1), pads=(1, 1, 1, 1)))
    z = ops.add(ops.conv(y, g.constant(rng.standard_normal((8, 8, 1, 1)).astype(np.float32) / 3)), y)
    p = ops.max_pool(z, ops.Window((2, 2), (2, 2), pads=(1, 1, 1, 1)))
    flat = g.view(p, (1, 8 * 5 * 6))
    g.output(ops.softmax(ops.matmul(flat, v), -1), "probabilities")
    g.output(y, "features")
    g.output(x, "echo")
    return g


def test_model_equals_oracle() -> None:
    """All outputs, also one that is an input and one that is read again, on several calls."""
    g = small_model()
    model = compile_graph(g, TARGET)
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = rng.standard_normal((1, 4, 9, 11)).astype(np.float32)
        for got, want in zip(model(x), evaluate(g, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want.astype(np.float64), rtol=1e-4, atol=1e-5)


def test_outputs_are_fresh() -> None:
    """A later call does not change what an earlier one returned."""
    model = compile_graph(small_model(), TARGET)
    x = np.ones((1, 4, 9, 11), np.float32)
    first = model(x)[0]
    kept = first.copy()
    model(np.zeros_like(x))
    np.testing.assert_array_equal(first, kept)


def test_file_round_trip(tmp_path: Path) -> None:
    """A saved model gives the same outputs, bit by bit."""
    model = compile_graph(small_model(), TARGET)
    path = tmp_path / "m.tw"
    model.save(path)
    again = load(path)
    x = np.random.default_rng(2).standard_normal((1, 4, 9, 11)).astype(np.float32)
    for a, b in zip(model(x), again(x), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.compiled.kernels == model.compiled.kernels
    assert [p.name for p in tmp_path.iterdir()] == ["m.tw"]


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "missing"])
def test_damaged_file(tmp_path: Path, damage: str) -> None:
    """A file that is no model is refused in one line."""
    path = tmp_path / "m.tw"
    compile_graph(small_model(), TARGET).save(path)
    whole = path.read_bytes()
    content = {"empty": b"", "text": b"hello", "truncated": whole[: len(whole) // 2]}
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[damage])
    with pytest.raises(ModelError, match=r"m\.tw"):
        load(path)


def test_other_machine_is_refused() -> None:
    """Code for instructions this machine lacks does not run."""
    g = Graph()
    g.output(ops.relu(g.input("x", (8,))))
    foreign = Target.load("skylake-avx512" if "+avx512f" not in TARGET.features else "cortex-a76")
    if foreign.arch != TARGET.arch:
        pytest.skip("no target of this architecture has more instructions than this machine")
    with pytest.raises(ModelError, match="lacks"):
        compile_graph(g, foreign)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "missing"),
        ({"x": np.zeros((1, 4, 9, 11), np.float32), "q": np.zeros(1)}, "unknown"),
        ({"x": np.zeros((1, 4, 9, 12), np.float32)}, "expected float32 of shape"),
        ({"x": np.zeros((1, 4, 9, 11))}, "got float64"),
        ({"x": [1, 2]}, "expected a NumPy array"),
    ],
)
def test_wrong_inputs(arrays: dict[str, object], text: str) -> None:
    """Wrong inputs are refused by name; nothing is converted silently."""
    with pytest.raises(ModelError, match=text):
        compile_graph(small_model(), TARGET).run(arrays)


def test_misses() -> None:
    """``error`` names every workload without a record."""
    g = small_model()
    with pytest.raises(MissError, match="not there"):
        compile_graph(g, TARGET, lambda w: "not there", on_miss="error")
    with pytest.raises(ValueError, match="on_miss"):
        compile_graph(g, TARGET, on_miss="explode")


@pytest.mark.parametrize("text", ["unroll nothing i0.0", "split t0 i0 24 7", "conjure t0 i0"])
def test_a_record_that_does_not_apply_is_a_miss(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whether its schedule names what is not there, is not legal, or is none: ``error`` stops and says which and why, ``warn`` and
    ``fallback`` say so and take the default schedule."""
    g = small_model()

    def stale(workload: Workload) -> Choice:
        return Choice(parse(text), "record", "stale")

    with pytest.raises(MissError, match=r"workloads have no record:\n  .*its record does not apply to this version"):
        compile_graph(g, TARGET, stale, on_miss="error")
    for on_miss in ("warn", "fallback"):
        caplog.clear()
        model = compile_graph(g, TARGET, stale, on_miss=on_miss)
        assert {k.source for k in model.compiled.kernels} == {"default"}
        assert model.compiled.coverage()[0] == 0
        assert all("does not apply to this version" in k.why for k in model.compiled.kernels)
        assert "its record does not apply to this version" in caplog.text


def test_only_unused_records_are_told_of_without_being_asked(caplog: pytest.LogCaptureFixture) -> None:
    """``fallback`` is silent about what was never tuned; ``warn`` is not."""
    compile_graph(small_model(), TARGET, lambda w: "not there")
    assert caplog.text == ""
    compile_graph(small_model(), TARGET, lambda w: "not there", on_miss="warn")
    assert "not there" in caplog.text


def test_both_sides_of_a_comparison_have_inputs_aligned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are measured on inputs at multiples of 64 bytes. So are the arrays that ``time`` makes, those that users are given,
    and random ones, whatever their size."""
    model = compile_graph(small_model(), TARGET)
    bound: list[int] = []
    binding = model._frames.binding

    def watched(inputs: Sequence[Array], outputs: Sequence[Array]) -> Binding:
        bound.extend(a.ctypes.data for a in inputs)
        return binding(inputs, outputs)

    monkeypatch.setattr(model._frames, "binding", watched)
    model.time(0.0, 1)
    assert len(bound) == 1
    given = model.allocate_inputs()
    assert [a.shape for a in given] == [p.shape for p in model.inputs]
    assert not any(a.any() for a in given)
    rng = np.random.default_rng(0)
    sizes = [(), (1,), (3, 5), (1000, 7)]
    made = [random_input(Port("x", s, d), rng) for s in sizes for d in ("float32", "float64", "int8", "bool")]
    assert [(a.shape, str(a.dtype)) for a in made[:2]] == [((), "float32"), ((), "float64")]
    measured = generate(extract(small_model(), TARGET)[0].workload, NORMAL, 0)
    addresses = [*bound, *(a.ctypes.data for a in (*given, *made, *measured.values()))]
    assert {a % 64 for a in addresses} == {0}


_blocks = st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 12), st.integers(0, 5)), min_size=0, max_size=30).map(
    lambda rows: [arena.Block(str(k), n, first, first + life) for k, (n, first, life) in enumerate(rows)]
)


@given(_blocks)
@settings(deadline=None, max_examples=200)
def test_arena_blocks_do_not_overlap(blocks: list[arena.Block]) -> None:
    """Blocks alive at one step have disjoint places, all inside the arena, which is no larger than all blocks together."""
    offsets, total = arena.plan(blocks)
    for a in blocks:
        assert offsets[a.name] % arena.ALIGN == 0
        assert offsets[a.name] + a.nbytes <= total
        for b in blocks:
            if a.name < b.name and a.first <= b.last and b.first <= a.last:
                lo, hi = sorted((a, b), key=lambda x: offsets[x.name])
                assert offsets[lo.name] + lo.nbytes <= offsets[hi.name]
    assert arena.lower_bound(blocks) <= total or not blocks
