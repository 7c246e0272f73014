"""What is folded and what is not: small files stay small, weights fold, and nothing runs again and again that depends on no input
(faults 19 and 28)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import numpy_helper  # noqa: E402

import tilewright  # noqa: E402
from test_onnx_import import INT64, make_model, node, random  # noqa: E402
from tilewright.graph import Graph, ops, passes  # noqa: E402
from tilewright.graph.folding import FOLD_LIMIT  # noqa: E402
from tilewright.graph.onnx import UnsupportedError, import_onnx  # noqa: E402
from tilewright.tasks import extract  # noqa: E402

ONE, TWO = tilewright.Target.host(threads=1), tilewright.Target.host(threads=2)
N = 2112
ROW = np.arange(N, dtype=np.float32) / 7
LARGE = np.array([N, N])
"""A shape of 17 MiB in float32."""


def filled(shape: str, value: Any) -> Any:
    """ConstantOfShape, to ``c``."""
    return node("ConstantOfShape", shape, "c", value=numpy_helper.from_array(np.array([value])))


GROWING: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    "ConstantOfShape, Trilu": (
        [filled("s", np.float32(2)), node("Trilu", "c", "t")], {"s": LARGE}, np.triu(np.full((N, N), 2.0))),
    "Expand": ([node("Expand", "v s", "t")], {"s": LARGE, "v": ROW}, np.tile(ROW, (N, 1))),
    "Tile": ([node("Tile", "v r", "t")], {"v": ROW[None], "r": np.array([N, 1])}, np.tile(ROW, (N, 1))),
    "an outer product": ([node("Mul", "v w", "t")], {"v": ROW, "w": ROW[:, None]}, np.outer(ROW, ROW)),
    "a mask": (
        [node("Less", "v w", "m"), node("Where", "m v zero", "t")],
        {"v": ROW, "w": ROW[:, None], "zero": np.float32(0)}, np.where(ROW[:, None] > ROW, ROW, 0)),
    "Range": (
        [node("Range", "zero n two", "g"), node("Reshape", "g s", "t")],
        {"s": LARGE, "zero": np.float32(0), "n": np.float32(2 * N * N), "two": np.float32(2)},
        np.arange(0, 2 * N * N, 2, dtype=np.float32).reshape(N, N)),
    "Pad": ([node("Pad", "v p", "t")], {"v": np.ones((1, 1), np.float32), "p": np.array([N - 1, 0, 0, N - 1])}, None),
    "Gather": ([node("Gather", "v i", "t")], {"v": ROW[None], "i": np.zeros(N, np.int64)}, np.tile(ROW, (N, 1))),
    "OneHot": ([node("OneHot", "i d v", "t")], {"i": np.arange(N), "d": np.int64(N), "v": np.array([0, 1], np.float32)}, np.eye(N)),
    "MatMul of columns": ([node("MatMul", "w v", "t")], {"v": ROW[None], "w": ROW[:, None]}, np.outer(ROW, ROW)),
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_a_small_file_stays_small(name: str, tmp_path: Path) -> None:
    """What a few numbers span is no constant of the model; the result is right."""
    nodes, constants, want = GROWING[name]
    model = make_model([*nodes, node("Add", "x t")], {"x": [1]}, ["y"], constants)
    graph = import_onnx(model)
    stored = sum(a.size for a in graph.constants.values())
    assert stored <= sum(np.size(a) for a in constants.values()) + N
    executable = tilewright.compile(graph, TWO)
    executable.save(tmp_path / "m.tw")
    assert (tmp_path / "m.tw").stat().st_size < 200_000
    if want is None:
        want = np.pad(np.ones((1, 1)), ((N - 1, 0), (0, N - 1)))
    for run in (executable, tilewright.load_compiled(tmp_path / "m.tw")):
        for x in (0, 1):
            np.testing.assert_allclose(run(np.array([x], np.float32))[0], want + x, rtol=1e-6)


def test_small_tables_and_weights_are_folded() -> None:
    """Up to the limit whatever it comes from; beyond it what has no more elements than its source."""
    small = make_model(
        [node("Expand", "v s", "t"), node("Sin", "t", "u"), node("Add", "x u")], {"x": [1]}, ["y"],
        {"s": np.array([FOLD_LIMIT // 4 // N, N]), "v": ROW},
    )  # fmt: skip
    assert len(import_onnx(small).nodes) == 1
    w = np.random.default_rng(0).standard_normal((N, N))
    for nodes in (
        [node("Cast", "w", "c", to=1), node("Transpose", "c", "t"), node("Mul", "t k", "z")],
        [node("Cast", "w", "c", to=1), node("MatMul", "a b", "d"), node("Add", "c d", "z")],
    ):
        constants = {"w": w, "k": np.float32(3), "a": random(N, 4), "b": random(4, N)}
        model = make_model([*nodes, node("MatMul", "x z")], {"x": [1, N]}, ["y"], constants)
        assert len(import_onnx(model).nodes) == 1


def test_growth_does_not_hide_behind_many_steps() -> None:
    """Each step doubles: the constant is cut off at the limit, however often the passes run."""
    g = Graph()
    t = g.constant(random(N))
    for _ in range(12):
        t = ops.concat([t, ops.exp(t)])
    g.output(g.input("x", (1,)) + t)
    after = passes.optimise(g)
    assert max(a.nbytes for a in after.constants.values()) <= FOLD_LIMIT
    steps = [node("Concat", f"c{k} c{k}", f"c{k + 1}", axis=0) for k in range(12)]
    imported = import_onnx(make_model([*steps, node("Add", "x c12")], {"x": [1]}, ["y"], {"c0": random(N)}))
    assert max(a.nbytes for a in imported.constants.values()) <= FOLD_LIMIT
    got = tilewright.compile(imported, ONE)(np.zeros(1, np.float32))[0]
    np.testing.assert_array_equal(got, np.tile(random(N), 4096))


def test_a_limit_of_ones_own() -> None:
    """``fold_constants`` takes one."""
    g = Graph()
    g.output(ops.expand(g.constant(random(4)), (3, 4)) + g.input("x", (4,)))
    assert len(passes.fold_constants(g).nodes) == 1
    assert len(passes.fold_constants(g, limit=47).nodes) == 2


def test_no_memory_is_asked_for() -> None:
    """A tensor of 4 TB that is only measured, reduced or indexed is none; one that would have to be known is refused."""
    vast = {"s": np.array([1 << 20, 1 << 20]), "k": np.array([3, 4])}
    nodes = [filled("s", np.float32(1)), node("Slice", "c zero k", "t"), node("Add", "x t")]
    model = make_model(nodes, {"x": [1]}, ["y"], {**vast, "zero": np.array([0, 0])})
    np.testing.assert_array_equal(tilewright.compile(model, ONE)(np.ones(1, np.float32))[0], np.full((3, 4), 2))
    model = make_model(
        [filled("s", np.float32(1)), node("NonZero", "c", "t"), node("Add", "x t")], {"x": (INT64, [1])}, ["y"], vast
    )
    with pytest.raises(UnsupportedError, match="too large to compute when the model is imported"):
        import_onnx(model)


def test_large_known_indices_are_still_known() -> None:
    """An operator that needs a table at import gets it, also where it was left for the run."""
    nodes = [filled("s", np.int64(3)), node("Add", "c zero", "i"), node("ScatterElements", "x i u")]
    columns = FOLD_LIMIT // 8 + 8
    model = make_model(
        nodes, {"x": [5, columns], "u": [1, columns]}, ["y"], {"s": np.array([1, columns]), "zero": np.int64(0)}
    )
    x, u = np.zeros((5, columns), np.float32), np.ones((1, columns), np.float32)
    (got,) = tilewright.compile(model, ONE)(x, u)
    np.testing.assert_array_equal(got.sum(axis=1), [0, 0, 0, columns, 0])


def with_fixed_outputs() -> tuple[Graph, Any]:
    """Outputs that depend on an input, on nothing within the limit, and on nothing beyond it; and the large one's value."""
    g = Graph()
    x, row = g.input("x", (8, N)), g.constant(ROW)
    table = ops.sin(ops.reshape(row, (N, 1)) * row)
    g.output(ops.matmul(x, table), "product")
    g.output(ops.exp(-row), "small")
    g.output(table, "large")
    g.output(ops.transpose(table), "turned")
    return g, np.sin(np.outer(ROW, ROW).astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("target", [ONE, TWO], ids=["1", "2"])
def test_fixed_outputs_are_computed_once(
    target: tilewright.Target, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A call runs the product only; each output that depends on no input is named."""
    g, table = with_fixed_outputs()
    with caplog.at_level(logging.WARNING, "tilewright"):
        executable = tilewright.compile(g, target)
    assert caplog.messages == [
        "output 'small' depends on no input: it is a constant of the compiled model",
        "output 'large' depends on no input: it is computed once, when the model is loaded",
        "output 'turned' depends on no input: it is computed once, when the model is loaded",
    ]
    assert len(executable.compiled.kernels) == 1
    assert [t.weight for t in extract(g, target)] == [1]
    executable.save(tmp_path / "m.tw")
    x = random(8, N)
    for run in (executable, tilewright.load_compiled(tmp_path / "m.tw")):
        for _ in range(2):
            product, small, large, turned = run(x)
            np.testing.assert_allclose(product, x @ table, rtol=2e-4, atol=2e-4)
            np.testing.assert_allclose(small, np.exp(-ROW), rtol=1e-6)
            np.testing.assert_allclose(large, table, atol=1e-6)
            np.testing.assert_array_equal(turned, large.T)
            large[...] = 0  # an output is the caller's


def test_a_table_that_takes_work_is_not_recomputed_with_its_reader() -> None:
    """A map would join the kernel of the map that reads it; a reduction the one behind it."""
    g, _ = with_fixed_outputs()
    g = Graph()
    x, row = g.input("x", (N, N)), g.constant(ROW)
    column = ops.reshape(row, (N, 1))
    g.output(x * ops.sin(column * row), "a")
    g.output(ops.relu(x + ops.matmul(column, ops.reshape(row, (1, N)))), "b")
    executable = tilewright.compile(g, ONE)
    assert len(executable.compiled.kernels) == 2
    assert executable.compiled.packed_bytes > 4 * N * N
    a, b = executable(np.ones((N, N), np.float32))
    np.testing.assert_allclose(a, np.sin(np.outer(ROW, ROW).astype(np.float64)), atol=1e-2)
    np.testing.assert_allclose(b, 1 + np.outer(ROW, ROW), rtol=1e-6)


def test_a_joined_tensor_with_a_fixed_part_is_written_by_every_call() -> None:
    """One part depends on the input, the other on nothing; both lie in one tensor."""
    g = Graph()
    row = g.constant(ROW)
    table = ops.sin(ops.reshape(row, (N, 1)) * row)
    g.output(ops.concat([ops.exp(g.input("x", (16, N))), table]), "y")
    executable = tilewright.compile(g, ONE)
    for fill in (0.0, 1.0):
        (y,) = executable(np.full((16, N), fill, np.float32))
        np.testing.assert_allclose(y[:16], np.exp(fill), rtol=1e-6)
        np.testing.assert_allclose(y[16:], np.sin(np.outer(ROW, ROW).astype(np.float32).astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_operations_that_settle_their_result(dtype: str) -> None:
    """Integers times 0 and conditions that cannot hold leave nothing to run; NaN passes through floats."""
    g = Graph()
    x = g.input("x", (5,), dtype)
    y = ops.logical_and(x, g.constant(np.zeros(5, np.bool_))) if dtype == "bool" else x * g.constant(np.zeros(5, dtype))
    g.output(y, "y")
    assert not passes.optimise(g).nodes
    executable = tilewright.compile(g, ONE)
    assert not executable(np.ones(5, dtype))[0].any()
    g = Graph()
    g.output(g.input("x", (2,)) * 0.0, "y")
    np.testing.assert_array_equal(tilewright.compile(g, ONE)(np.array([1, np.nan], np.float32))[0], [0, np.nan])
