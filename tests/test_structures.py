"""Every loop structure a schedule can ask for, against the oracle: tiles, packing, blocks of a reduction,
scratch, threads."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, at_page_end, case, check, host, values
from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Const, const, maximum, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import parse

RNG = np.random.default_rng(0)


def product(m: int = 13, n: int = 31, k: int = 17, constant: bool = False, both: bool = False) -> Case:
    """``a @ b`` of whole numbers: any order of summation is exact."""
    a, b = values(RNG, (m, k), whole=True), values(RNG, (k, n), whole=True)

    def make(g: Graph) -> Tensor:
        x = g.constant(a) if both else g.input("a", (m, k))
        y = g.constant(b) if constant else g.input("b", (k, n))
        c = g.compute((m, n), lambda i, j, r: x[i, r] * y[r, j], reduce=(k,), reducer="sum")
        return g.compute((m, n), lambda i, j: maximum(c[i, j], 0.0))

    return case(make, {"a": a, "b": b}, exact=True)


TILES = """
at t0 t1 tile
split t1 i0 4
split t1 i1 16 8
order t1 i0.0 i1.0 i1.1 i0.1 i1.2
unroll t1 i0.1
"""
VECTORS = TILES + "vectorize t1 i1.2\norder t0 r0.0 i0.1 i1.2\n"
BLOCKS = """
at t0 t1 root
split t0 i0 4
split t0 i1 8
split t0 r0 5
order t0 r0.0 i1.0 i0.0 r0.1 i0.1 i1.1
"""
STRUCTURES = {
    "tiles": VECTORS,
    "unrolled reduction": TILES + "vectorize t1 i1.2\nsplit t0 r0 4\nunroll t0 r0.1\norder t0 r0.0 r0.1 i0.1 i1.2",
    "reduction innermost": TILES + "vectorize t1 i1.2\norder t0 i0.1 i1.2 r0.0",
    "pack right at root": VECTORS + "pack t0 1 root i1.0 i1.1 r0.0 i1.2",
    "pack left at root": VECTORS + "pack t0 0 root i0.0 r0.0 i0.1",
    "pack both": VECTORS + "pack t0 1 root i1.0 i1.1 r0.0 i1.2\npack t0 0 root r0.0 i0.0 i0.1",
    "accumulators at an outer loop": """
        at t0 t1 i0.0
        split t1 i0 4
        split t0 i1 8
        order t0 i1.0 r0.0 i0.1 i1.1
        unroll t0 i0.1
        vectorize t0 i1.1
    """,
    "reduction blocks outside": """
        at t0 t1 i0.0
        split t1 i0 4
        split t0 i1 8
        split t0 r0 5
        order t0 r0.0 i1.0 r0.1 i0.1 i1.1
        unroll t0 i0.1
        vectorize t0 i1.1
    """,
    "reduction blocks twice": """
        at t0 t1 i0.0
        split t1 i0 4
        split t0 i1 8
        split t0 r0 6 3
        order t0 r0.0 i1.0 r0.1 i0.1 r0.2 i1.1
        vectorize t0 i1.1
    """,
    "at root": """
        at t0 t1 root
        split t0 i1 8
        order t0 r0.0 i0.0 i1.0 i1.1
        vectorize t0 i1.1
        vectorize t1 i1.0
    """,
    "at root, parallel leader": "at t0 t1 root\nparallel t1 2\nsplit t0 i1 8\nvectorize t0 i1.1",
    "pack at a reduction block": BLOCKS + "unroll t0 i0.1\nvectorize t0 i1.1\npack t0 1 i1.0 r0.1 i1.1",
    "two packs at one loop": BLOCKS + "pack t0 1 r0.0 i1.0 r0.1 i1.1\npack t0 0 r0.0 i0.0 r0.1 i0.1",
    "packs at two loops": BLOCKS + "pack t0 1 i1.0 r0.1 i1.1\npack t0 0 i0.0 r0.1 i0.1",
    "tiles larger than the axes": """
        at t0 t1 tile
        split t1 i0 64 16
        split t1 i1 128 64
        split t0 r0 256 32
        order t1 i0.0 i1.0 i0.1 i1.1 i0.2 i1.2
    """,
    "three levels": """
        at t0 t1 tile
        split t1 i0 12 6 2
        split t1 i1 24 8 4
        order t1 i0.0 i1.0 i0.1 i1.1 i0.2 i1.2 i0.3 i1.3
        unroll t1 i0.3
        vectorize t1 i1.3
        order t0 r0.0 i0.3 i1.3
    """,
    "columns as vectors": """
        at t0 t1 tile
        split t1 i0 8
        order t1 i1.0 i0.0 i0.1
        vectorize t1 i0.1
        order t0 r0.0 i0.1
    """,
    "vector of two rows": """
        at t0 t1 tile
        split t1 i1 1
        split t1 i0 2
        order t1 i1.0 i1.1 i0.0 i0.1
        vectorize t1 i0.1
    """,
    "dot products": """
        at t0 t1 tile
        split t0 r0 8
        vectorize t0 r0.1
        split t1 i1 3
        unroll t1 i1.1
        order t0 r0.0 i1.1 r0.1
    """,
    "separate phases": """
        split t0 i1 8
        vectorize t0 i1.1
        split t1 i0i1 32
        vectorize t1 i0i1.1
        parallel t1 1
    """,
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str, threads: int) -> None:
    text = STRUCTURES[name]
    if name == "separate phases":
        text += "\nparallel t0 2"
    elif "root" not in text.split("split")[0]:
        text += "\nparallel t1 1"
    check(product(constant=threads == 2, both=threads == 3), text, threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_parallel_loops_are_shared_out(count: int, threads: int) -> None:
    """Fewer, as many and more iterations than threads, and several loops fused."""
    for shape in ((1, 1, 5), (2, 1, 3), (3, 7, 2), (13, 2, 1)):

        def make(g: Graph, shape: tuple[int, ...] = shape) -> Tensor:
            x = g.input("x", shape[::-1])
            return g.compute(shape, lambda i, j, k: x[k, j, i] * 2)

        c = case(make, {"x": values(RNG, shape[::-1])})
        axes = sum(e > 1 for e in shape)
        check(c, f"parallel t0 {min(count, axes)}", threads)


def test_parallel_iterations_have_scratch_of_their_own() -> None:
    """More scratch than registers hold, and a remainder, on three threads."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (11, 301))
        s = g.compute((11, 301), lambda i, j: unary("exp", x[i, j]))
        total = g.compute((11, 1), lambda i, _, k: s[i, k], reduce=(301,), reducer="sum")
        return g.compute((11, 301), lambda i, j: s[i, j] / total[i, 0])

    c = case(make, {"x": values(RNG, (11, 301))})
    text = """
    at t0 t2 i0.0
    at t1 t2 i0.0
    split t2 i1 8
    vectorize t2 i1.1
    parallel t2 1
    split t1 i1 8
    vectorize t1 i1.1
    """
    program = check(c, text, threads=3)
    assert "t0.buf: float32[301] thread" in str(program)


