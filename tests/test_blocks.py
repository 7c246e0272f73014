"""Maps computed in blocks: the step, what it refuses, and the sketches that transpose in blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import Case, case, check, each_target, named, run, values
from tilewright.cost_model.prior import prior_ns
from tilewright.cost_model.traffic import run_bytes
from tilewright.graph import ops
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.workload import Workload, canonical
from tilewright.schedules.kernel import build
from tilewright.schedules.steps import ScheduleError, parse
from tilewright.schedules.target import Target
from tilewright.search_space.access import Access
from tilewright.search_space.model import LoopModel
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.search_space.space import space
from tilewright.tasks import default_for

RNG = np.random.default_rng(0)
SHAPES = [(64, 96), (67, 101), (33, 130), (130, 35)]


def small(threads: int = 1, lanes_bits: int = 256) -> Target:
    """A machine whose caches hold little of a test's tensors."""
    return replace(named("zen3", threads), vector_bits=lanes_bits, l2_bytes=1 << 17, l3_bytes=1 << 17)


def turned(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str = "float32") -> Case:
    """A transpose."""
    return case(lambda g: ops.transpose(g.input("a", shape, dtype), perm), {"a": values(RNG, shape, dtype)})


def written(rows: int, columns: int, tile: str = "8 8", stream: bool = False, parallel: int = 0) -> str:
    """A schedule of a transpose of two axes in blocks of ``columns`` (read) by ``rows`` (written)."""
    r, w = tile.split()
    steps = f"""block t0
        at t0_block t0 i0.0
        split t0 i0 {columns}
        split t0 i1 {rows} 16
        order t0 i1.0 i0.0 i0.1 i1.1 i1.2
        vectorize t0 i1.2
        split t0_block i0 {columns} {w}
        split t0_block i1 {rows} {r}
        order t0_block i1.1 i0.1 i0.2 i1.2
        vectorize t0_block i0.2
        unroll t0_block i1.2"""
    return steps + ("\nstream t0" if stream else "") + (f"\nparallel t0 {parallel}" if parallel else "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_of_any_size_with_remainders(shape: tuple[int, int], stream: bool) -> None:
    for rows, columns, tile in ((32, 16, "8 8"), (16, 40, "4 8"), (48, 128, "16 4"), (128, 32, "8 16")):
        for parallel in (0, 2):
            check(turned(shape, (1, 0)), written(rows, columns, tile, stream, parallel), threads=1 + (parallel > 0))


@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_blocks_of_every_type(dtype: str) -> None:
    check(turned((67, 101), (1, 0), dtype), written(32, 24))


def test_a_block_without_a_place_is_a_pass_of_its_own() -> None:
    check(turned((19, 23), (1, 0)), "block t0\nsplit t0_block i0 8\nsplit t0 i0i1 8\nvectorize t0 i0i1.1")


def test_rows_of_a_block_do_not_share_the_sets_of_a_cache() -> None:
    """A row of an even number of cache lines is one line longer; others are left alone."""
    for rows, expected in ((64, 80), (48, 48)):
        _, program = run(turned((rows * 2, 64), (1, 0)), parse(written(rows, 32)))
        assert f"t0_block.buf: float32[{32 * expected}]" in str(program)


def sums() -> Case:
    """A reduction."""
    x = values(RNG, (9, 17))
    return case(lambda g: ops.reduce_sum(g.input("a", x.shape), [1]), {"a": x})


@pytest.mark.parametrize(
    ("make", "text", "why"),
    [
        (lambda: turned((9, 7), (1, 0)), "block t7", "expected a stage of"),
        (lambda: turned((9, 7), (1, 0)), "block t0\nblock t0", "expected one step for a stage"),
        (lambda: turned((9, 7), (1, 0)), "block t0_block", "expected a stage of"),
        (sums, "block t0", "expected a stage without a reduction"),
    ],
)
def test_refused(make: object, text: str, why: str) -> None:
    assert callable(make)
    with pytest.raises(ScheduleError, match=why):
        run(make(), parse(text))


def blocks_of(w: Workload, target: Target) -> list[Sketch]:
    """The sketches of the block form."""
    return [s for s in space(w, target).sketches if s.name.startswith("block[")]


def chained(shape: tuple[int, int]) -> Case:
    """A transposing chain: maths before, a row and a whole tensor after."""
    data = {"a": values(RNG, shape), "b": values(RNG, shape[::-1]), "c": values(RNG, shape[:1])}

    def make(g: Graph) -> Tensor:
        a, b, c = (g.input(n, x.shape) for n, x in data.items())
        turned_back = g.compute(shape[::-1], lambda i, j: unary("tanh", a[j, i]) * c[j])
        return g.compute(shape[::-1], lambda i, j: turned_back[i, j] + b[i, j])

    return case(make, data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: turned((131, 135), (1, 0)),
        lambda: turned((96, 128), (1, 0), "float64"),
        lambda: turned((3, 67, 95), (0, 2, 1)),
        lambda: turned((5, 9, 40, 36), (0, 3, 1, 2)),
        lambda: turned((40, 6, 5, 33), (3, 1, 2, 0)),
        lambda: chained((110, 120)),
    ],
)
@pytest.mark.parametrize("bits", [128, 256, 512])
def test_points_of_the_sketches(make: object, bits: int) -> None:
    assert callable(make)
    c = make()
    found = blocks_of(c.workload, small(2, bits))
    assert {s.name.endswith(",stream]") for s in found} == {False, True}
    for s in found:
        rows = enumerate_points(s).rows
        assert len(rows)
        for row in [s.row(r) for r in RNG.choice(rows, 3)] + [dict(s.preferred)]:
            check(c, s.schedule(row), threads=2)


