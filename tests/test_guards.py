"""Guarded loads: what holds for a whole row selects the address, what is known when code is written costs nothing, and only what
differs from lane to lane is a mask."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, each_target, values
from tilewright.cost_model.analysis import analyse
from tilewright.cost_model.body import body
from tilewright.graph import ops
from tilewright.graph.expr import Expr, all_of, select
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.kernel import build
from tilewright.schedules.lower import module
from tilewright.schedules.steps import parse
from tilewright.schedules.target import Target
from tilewright.search_space.sketch import Sketch
from tilewright.search_space.space import space
from tilewright.tasks import extract

RNG = np.random.default_rng(0)


def bordered(dtype: str, stride: int = 1, other: float = 0) -> Case:
    """A plane with a border, read with a stride along the row."""

    def make(g: Graph) -> Tensor:
        x = g.input("a", (13, 21 * stride), dtype)

        def at(i: Expr, j: Expr) -> Expr:
            return select(all_of([i.ge(2), i.lt(15), j.ge(3), j.lt(24)]), x[i - 2, (j - 3) * stride], other)

        return g.compute((18, 30), at)

    return case(make, {"a": values(RNG, (13, 21 * stride), dtype)})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "bool"])
@pytest.mark.parametrize("lanes", [30, 16, 7, 2])
def test_every_type_and_width(dtype: str, lanes: int) -> None:
    for stride in (1, 2, 3):
        check(bordered(dtype, stride), f"split t0 i1 {lanes}\nvectorize t0 i1.1")


@pytest.mark.parametrize("other", [-0.0, 1.0])
def test_other_constants_are_selected(other: float) -> None:
    check(bordered("float32", 1, other), "vectorize t0 i1.0")


@each_target
def test_rows_are_no_masks(target: Target) -> None:
    """With the whole row in one vector loop, masks are constants: the row's guard selects an address."""
    c = bordered("float32")
    text = module([build(c.workload, parse("vectorize t0 i1.0"), target).lowered])
    assert "icmp slt <" not in text
    assert "select i1" in text
    assert "icmp sle <" in module([build(c.workload, parse("split t0 i1 8\nvectorize t0 i1.1"), target).lowered])


def sketch_of(name: str, target: Target) -> Sketch:
    """A sketch of a depthwise convolution."""
    g = Graph()
    x, w = g.input("x", (1, 24, 56, 56)), g.constant(values(RNG, (24, 1, 3, 3)))
    y = ops.conv(x, w, None, None, None, (1, 1, 1, 1), 24)
    g.output(y)
    (task,) = extract(g, target)
    return next(s for s in space(task.workload, target).sketches if s.name.startswith("tile[v=i3") and name in s.name)


def guards(s: Sketch, **values: int) -> float:
    """Operations that the prior counts for guards."""
    rows = np.asarray([[values[p.name] for p in s.params]])
    stage = next(c.model for c in analyse(s, rows).phases[0].stages if c.model.guards)
    cover: dict[str, float] = {}
    for lp in stage.loops:
        if lp.kind in ("vector", "unroll"):
            cover[lp.axis] = cover.get(lp.axis, 1.0) * float(lp.trips[0])
    return float(np.ravel(body(stage, s.target, cover).guards)[0])


@each_target
def test_known_masks_are_free(target: Target) -> None:
    s = sketch_of("pad=inline", target)
    known = guards(s, v=32, vb=2, r0=2, r0b=1, u0=3, u1=3)
    assert known < guards(s, v=32, vb=1, r0=2, r0b=1, u0=3, u1=3)
    assert known < guards(s, v=32, vb=2, r0=2, r0b=1, u0=3, u1=1)


@each_target
def test_a_condition_on_a_value_does_not_guard_what_it_read_itself(target: Target) -> None:
    """A leaky unit of a normalised row: the condition reads what both sides read, so nothing is masked, and a value of a whole
    row is not taken apart into lanes."""

    def make(g: Graph) -> Tensor:
        x = g.input("a", (6, 32))
        s = g.compute((6,), lambda i, k: x[i, k], (32,), "sum")
        return g.compute((6, 32), lambda i, j: select((x[i, j] - s[i]).lt(0), (x[i, j] - s[i]) * 0.125, x[i, j] - s[i]))

    c = case(make, {"a": values(RNG, (6, 32), "float32")})
    schedule = "at t0 t1 i0.0\nsplit t1 i1 16\nvectorize t1 i1.1"
    assert "masked" not in module([build(c.workload, parse(schedule), target).lowered])
    check(c, schedule)


@each_target
@pytest.mark.parametrize("swapped", [False, True])
def test_other_reads_under_a_condition_on_a_value_stay_guarded(swapped: bool, target: Target) -> None:
    """The condition's own reads under a choice are guarded themselves, and say nothing about the sides."""

    def make(g: Graph) -> Tensor:
        x, y = g.input("a", (9,)), g.input("b", (9,))

        def at(i: Expr) -> Expr:
            positive = select(i.lt(9), x[i], -1.0).gt(0)
            if swapped:
                return select(select(i.lt(9), x[i], -1.0).le(0), 2.0, x[i] + y[i])
            return select(positive, x[i] + y[i], 2.0)

        return g.compute((24,), at)

    c = case(make, {"a": values(RNG, (9,), "float32"), "b": values(RNG, (9,), "float32")})
    assert "masked" in module([build(c.workload, parse("split t0 i0 8\nvectorize t0 i0.1"), target).lowered])
    check(c, "split t0 i0 8\nvectorize t0 i0.1")
