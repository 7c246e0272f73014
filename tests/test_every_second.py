"""Windows walked two at a time: vectors of neighbours are shared by the window's elements, and the lanes put in order once."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, named, values
from tilewright.graph import ops
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules import jit
from tilewright.schedules.kernel import build
from tilewright.schedules.lower import module
from tilewright.schedules.steps import parse

RNG = np.random.default_rng(0)
WHOLE_ROW = """\
{inline}at t1 {out} tile
split {out} {x} {v}
split {out} {y} {r}
order {out} i1.0 {y}.0 {x}.0 {y}.1 {x}.1
unroll {out} {y}.1
vectorize {out} {x}.1
split t1 r0 {k}
unroll t1 r0.1
split t1 r1 {k}
unroll t1 r1.1
order t1 r0.0 r1.0 r0.1 r1.1 {y}.1 {x}.1
"""
"""Rows of a plane as vectors, the windows unrolled; the padding (``t0``) a predicate or a plane in the thread's scratch."""


def depthwise(h: int, w: int, kernel: int, pads: tuple[int, int, int, int], dtype: str = "float32") -> Case:
    """Three channels, each with a kernel of its own, every second pixel; whole numbers, so the result is exact."""
    x = values(RNG, (1, 3, h, w), dtype, whole=True)
    k = values(RNG, (3, 1, kernel, kernel), dtype, whole=True)

    def make(g: Graph) -> Tensor:
        return ops.neg(ops.conv(g.input("x", x.shape, dtype), g.constant(k), None, [2, 2], None, pads, 3))

    return case(make, {"x": x}, exact=True)


def text(c: Case, padding: str, r: int, v: int) -> str:
    """A schedule of a depthwise convolution."""
    out = c.workload.output
    (_, _, (y, _), (x, _)) = c.workload.stages[out].axes
    k = dict(c.workload.stages["t1"].reduce)["r0"]
    inline = {"predicate": "inline t0\n", "plane": f"at t0 {out} i1.0\n"}[padding]
    return WHOLE_ROW.format(inline=inline, out=out, x=x, y=y, v=v, r=r, k=k)


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["predicate", "plane"])
@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize(("h", "w"), [(8, 32), (7, 33), (8, 62), (9, 17), (8, 6)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 1, 1), (2, 3, 0, 1)])
def test_rows_of_strided_windows(padding: str, kernel: int, h: int, w: int, pads: tuple[int, int, int, int]) -> None:
    c = depthwise(h, w, kernel, pads)
    width = c.expected.shape[-1]
    for r, v in ((2, width), (1, 8)):
        check(c, text(c, padding, r, v))


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "int8"])
@pytest.mark.parametrize("padding", ["predicate", "plane"])
def test_rows_of_strided_windows_of_other_types(dtype: str, padding: str) -> None:
    c = depthwise(7, 43, 3, (1, 1, 1, 1), dtype)
    check(c, text(c, padding, 2, c.expected.shape[-1]))


@pytest.mark.parametrize("low", [0.0, -1e30])
def test_largest_of_strided_windows(low: float) -> None:
    x = values(RNG, (1, 3, 9, 47))

    def make(g: Graph) -> Tensor:
        padded = ops.pad(g.input("x", x.shape), (0, 0, 1, 1), (0, 0, 1, 1), low)
        largest = g.compute(
            (1, 3, 5, 24), lambda n, c, i, j, a, b: padded[n, c, i * 2 + a, j * 2 + b], reduce=(3, 3), reducer="max"
        )
        return ops.neg(largest)

    c = case(make, {"x": x}, exact=True)
    for padding in ("predicate", "plane"):
        check(c, text(c, padding, 2, 24))


def factors_that_vary(kind: str) -> Case:
    """A sum over strided windows times something that is read another way."""
    x, y = values(RNG, (40, 35), whole=True), values(RNG, (40, 16), whole=True)

    def make(g: Graph) -> Tensor:
        a, b = g.input("x", x.shape), g.input("y", y.shape)
        if kind == "in order":
            t = g.compute((40, 16), lambda i, j, k: a[i, j * 2 + k] * b[i, j], reduce=(3,), reducer="sum")
        else:
            t = g.compute((40, 16), lambda i, j, k: a[i, j * 2 + k] * b[i, 15 - j], reduce=(3,), reducer="sum")
        return ops.neg(t)

    return case(make, {"x": x, "y": y}, exact=True)


@pytest.mark.parametrize("kind", ["in order", "backwards"])
def test_other_factors_keep_their_order(kind: str) -> None:
    check(
        factors_that_vary(kind),
        "at t0 t1 tile\nsplit t0 r0 3\nunroll t0 r0.1\nvectorize t1 i1.0\norder t0 r0.0 r0.1 i1.0",
    )


@pytest.mark.parametrize(("name", "orders", "pairs"), [("zen3", 7, 63), ("skylake-avx512", 4, 63)])
def test_lanes_are_put_in_order_once(name: str, orders: int, pairs: int) -> None:
    """Nine windows of three rows of 56: one change of lanes for each vector of the output, not for each of the window."""
    c = depthwise(12, 112, 3, (1, 1, 1, 1))
    target = named(name)
    code = jit.assembly(module([build(c.workload, parse(text(c, "predicate", 1, 56)), target).lowered]), target)
    lines = code.splitlines()
    assert sum("vperm" in line for line in lines) == orders
    assert sum("vshufps" in line for line in lines) == pairs