def transpose(rows: int, columns: int) -> Workload:
    """A large one, which is not run."""
    g = Graph()
    out = ops.transpose(g.input("a", (rows, columns)), (1, 0))
    g.output(out)
    return canonical(g.nodes, out.name, g.types, g.constants)[0]


@each_target
def test_none_where_the_second_cache_holds_all(target: Target) -> None:
    assert not blocks_of(transpose(64, 64), target)
    assert not any("stream" in s.name for s in blocks_of(transpose(1024, 1024), replace(target, l3_bytes=32 << 20)))


@each_target
def test_large_transposes_are_blocked_by_default(target: Target) -> None:
    """Long runs on both sides, and stores past the caches where they hold little of the tensors."""
    target = replace(target, l1d_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    # where a vector is a whole line, tiles miss none of it; that they wait for each is not known to the prior
    form = "map" if target.lanes("float32") * 4 == target.line_bytes else "block"
    assert default_for(transpose(4096, 4096), target).sketch.name == f"{form}[v=i0,stream]"
    assert default_for(transpose(1024, 1024), target).sketch.name == f"{form}[v=i0]"


def test_long_runs_are_expected_to_be_faster() -> None:
    target = replace(named("zen3"), l1d_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    s = next(s for s in blocks_of(transpose(4096, 4096), target) if "stream" in s.name)
    short, long = ({"v": 16, "b": b, "r": 8, "c": c, "d": 0} for b, c in ((2, 4), (8, 64)))
    times = [prior_ns(s, np.array([[row[p.name] for p in s.params]]))[0] for row in (short, long)]
    assert times[1] < 0.8 * times[0]


def test_unrolled_vectors_lengthen_a_run() -> None:
    """Two vectors that lie side by side are one place of memory, in whatever order their loops are written."""
    one = np.ones(1)
    a = Access("a", 4, 1 << 20, ((1024, (("i", 1),)), (1024, (("r", 1),))), False, False, False)
    loops = [
        LoopModel("i", 0, "serial", 1024 * one, one),
        LoopModel("r", 0, "serial", 64 * one, 16 * one),
        LoopModel("r", 1, "unroll", 2 * one, 8 * one),
        LoopModel("r", 2, "vector", 8 * one, one),
    ]
    assert run_bytes(a, loops[1:], 8) == 4096
    assert run_bytes(a, [loops[1], loops[0], *loops[2:]], 8) == 64


@each_target
def test_streamed_rows_that_begin_between_lines(target: Target) -> None:
    """A vector longer than what rows are aligned to is stored in pieces; rows that are not aligned at all are not streamed."""
    pieces = {(136, 64): "store <8 x float>", (132, 64): "store <4 x float>"}
    for shape, store in pieces.items():
        c = turned(shape, (1, 0))
        text = "\n".join(build(c.workload, parse(written(64, 32, stream=True)), target).lowered.functions)
        assert all(store in line for line in text.splitlines() if "nontemporal" in line)
        assert "nontemporal" in text
        check(c, written(64, 32, stream=True))
    c = turned((133, 64), (1, 0))
    assert "nontemporal" not in "\n".join(
        build(c.workload, parse(written(64, 32, stream=True)), target).lowered.functions
    )


def test_a_block_is_expected_to_be_faster_when_the_next_one_is_fetched_meanwhile() -> None:
    target = replace(named("zen3"), l1d_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    s = next(s for s in blocks_of(transpose(4096, 4096), target) if "stream" in s.name)
    rows = [{"v": 16, "b": 8, "r": 8, "c": 64, "d": d} for d in (0, 1)]
    times = [prior_ns(s, np.array([[row[p.name] for p in s.params]]))[0] for row in rows]
    assert times[1] < times[0]
