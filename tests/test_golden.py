"""What schedules become, as readable loop programs: the difference of a change is read as code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from helpers import Case, case, check, values
from tilewright.graph import ops
from tilewright.graph.expr import all_of, maximum, select, unary
from tilewright.graph.graph import Graph, Tensor

Golden = Callable[[str], None]
RNG = np.random.default_rng(0)


def matmul(m: int, n: int, k: int, constant: bool = True) -> Case:
    """A product with a constant right side."""

    def make(g: Graph) -> Tensor:
        a = g.input("a", (m, k))
        b = g.constant(values(RNG, (k, n))) if constant else g.input("b", (k, n))
        return g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], reduce=(k,), reducer="sum")

    return case(make, {"a": values(RNG, (m, k)), "b": values(RNG, (k, n))})


def convolution(padding: int) -> Case:
    """3 × 3 with a bias and an activation."""

    def make(g: Graph) -> Tensor:
        x, w, b = (
            g.input("x", (4, 9, 9)),
            g.constant(values(RNG, (8, 4, 3, 3))),
            g.constant(values(RNG, (8,))),
        )
        source, size = x, 9
        if padding:
            size = 9 + 2 * padding
            source = g.compute(
                (4, size, size),
                lambda c, i, j: select(
                    all_of([i.ge(padding), i.lt(9 + padding), j.ge(padding), j.lt(9 + padding)]),
                    x[c, i - padding, j - padding],
                    0.0,
                ),
            )
        out = size - 2
        y = g.compute((8, out, out), lambda o, i, j, c, u, v: source[c, i + u, j + v] * w[o, c, u, v], (4, 3, 3), "sum")
        z = g.compute((8, out, out), lambda o, i, j: y[o, i, j] + b[o])
        return g.compute((8, out, out), lambda *i: maximum(z.at(i), 0.0))

    return case(make, {"x": values(RNG, (4, 9, 9))})


def softmax(rows: int, columns: int) -> Case:
    """Over the last axis."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (rows, columns))
        m = g.compute((rows, 1), lambda i, _, k: x[i, k], reduce=(columns,), reducer="max")
        e = g.compute((rows, columns), lambda i, j: unary("exp", x[i, j] - m[i, 0]))
        s = g.compute((rows, 1), lambda i, _, k: e[i, k], reduce=(columns,), reducer="sum")
        return g.compute((rows, columns), lambda i, j: e[i, j] / s[i, 0])

    return case(make, {"x": values(RNG, (rows, columns))})


def test_matmul_without_a_schedule(golden: Golden) -> None:
    golden(str(check(matmul(4, 6, 5), "")))


def test_matmul_tiled(golden: Golden) -> None:
    text = """
    split t0 i0 4
    split t0 i1 8
    order t0 i0.0 i1.0 i0.1 i1.1
    unroll t0 i0.1
    vectorize t0 i1.1
    order t0_acc r0.0 i0.1 i1.1
    """
    golden(str(check(matmul(8, 16, 5), text)))


def test_matmul_tiled_with_remainders(golden: Golden) -> None:
    text = """
    split t0 i0 4
    split t0 i1 16 8
    order t0 i0.0 i1.0 i1.1 i0.1 i1.2
    parallel t0 2
    unroll t0 i0.1
    vectorize t0 i1.2
    split t0_acc r0 2
    unroll t0_acc r0.1
    order t0_acc r0.0 r0.1 i0.1 i1.2
    """
    golden(str(check(matmul(7, 37, 5), text, threads=2)))


def test_matmul_packed(golden: Golden) -> None:
    text = """
    split t0 i0 4
    split t0 i1 8
    order t0 i0.0 i1.0 i0.1 i1.1
    unroll t0 i0.1
    vectorize t0 i1.1
    order t0_acc r0.0 i0.1 i1.1
    pack t0_acc 1 root i1.0 r0.0 i1.1
    pack t0_acc 0 root i0.0 r0.0 i0.1
    """
    golden(str(check(matmul(8, 20, 5), text)))


