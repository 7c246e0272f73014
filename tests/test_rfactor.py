"""Reductions in parts: every size gives what the reduction means, and the space uses them where there are few outputs."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, run, values
from tilewright.graph.expr import maximum
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.steps import ScheduleError

RNG = np.random.default_rng(0)


def product(m: int, n: int, k: int, epilogue: bool = False, dtype: str = "float32") -> Case:
    """A product, followed by an activation where there is an epilogue."""

    def make(g: Graph) -> Tensor:
        a, b = g.input("a", (m, k), dtype), g.input("b", (k, n), dtype)
        y = g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], (k,), "sum")
        return g.compute((m, n), lambda i, j: maximum(y[i, j] * 2, 1)) if epilogue else y

    data = {"a": values(RNG, (m, k), dtype, whole=True), "b": values(RNG, (k, n), dtype, whole=True)}
    return case(make, data, exact=True)


def reduced(reducer: str, dtype: str, shape: tuple[int, ...] = (3, 14, 5)) -> Case:
    """A tensor reduced over all but its first axis."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", shape, dtype)
        return g.compute(shape[:1], lambda i, *r: x[(i, *r)], shape[1:], reducer)

    return case(make, {"x": values(RNG, shape, dtype, whole=True, top=1 if reducer == "prod" else 4)}, exact=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 11])
@pytest.mark.parametrize("epilogue", [False, True])
def test_products_of_a_prime_depth(size: int, epilogue: bool) -> None:
    check(product(5, 9, 23, epilogue), f"rfactor t0 r0 {size}")


KINDS = [(r, d) for r in ("sum", "prod", "max", "min") for d in ("float32", "float64", "int32")]


@pytest.mark.parametrize(("reducer", "dtype"), [*KINDS, ("max", "bool"), ("min", "bool")])
@pytest.mark.parametrize("size", [4, 7])
def test_every_reducer(reducer: str, dtype: str, size: int) -> None:
    check(reduced(reducer, dtype), f"rfactor t0 r0 {size}")


def test_tiles_of_parts() -> None:
    """Parts are stages like any other: tiled, packed, in parallel; the rest is summed in the loop that adds it."""
    steps = """
    rfactor t0 r0 7
    at t0_sum t0 tile
    at t0_rest t0 tile
    split t0_part i1 4
    split t0_part i2 8
    order t0_part i0.0 i1.0 i2.0 i1.1 i2.1
    parallel t0_part 2
    unroll t0_part i1.1
    vectorize t0_part i2.1
    split t0_part_acc r0b 2
    order t0_part_acc r0b.0 r0b.1 i1.1 i2.1
    pack t0_part_acc 1 i2.0 r0b.0 r0b.1 i2.1
    split t0 i1 8
    vectorize t0 i1.1
    """
    check(product(6, 19, 23), steps, threads=2)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("rfactor t9 r0 2", "expected a stage of"),
        ("rfactor t0 i0 2", "expected a reduction axis of"),
        ("rfactor t0 r0 0", "expected a size of which there are two in 23"),
        ("rfactor t0 r0 12", "expected a size of which there are two in 23"),
        ("rfactor t0 r0 4\nrfactor t0 r0 4", "expected one step for a stage"),
    ],
)
def test_what_does_not_apply_is_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        run(product(5, 9, 23), steps)
