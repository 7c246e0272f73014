"""Divided axes of the output: where elements lie does not change, and what is computed from tiles can be computed inside."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, run, values
from tilewright.graph import ops
from tilewright.graph.dtypes import SIZES
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.steps import ScheduleError

RNG = np.random.default_rng(0)


def chain(shape: tuple[int, ...] = (6, 20, 15), dtype: str = "float32") -> Case:
    """A map of two inputs, one of which is broadcast along the last axis."""
    data = {"a": values(RNG, shape, dtype), "b": values(RNG, (*shape[:-1], 1), dtype)}
    return case(lambda g: ops.add(g.input("a", shape, dtype), g.input("b", data["b"].shape, dtype)), data)


@pytest.mark.parametrize(
    "steps",
    [
        "divide t0 i1 4",
        "divide t0 i2 5",
        "divide t0 i1 20\ndivide t0 i2 1",
        "divide t0 i1 5\ndivide t0 i2 3\nsplit t0 i0i1ai1b 7\nsplit t0 i2ai2b 4\nvectorize t0 i2ai2b.1",
        "divide t0 i0 3\ndivide t0 i0b 3",
        "divide t0 i1 2\nblock t0\nat t0_block t0 i0i1ai1b.0",
    ],
)
def test_elements_lie_where_they_lay(steps: str) -> None:
    check(chain(), steps)


def enlarged(rows: int = 6, columns: int = 9, times: int = 4) -> Case:
    """Each row repeated: rows of the output are read at ``i0 // times``."""
    data = {"a": values(RNG, (rows, columns)), "b": values(RNG, (rows * times, columns))}

    def make(g: Graph) -> Tensor:
        small, b = ops.relu(g.input("a", (rows, columns))), g.input("b", (rows * times, columns))
        return g.compute((rows * times, columns), lambda i, j: small[i // times, j] + b[i, j])

    return case(make, data)


@pytest.mark.parametrize("order", ["i0b.0 i1.0 i0a.0 i1.1", "i1.0 i0a.0 i0b.0 i1.1", "i0a.0 i1.0 i1.1 i0b.0"])
def test_the_two_axes_have_loops_of_their_own(order: str) -> None:
    steps = f"divide t1 i0 4\nsplit t1 i1 4\norder t1 {order}\nunroll t1 {order.split()[-1]}"
    check(enlarged(), f"inline t0\n{steps}")
    check(enlarged(), f"{steps}\nvectorize t0 i0i1.0")


def test_what_is_read_by_tiles_is_computed_inside() -> None:
    """Without the step the stage cannot be computed there: it is read at ``i0 // 4``."""
    steps = "at t0 t1 {}.0\nsplit t1 i1 4\nvectorize t1 i1.1"
    check(enlarged(), "divide t1 i0 4\n" + steps.format("i0a"))
    with pytest.raises(ScheduleError, match="at affine positions"):
        run(enlarged(), steps.format("i0"))


@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_every_type(dtype: str) -> None:
    if dtype == "bool":
        c = case(lambda g: ops.transpose(g.input("a", (6, 20), "bool"), (1, 0)), {"a": values(RNG, (6, 20), "bool")})
        check(c, "divide t0 i0 5")
        return
    check(chain(dtype=dtype), "divide t0 i1 4\nsplit t0 i2 8\nvectorize t0 i2.1")


def test_the_output_may_be_a_sum() -> None:
    shape = (6, 8, 9)
    c = case(lambda g: ops.reduce_sum(g.input("a", shape), [2]), {"a": values(RNG, shape)})
    check(c, "divide t0 i1 4\ndivide t0 i0 2")


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("divide t0 i1 3", "expected a size that divides 20, the extent of i1; got 3"),
        ("divide t0 i1 0", "expected a size that divides 20, the extent of i1; got 0"),
        ("divide t0 i4 2", "expected an axis of .*; got 'i4'"),
        ("divide t0 i1 4\ndivide t0 i1 2", "expected an axis of .*; got 'i1'"),
        ("divide x0 i1 4", "expected t0, the output of the workload, which no stage reads"),
    ],
)
def test_what_cannot_be_divided_is_refused(steps: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        run(chain(), steps)