def test_matmul_blocked_over_the_reduction(golden: Golden) -> None:
    """The reduction is outside the tiles: partial sums rest in scratch, the right side is packed for each
    block."""
    text = """
    at t0_acc t0 root
    order t0 i0.0 i1.0
    split t0_acc i0 2
    split t0_acc i1 4
    split t0_acc r0 8
    order t0_acc r0.0 i1.0 i0.0 r0.1 i0.1 i1.1
    unroll t0_acc i0.1
    vectorize t0_acc i1.1
    pack t0_acc 1 i1.0 r0.1 i1.1
    """
    golden(str(check(matmul(4, 10, 20), text)))


def test_convolution_with_a_padded_copy_and_an_epilogue(golden: Golden) -> None:
    text = """
    inline t2
    at t1 t3 tile
    vectorize t0 i2.0
    parallel t0 1
    split t3 i0 4
    split t3 i2 4
    order t3 i0.0 i1.0 i2.0 i0.1 i2.1
    unroll t3 i0.1
    vectorize t3 i2.1
    order t1 r0.0 r1.0 r2.0 i0.1 i2.1
    unroll t1 r2.0
    pack t1 1 root i0.0 r0.0 r1.0 r2.0 i0.1
    """
    golden(str(check(convolution(1), text)))


def test_convolution_without_padding(golden: Golden) -> None:
    text = "inline t1\nat t0 t2 tile\nsplit t2 i2 4\nvectorize t2 i2.1\norder t0 r0.0 r1.0 r2.0 i2.1"
    golden(str(check(convolution(0), text)))


