"""Software prefetch: results stay the same, what is fetched is what is read later, and what the step refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from helpers import Case, case, check, each_target, run, values
from tilewright.graph import ops
from tilewright.graph.expr import Const, Expr, Load, Op, Var
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.traverse import loads
from tilewright.schedules import jit
from tilewright.schedules.kernel import build
from tilewright.schedules.lower import module
from tilewright.schedules.nest import Alloc, Fetch, If, Loop, Node, Seq, Store, walk
from tilewright.schedules.steps import Prefetch, ScheduleError, parse
from tilewright.schedules.target import Target
from tilewright.search_space.sketch import Ahead, enumerate_points
from tilewright.search_space.space import space

RNG = np.random.default_rng(0)
LINE = 16
"""Elements of a cache line."""


def turned(shape: tuple[int, ...], perm: tuple[int, ...] = (1, 0)) -> Case:
    """A transpose."""
    return case(lambda g: ops.transpose(g.input("a", shape), perm), {"a": values(RNG, shape)})


def shifted(shape: tuple[int, ...]) -> Case:
    """A map."""
    return case(lambda g: ops.add(g.input("a", shape), 1.0), {"a": values(RNG, shape)})


def bent(shape: tuple[int, ...]) -> Case:
    """A map that computes much for each element."""
    return case(lambda g: ops.tanh(g.input("a", shape)), {"a": values(RNG, shape)})


def sums(shape: tuple[int, int]) -> Case:
    """Sums of rows."""
    return case(lambda g: ops.reduce_sum(g.input("a", shape), [1]), {"a": values(RNG, shape)})


def softmax(shape: tuple[int, int]) -> Case:
    """Several stages inside a loop over rows."""
    return case(lambda g: ops.softmax(g.input("a", shape), -1), {"a": values(RNG, shape)})


def product(shape: tuple[int, int, int]) -> Case:
    """A matrix product with a constant factor."""
    m, n, k = shape
    w = values(RNG, (k, n))
    return case(lambda g: ops.matmul(g.input("a", (m, k)), g.constant(w)), {"a": values(RNG, (m, k))})


def blocked(rows: int, columns: int, ahead: str = "prefetch t0_block i0.0 1", parallel: int = 0) -> str:
    """A schedule of a transpose in blocks of ``columns`` (read) by ``rows`` (written)."""
    steps = f"""block t0
        at t0_block t0 i0.0
        split t0 i0 {columns}
        split t0 i1 {rows} 16
        order t0 i1.0 i0.0 i0.1 i1.1 i1.2
        vectorize t0 i1.2
        split t0_block i0 {columns} 8
        split t0_block i1 {rows} 8
        order t0_block i1.1 i0.1 i0.2 i1.2
        vectorize t0_block i0.2
        unroll t0_block i1.2
        {ahead}"""
    return steps + (f"\nparallel t0 {parallel}" if parallel else "")


SUM = """split t0 i0 2
    unroll t0 i0.1
    split t0_acc r0 16 8
    order t0_acc r0.0 r0.1 i0.1 r0.2
    unroll t0_acc r0.1
    spread t0_acc r0.1
    vectorize t0_acc r0.2"""


@pytest.mark.parametrize("distance", [1, 3, 100])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: shifted((1000,)), "split t0 i0 64 16\nvectorize t0 i0.2\nprefetch t0 i0.{}"),
        (lambda: shifted((7, 130)), "split t0 i0i1 16\nvectorize t0 i0i1.1\nprefetch t0 i0i1.0"),
        (lambda: sums((9, 101)), SUM + "\nprefetch t0_acc r0.0"),
        (lambda: sums((9, 101)), SUM + "\nprefetch t0_acc i0.0"),
        (
            lambda: softmax((8, 64)),
            "inline t3\nat t0 t4 i0.0\nat t1 t4 i0.0\nat t2 t4 i0.0\nprefetch t0 i0.0",
        ),
        (lambda: turned((37, 53)), "split t0 i0 8\nvectorize t0 i0.1\nunroll t0 i0.1\nprefetch t0 i1.0"),
        (lambda: product((9, 24, 33)), "split t0 i1 8\nvectorize t0 i1.1\nprefetch t0_acc r0.0"),
        (
            lambda: product((9, 24, 33)),
            "split t0 i1 8\nvectorize t0 i1.1\npack t0_acc 1 root i1.0 r0.0 i1.1\nprefetch t0_acc r0.0",
        ),
    ],
)
def test_results_stay_the_same(make: object, text: str, distance: int) -> None:
    assert callable(make)
    for level in ("0", "1") if "{}" in text else ("",):
        steps = text.replace("{}", level).replace("\nunroll t0 i0.1", "") + f" {distance}"
        assert "fetch" in str(check(make(), steps))


@pytest.mark.parametrize("shape", [(64, 96), (67, 101), (33, 130), (130, 35)])
def test_blocks_of_any_size_with_remainders(shape: tuple[int, int]) -> None:
    for rows, columns in ((32, 16), (16, 40), (48, 128), (128, 32), (16, 8)):
        for parallel in (0, 2):
            check(turned(shape), blocked(rows, columns, parallel=parallel), threads=1 + (parallel > 0))


def number(e: Expr, at: dict[str, int]) -> int:
    """The value of an index expression."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return at[e.name]
    assert isinstance(e, Op)
    if e.kind == "select":
        return number(e.args[1] if number(e.args[0], at) else e.args[2], at)
    a, b = (number(x, at) for x in e.args)
    known = {"add": a + b, "sub": a - b, "mul": a * b, "le": a <= b, "lt": a < b, "min": min(a, b)}
    return int(known[e.kind] if e.kind in known else a // b if e.kind == "floordiv" else a % b)


def touched(node: Node, at: dict[str, int]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Every fetch and every load of the input, in order: what, the line, and the block it is made in."""
    if isinstance(node, Seq):
        for n in node.nodes:
            yield from touched(n, at)
    elif isinstance(node, Loop):
        for k in range(number(node.extent, at)):
            yield from touched(node.body, {**at, node.var: k})
    elif isinstance(node, Alloc):
        yield from touched(node.body, at)
    elif isinstance(node, If):
        chosen = node.then if number(node.condition, at) else node.otherwise
        if chosen is not None:
            yield from touched(chosen, at)
    elif isinstance(node, Fetch):
        beyond = 0 if node.beyond is None else number(node.beyond, at)
        yield "fetch", (number(node.index, at) + beyond) // LINE, (at["i1.0"], at["i0.0"])
    elif isinstance(node, Store):
        for e in loads(node.value):
            if isinstance(e, Load) and e.tensor == "x0":
                yield "load", number(e.index[0], at) // LINE, (at["i1.0"], at["i0.0"])


@pytest.mark.parametrize(("rows", "columns"), [(32, 16), (16, 32), (32, 32), (16, 64), (64, 16), (32, 48)])
def test_what_the_next_block_reads_is_fetched_once(rows: int, columns: int) -> None:
    """Also where the next block is the first one of the next row of blocks."""
    c = turned((128, 192))
    _, program = run(c, blocked(rows, columns))
    read: dict[tuple[int, ...], set[int]] = {}
    fetched: dict[tuple[int, ...], list[int]] = {}
    for what, line, block in touched(program.body, {}):
        if what == "load":
            read.setdefault(block, set()).add(line)
        else:
            fetched.setdefault(block, []).append(line)
    order = sorted(read)
    for now, following in pairwise(order):
        assert sorted(fetched[now]) == sorted(read[following])


@each_target
def test_a_line_is_asked_for_once(target: Target) -> None:
    """A vector of two lines, unrolled: four instructions."""
    text = "split t0 i0 64 32\nunroll t0 i0.1\nvectorize t0 i0.2\nprefetch t0 i0.0 2"
    built = build(shifted((512,)).workload, parse(text), target)
    assert jit.assembly(module([built.lowered]), target).count("prefetcht0") == 4


@pytest.mark.parametrize(
    ("make", "text", "why"),
    [
        (lambda: shifted((64,)), "prefetch t0 i0.0 0", "expected a distance of at least 1"),
        (lambda: shifted((64,)), "prefetch t0 i0.1 1", "expected a loop of"),
        (lambda: shifted((64,)), "split t0 i0 8\nvectorize t0 i0.1\nprefetch t0 i0.1 1", "which stay loops"),
        (lambda: shifted((64,)), "prefetch t9 i0.0 1", "expected a stage of"),
        (
            lambda: case(lambda g: ops.expand(g.input("a", (1, 8)), (5, 8)), {"a": values(RNG, (1, 8))}),
            "prefetch t0 i0.0 1",
            "expected a stage that reads, from memory, other places",
        ),
        (
            lambda: turned((64, 64)),
            "block t0\nat t0_block t0 i0.0\nsplit t0 i0 8\norder t0 i1.0 i0.0 i0.1\nunroll t0 i0.1\nprefetch t0_block i0.0 1",
            "expected a block that is written out by a loop of t0",
        ),
        (lambda: turned((1040, 64)), blocked(1040, 8), "expected at most 64 lines in an iteration of i0.1"),
    ],
)
def test_refused(make: object, text: str, why: str) -> None:
    assert callable(make)
    with pytest.raises(ScheduleError, match=why):
        run(make(), parse(text))


@each_target
def test_large_tensors_are_fetched_ahead_by_default(target: Target) -> None:
    """Sketches of what the last cache does not hold have a distance, and 0 is none."""
    target = replace(target, l2_bytes=1 << 17, l3_bytes=1 << 17)
    for c, stage in ((turned((256, 256)), "t0_block"), (bent((65536,)), "t0")):
        sketches = [s for s in space(c.workload, target).sketches if any(isinstance(x, Ahead) for x in s.template)]
        assert sketches
        for s in sketches:
            assert {s.row(r)["d"] > 0 for r in enumerate_points(s).rows} == {False, True}
            for distance in (0, 1):
                steps = s.schedule({**s.preferred, "d": distance}).steps
                assert [x.stage for x in steps if isinstance(x, Prefetch)] == [stage] * distance


def test_the_number_of_fetches_is_counted() -> None:
    """The size of a program knows about them."""
    _, program = run(shifted((512,)), parse("split t0 i0 32\nvectorize t0 i0.1\nprefetch t0 i0.0 2"))
    assert sum(isinstance(n, Fetch) for n in walk(program.body)) == 1


def normalised(shape: tuple[int, int]) -> Case:
    """Several passes over each row, none of which is stored."""

    def make(g: Graph) -> Tensor:
        return ops.layer_norm(g.input("a", shape), g.input("s", shape[1:]), g.input("b", shape[1:]))[0]

    return case(make, {"a": values(RNG, shape), "s": values(RNG, shape[1:]), "b": values(RNG, shape[1:])})


@each_target
@pytest.mark.parametrize(("make", "stage"), [(softmax, "t1"), (normalised, "t3")])
def test_rows_are_fetched_by_a_pass_that_reads_them_again(make: object, stage: str, target: Target) -> None:
    """Rows that pass by all caches are stored past them too."""
    assert callable(make)
    target = replace(target, l1d_bytes=1 << 15, l2_bytes=1 << 15, l3_bytes=1 << 15)
    c = make((123, 133))
    found = [s for s in space(c.workload, target).sketches if s.name.startswith("rows[v=column,keep=t1")]
    assert {s.name.endswith(",stream]") for s in found} == {False, True}
    for s in found:
        assert [x.stage for x in s.template if isinstance(x, Ahead)] == [stage]
        for distance in (0, 1):
            check(c, s.schedule({**s.preferred, "d": distance}), 2, target)