def test_large_extents_that_nothing_divides() -> None:
    def make(g: Graph) -> Tensor:
        x, y = g.input("x", (1009, 997)), g.input("y", (997,))
        return g.compute((1009, 997), lambda i, j: maximum(x[i, j] + y[j], 0.0))

    c = case(make, {"x": values(RNG, (1009, 997)), "y": values(RNG, (997,))})
    text = """
    split t0 i0 64 8
    split t0 i1 128 32
    order t0 i0.0 i1.0 i0.1 i1.1 i0.2 i1.2
    vectorize t0 i1.2
    parallel t0 2
    """
    check(c, text, 2)
    a, b = values(RNG, (211, 223), whole=True), values(RNG, (223, 227), whole=True)

    def multiply(g: Graph) -> Tensor:
        x, y = g.input("a", a.shape), g.constant(b)
        return g.compute((211, 227), lambda i, j, k: x[i, k] * y[k, j], reduce=(223,), reducer="sum")

    text = """
    split t0 i0 36 6
    split t0 i1 96 16
    order t0 i0.0 i1.0 i0.1 i1.1 i0.2 i1.2
    parallel t0 2
    unroll t0 i0.2
    vectorize t0 i1.2
    split t0_acc r0 4
    unroll t0_acc r0.1
    order t0_acc r0.0 r0.1 i0.2 i1.2
    pack t0_acc 1 root i1.0 i1.1 r0.0 r0.1 i1.2
    """
    check(case(multiply, {"a": a}, exact=True), text, 3)