def test_depthwise_convolution(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x, w = g.input("x", (9, 9, 16)), g.constant(values(RNG, (3, 3, 16)))
        return g.compute((7, 7, 16), lambda i, j, c, u, v: x[i + u, j + v, c] * w[u, v, c], (3, 3), "sum")

    text = """
    split t0 i2 8
    split t0 i1 3
    order t0 i0.0 i1.0 i2.0 i1.1 i2.1
    vectorize t0 i2.1
    unroll t0 i1.1
    order t0_acc r0.0 r1.0 i1.1 i2.1
    unroll t0_acc r1.0
    """
    golden(str(check(case(make, {"x": values(RNG, (9, 9, 16))}), text)))


def test_softmax_by_rows(golden: Golden) -> None:
    text = """
    split t3 i1 8
    parallel t3 1
    vectorize t3 i1.1
    at t0 t3 i0.0
    split t0 r0 8
    vectorize t0 r0.1
    at t1 t3 i0.0
    split t1 i1 8
    vectorize t1 i1.1
    at t2 t3 i0.0
    split t2 i1 8
    vectorize t2 i1.1
    """
    golden(str(check(softmax(3, 20), text, threads=2)))


def test_softmax_in_strips_of_rows(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (5, 20))
        m = g.compute((1, 20), lambda _, j, k: x[k, j], reduce=(5,), reducer="max")
        return g.compute((5, 20), lambda i, j: x[i, j] - m[0, j])

    text = """
    split t1 i1 8
    order t1 i1.0 i0.0 i1.1
    vectorize t1 i1.1
    at t0 t1 i1.0
    order t0 r0.0 i1.1
    """
    golden(str(check(case(make, {"x": values(RNG, (5, 20))}), text)))


def test_transpose_tiled(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (20, 13))
        return g.compute((13, 20), lambda i, j: x[j, i])

    text = "split t0 i0 4\nsplit t0 i1 8\norder t0 i0.0 i1.0 i0.1 i1.1\nunroll t0 i0.1\nvectorize t0 i1.1"
    golden(str(check(case(make, {"x": values(RNG, (20, 13))}), text)))


def test_row_sum_with_spread_accumulators(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (3, 50))
        return g.compute((3,), lambda i, k: x[i, k], reduce=(50,), reducer="sum")

    text = "split t0_acc r0 16 4\nunroll t0_acc r0.1\nspread t0_acc r0.1\nvectorize t0_acc r0.2"
    golden(str(check(case(make, {"x": values(RNG, (3, 50))}), text)))


PANELS = """
    split t0 i1 8 4
    split t0 i0 6 3
    order t0 i1.0 i0.0 i1.1 i0.1 i0.2 i1.2
    unroll t0 i0.2
    vectorize t0 i1.2
    split t0_acc r0 2
    unroll t0_acc r0.1
    order t0_acc r0.0 r0.1 i0.2 i1.2
    pack t0_acc 1 i1.0 i1.1 r0.0 r0.1 i1.2
"""


def test_panels_are_read_in_the_order_of_memory(golden: Golden) -> None:
    """A step of the sum for all vectors of the block before the next, though each vector's panel is contiguous."""
    golden(str(check(matmul(6, 16, 5, constant=False), PANELS)))


def test_panels_of_a_turned_factor_are_transposed_in_registers(golden: Golden) -> None:
    """Neighbours are read in the unrolled loop around the vector loop."""

    def make(g: Graph) -> Tensor:
        a, b = g.input("a", (6, 5)), g.input("b", (16, 5))
        return g.compute((6, 16), lambda i, j, r: a[i, r] * b[j, r], reduce=(5,), reducer="sum")

    golden(str(check(case(make, {"a": values(RNG, (6, 5)), "b": values(RNG, (16, 5))}), PANELS)))


def test_product_in_parts(golden: Golden) -> None:
    """Three parts of seven and a rest of two, which the loop that sums the parts adds."""
    text = """
    rfactor t0 r0 7
    at t0_sum t0 tile
    at t0_rest t0 tile
    split t0_part i2 8
    order t0_part i0.0 i2.0 i1.0 i2.1
    parallel t0_part 2
    vectorize t0_part i2.1
    order t0_part_acc r0b.0 i2.1
    split t0 i1 8
    vectorize t0 i1.1
    unroll t0_sum r0a.0
    order t0_sum r0a.0 i1.1
    order t0_rest r0.0 i1.1
    """
    golden(str(check(matmul(4, 12, 23, constant=False), text, threads=2)))


def test_maximum_over_windows(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (2, 9, 9))
        return g.compute((2, 4, 4), lambda c, i, j, u, v: x[c, i * 2 + u, j * 2 + v], (3, 3), "max")

    text = "vectorize t0 i2.0\norder t0_acc r0.0 r1.0 i2.0\nunroll t0_acc r0.0\nunroll t0_acc r1.0"
    golden(str(check(case(make, {"x": values(RNG, (2, 9, 9))}), text)))


def test_gather_of_rows(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x, which = g.input("x", (10, 12)), g.input("which", (5,), "int64")
        return g.compute((5, 12), lambda i, j: x[which[i], j])

    data = {"x": values(RNG, (10, 12)), "which": RNG.integers(0, 10, 5)}
    golden(str(check(case(make, data), "split t0 i1 8\nvectorize t0 i1.1")))


def test_streamed_stores(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (70,))
        return g.compute((70,), lambda i: x[i] * 2)

    text = "split t0 i0 64 16\nparallel t0 1\nvectorize t0 i0.2\nstream t0"
    golden(str(check(case(make, {"x": values(RNG, (70,))}), text, threads=2)))


def test_running_sums_across_vectors(golden: Golden) -> None:
    """Each lane has a running sum; the last columns are a second body."""
    text = "split t0 i2 8\nvectorize t0 i2.1\norder t0 i2.0 i1.0 i2.1\nparallel t0 1"
    data = {"x": values(RNG, (1, 9, 20))}
    golden(str(check(case(lambda g: ops.cumulative_sum(g.input("x", (1, 9, 20)), 1), data), text, threads=2)))


def test_running_sums_in_parts(golden: Golden) -> None:
    """Parts of eight, scanned along vectors; what comes before a part is added to it."""
    text = "rfactor t0 i1 8\nsplit t0_scan i1b 4\nvectorize t0_scan i1b.1\nparallel t0_scan 1"
    data = {"x": values(RNG, (1, 24, 1))}
    golden(str(check(case(lambda g: ops.cumulative_sum(g.input("x", (1, 24, 1)), 1), data), text, threads=2)))


def test_selection_of_rows(golden: Golden) -> None:
    text = "split t0 r0 16 8\nunroll t0 r0.1\nvectorize t0 r0.2\nparallel t0 1"
    data = {"x": values(RNG, (4, 50))}
    golden(str(check(case(lambda g: ops.top_k(g.input("x", (4, 50)), 3)[1], data), text, threads=2)))
