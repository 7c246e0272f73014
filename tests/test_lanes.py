"""Idle lanes: a short rest of a vector loop is one vector, whose last lanes read nothing of a parameter and write nothing."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, named, values
from tilewright.graph.expr import Expr, cast, maximum, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules import jit
from tilewright.schedules.kernel import build
from tilewright.schedules.lanes import powers_of_two, room, with_idle_lanes
from tilewright.schedules.lower import module
from tilewright.schedules.steps import parse

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("width", range(1, 70))
def test_vectors_cover_every_element_once(width: int) -> None:
    found = with_idle_lanes(width)
    assert sum(used for _, used in found) == width
    assert all(0 < used <= lanes and lanes.bit_count() == 1 for lanes, used in found)
    assert len(found) <= len(powers_of_two(width))
    assert room(width) == sum(lanes for lanes, _ in found)
    assert all(used == lanes for lanes, used in found[:-1])


def product(width: int, dtype: str = "float32", stride: int = 1) -> Case:
    """Rows of a matrix times columns: whole numbers, so the result is exact."""
    a, b = values(RNG, (5, 6), dtype, whole=True), values(RNG, (6, stride * width), dtype, whole=True)

    def make(g: Graph) -> Tensor:
        x, y = g.input("a", a.shape, dtype), g.input("b", b.shape, dtype)
        t = g.compute((5, width), lambda i, j, r: x[i, r] * y[r, j * stride], reduce=(6,), reducer="sum")
        return g.compute((5, width), lambda i, j: maximum(t[i, j], 1) + t[i, j])

    return case(make, {"a": a, "b": b}, exact=True)


PRODUCT = """\
at t0 t1 tile
split t1 i0 2
unroll t1 i0.1
order t1 i0.0 i0.1 i1.0
vectorize t1 i1.0
split t0 r0 3
unroll t0 r0.1
order t0 r0.0 r0.1 i0.1 i1.0
"""


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("width", [3, 5, 6, 7, 11, 13, 14, 15, 23, 29, 31])
def test_rests_of_products(width: int, stride: int, dtype: str) -> None:
    check(product(width, dtype, stride), PRODUCT)


@pytest.mark.parametrize("width", [5, 7, 13, 21])
def test_rests_of_transposed_stores(width: int) -> None:
    """The vector axis is not the one the output is contiguous in: no lane may be idle where the tile is stored."""
    a = values(RNG, (6, 4 * width), whole=True)

    def make(g: Graph) -> Tensor:
        x = g.input("a", a.shape)
        t = g.compute((width, 4), lambda i, j, r: x[r, j * width + i], reduce=(6,), reducer="sum")
        return g.compute((width, 4), lambda i, j: t[i, j] * 2)

    steps = "at t0 t1 tile\norder t1 i1.0 i0.0\nunroll t1 i1.0\nvectorize t1 i0.0\norder t0 r0.0 i1.0 i0.0"
    check(case(make, {"a": a}, exact=True), steps)


@pytest.mark.parametrize("width", [3, 7, 13, 14])
def test_rests_of_functions(width: int) -> None:
    x = values(RNG, (4, 2 * width))

    def make(g: Graph) -> Tensor:
        a = g.input("x", x.shape)
        return g.compute((4, width), lambda i, j: unary("exp", a[i, j]))

    check(case(make, {"x": x}), "vectorize t0 i1.0")


def scattered(kind: str) -> Case:
    """What an idle lane must not do: read far from a row, add to another lane's sum."""
    x, k = values(RNG, (4, 93), whole=True), np.arange(13, dtype=np.int64) * 7

    def make(g: Graph) -> Tensor:
        a, table = g.input("x", x.shape), g.input("k", k.shape, "int64")

        def term(i: Expr, j: Expr) -> Expr:
            return a[i, table[j]] if kind == "table" else a[i, j * 7]

        if kind == "sum":
            t = g.compute((4, 1), lambda i, j, r: a[i, r], reduce=(13,), reducer="sum")
            return g.compute((4, 1), lambda i, j: t[i, j] * 2)
        t = g.compute((4, 13), lambda i, j, r: term(i, j) * cast(r + 1, "float32"), reduce=(2,), reducer="sum")
        return g.compute((4, 13), lambda i, j: t[i, j] * 2)

    return case(make, {"x": x, "k": k}, exact=True)


@pytest.mark.parametrize("kind", ["table", "far"])
def test_lanes_that_may_not_be_idle(kind: str) -> None:
    check(scattered(kind), "at t0 t1 tile\nvectorize t1 i1.0\norder t0 r0.0 i1.0")


@pytest.mark.parametrize("name", ["zen3", "skylake-avx512"])
def test_a_row_of_seven_is_one_vector(name: str) -> None:
    c, target = product(7), named(name)
    lines = jit.assembly(module([build(c.workload, parse(PRODUCT), target).lowered]), target).splitlines()
    found = [line for line in lines if "vfmadd" in line]
    assert found
    assert all("ymm" in line for line in found)