def test_a_second_phase_waits_for_what_it_reads() -> None:
    """A stage that feeds both an inner stage and the leader comes first, wherever the leader's other stages
    stand."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (35,))
        a = g.compute((35,), lambda i: x[i] * 2)
        b = g.compute((35,), lambda i: x[i] + 1)
        return g.compute((35,), lambda i: maximum(a[i], b[(-i) + 34]))

    check(case(make, {"x": values(RNG, (35,))}), "at t0 t2 tile\nsplit t2 i0 4\nvectorize t2 i0.1")


def test_a_workload_that_ends_in_a_view() -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (6, 10))
        y = g.compute((6, 10), lambda i, j: x[i, j] * 2)
        return g.view(g.view(y, (60,)), (4, 15))

    check(case(make, {"x": values(RNG, (6, 10))}), "split t2 i0i1 8\nvectorize t2 i0i1.1")


def test_reductions_over_one_element_are_maps() -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (5, 1))
        y = g.compute((5, 1), lambda i, _, k: x[i, k] * 3, reduce=(1,), reducer="sum")
        return g.compute((5, 1), lambda i, j: x[i, j] - y[i, 0])

    for text in ("", "at t0 t1 tile", "vectorize t1 i0.0\nat t0 t1 root"):
        check(case(make, {"x": values(RNG, (5, 1))}), text)


def test_one_factor_packed_stands_for_every_equal_one() -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (6, 20))
        return g.compute((6,), lambda i, k: x[i, k] * x[i, k], reduce=(20,), reducer="sum")

    check(case(make, {"x": values(RNG, (6, 20))}), "split t0_acc r0 8\npack t0_acc 0 root i0.0 r0.0 r0.1")


def test_many_inputs_and_a_reused_kernel() -> None:
    """A kernel bound again reads the new arrays and packs the new constants."""
    c = product(constant=True)
    kernel = Kernel(build(c.workload, parse(STRUCTURES["pack right at root"]), host()))
    assert np.array_equal(kernel(c.arrays), c.expected)
    doubled = {n: at_page_end(a * 2) for n, a in c.arrays.items()}
    assert np.array_equal(kernel(doubled), c.expected * 4)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)])
def test_nothing_to_compute_is_refused(shape: tuple[int, ...]) -> None:
    g = Graph()
    with pytest.raises(GraphError, match="expected sizes of at least 1; got 0"):
        g.input("x", shape)
    x = g.input("y", (4,))
    with pytest.raises(GraphError, match="expected an extent of at least 1"):
        g.compute(shape, lambda *i: x[i[0]])
    with pytest.raises(GraphError, match="expected an extent of at least 1"):
        g.compute((4,), lambda i, k: x[i], reduce=(0,), reducer="sum")
    assert isinstance(const(1, "int64"), Const)


def test_phases_are_the_same_whatever_the_loops() -> None:
    """The loop that a stage is computed in is the schedule's own; the stages are found once."""
    w = product().workload
    (tile,), (block,) = phases(w, parse("at t0 t1 tile")), phases(w, parse("at t0 t1 i0.0\nsplit t1 i0 4"))
    assert tile.stages is block.stages
    assert tile.attached == (("t0", "t1", "tile"),)
    assert block.attached == (("t0", "t1", "i0.0"),)
    assert phases(w, parse("at t0 t1 tile"))[0].attached == tile.attached
