"""Attention as one kernel: what is recognised, every sketch against the oracle, and the parts that were made for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers import Case, case, check, each_target, values
from tilewright.graph import ops
from tilewright.graph.expr import Op, const, select, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.traverse import walk
from tilewright.schedules.falling import FALLING
from tilewright.schedules.nest import Alloc
from tilewright.schedules.nest import walk as nodes_of
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import Schedule
from tilewright.schedules.target import Target
from tilewright.search_space.attention_rule import attention_sketches
from tilewright.search_space.fusion import fuse
from tilewright.search_space.sketch import enumerate_points

RNG = np.random.default_rng(3)
Scores = Callable[[Graph, Tensor], Tensor]


def causal(g: Graph, s: Tensor) -> Tensor:
    """Later columns hidden, by comparing positions."""
    return g.compute(s.shape, lambda b, i, j: select(j.le(i), s[b, i, j], const(-1e30, "float32")))


def masked(g: Graph, s: Tensor) -> Tensor:
    """A mask that is added to the scores."""
    return ops.add(s, g.input("mask", s.shape[1:]))


def columns_masked(g: Graph, s: Tensor) -> Tensor:
    """Scores divided, then a mask of the columns."""
    return ops.add(ops.div(s, 3.0), g.input("row", (1, 1, s.shape[2])))


FORMS: dict[str, Scores] = {
    "plain": lambda g, s: s,
    "scaled": lambda g, s: ops.mul(s, 0.3),
    "causal": causal,
    "masked": masked,
    "columns masked": columns_masked,
}


def attend(g: Graph, form: str, heads: int, n: int, m: int, d: int, group: int = 1, transposed: bool = False) -> Tensor:
    """``softmax(form(q kᵀ)) v``; ``group`` heads share one of k and v."""
    q = g.input("q", (heads, n, d))
    k = g.input("k", (heads // group, d, m) if transposed else (heads // group, m, d))
    v = g.input("v", (heads // group, m, d))
    if group > 1:
        s = g.compute((heads, n, m), lambda h, i, j, r: q[h, i, r] * k[h // group, j, r], (d,), "sum")
        p = ops.softmax(FORMS[form](g, s), -1)
        return g.compute((heads, n, d), lambda h, i, c, r: p[h, i, r] * v[h // group, r, c], (m,), "sum")
    s = ops.matmul(q, k, transpose_b=not transposed)
    return ops.matmul(ops.softmax(FORMS[form](g, s), -1), v)


def split_heads(g: Graph, heads: int, n: int, d: int, residual: bool) -> Tensor:
    """Attention as models have it: heads cut out of (1, n, heads * d) and put back, perhaps with something added."""

    def heads_of(name: str) -> Tensor:
        return ops.transpose(ops.reshape(g.input(name, (1, n, heads * d)), (1, n, heads, d)), (0, 2, 1, 3))

    q, k, v = heads_of("q"), heads_of("k"), heads_of("v")
    s = ops.div(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), d**0.5)
    s = ops.add(s, g.input("row", (1, 1, 1, n)))
    out = ops.transpose(ops.matmul(ops.softmax(s, -1), v), (0, 2, 1, 3))
    if residual:
        out = ops.add(out, g.input("x", (1, n, heads, d)))
    return ops.reshape(out, (1, n, heads * d))


def right_at_some_points(c: Case, target: Target) -> None:
    """Every sketch for a target at its preferred point and at another one, on one thread and on two."""
    for threads in (1, 2):
        sketches = attention_sketches(c.workload, target.with_threads(threads))
        assert sketches
        for sketch in sketches:
            rows = enumerate_points(sketch).rows
            for row in (sketch.preferred, sketch.row(rows[RNG.integers(len(rows))])):
                check(c, sketch.schedule(row), threads, target)


def attention(form: str, heads: int, n: int, m: int, d: int, **more: Any) -> Case:
    """A case of :func:`attend`."""
    g = Graph()
    attend(g, form, heads, n, m, d, **more)
    data = {i: values(RNG, g.types[i].shape) for i in g.inputs}
    return case(lambda g: attend(g, form, heads, n, m, d, **more), data)


SHAPES: list[tuple[str, int, int, int, int, dict[str, Any]]] = [
    *((form, 2, 29, 37, 20, {}) for form in FORMS),
    ("scaled", 2, 29, 37, 20, {"transposed": True}),
    ("causal", 4, 13, 24, 16, {"group": 2}),
    ("plain", 3, 64, 64, 32, {}),
    ("plain", 1, 30, 40, 24, {}),
]


@pytest.mark.slow
@each_target
@pytest.mark.parametrize(("form", "heads", "n", "m", "d", "more"), SHAPES)
def test_it_is_one_kernel_and_every_sketch_is_right(
    form: str, heads: int, n: int, m: int, d: int, more: dict[str, Any], target: Target
) -> None:
    g = Graph()
    g.output(attend(g, form, heads, n, m, d, **more))
    assert len(fuse(g, target)) == 1
    right_at_some_points(attention(form, heads, n, m, d, **more), target)


@each_target
@pytest.mark.parametrize("residual", [False, True])
def test_heads_cut_out_of_rows_and_put_back_are_part_of_the_kernel(residual: bool, target: Target) -> None:
    g = Graph()
    g.output(split_heads(g, 3, 21, 20, residual))
    assert len(fuse(g, target)) == 1
    data = {i: values(RNG, g.types[i].shape) for i in g.inputs}
    right_at_some_points(case(lambda g: split_heads(g, 3, 21, 20, residual), data), target)


@each_target
def test_panels_are_packed_before_all_loops_or_for_one_head_at_a_time(target: Target) -> None:
    places = {
        s.name: {line.split()[3] for line in str(s.schedule(s.preferred)).splitlines() if line.startswith("pack")}
        for s in attention_sketches(attention("plain", 3, 64, 64, 32).workload, target.with_threads(2))
    }
    assert places == {"attention": {"root"}, "attention[values]": {"root"}, "attention[outer]": {"i0.0"}}


@each_target
def test_the_exponentials_take_the_place_of_the_scores(target: Target) -> None:
    c = attention("plain", 3, 64, 64, 32)
    sketch = attention_sketches(c.workload, target)[0]
    program = check(c, sketch.schedule(sketch.preferred))
    strips = {n.buffer.name for n in nodes_of(program.body) if isinstance(n, Alloc) and n.buffer.size >= 12 * 64}
    assert strips == {"t0.buf"}


def bodies(make: Callable[[Graph, Tensor], Tensor]) -> set[str]:
    """The operations of the phases of a graph over a 4 x 6 matrix."""
    c = case(lambda g: make(g, g.input("x", (4, 6))), {"x": values(RNG, (4, 6))})
    stages = [s for p in phases(c.workload, Schedule()) for s in p.stages]
    return {e.kind for s in stages for e in walk(s.body) if isinstance(e, Op)}


def less_maximum(axis: int, scale: float) -> Callable[[Graph, Tensor], Tensor]:
    """``exp(x - max(x * scale))`` with the maximum along an axis of the 4 x 6 matrix ``x``."""

    def make(g: Graph, x: Tensor) -> Tensor:
        top = (
            g.compute((4,), lambda i, r: x[i, r] * scale, (6,), "max")
            if axis
            else g.compute((6,), lambda j, r: x[r, j] * scale, (4,), "max")
        )
        return g.compute((4, 6), lambda i, j: unary("exp", x[i, j] * 1.5 - (top[i] if axis else top[j])))

    return make


def test_an_exponential_of_what_cannot_be_positive_is_recognised() -> None:
    assert FALLING in bodies(less_maximum(1, 1.5))
    assert FALLING in bodies(less_maximum(0, 1.5))
    assert FALLING not in bodies(less_maximum(1, 1.0))
    assert FALLING in bodies(lambda g, x: ops.softmax(x, -1))


def test_a_maximum_over_other_elements_is_not_enough() -> None:
    def other(g: Graph, x: Tensor) -> Tensor:
        top = g.compute((4,), lambda i, r: x[i, r], (5,), "max")
        return g.compute((4, 6), lambda i, j: unary("exp", x[i, j] - top[i]))

    def crossed(g: Graph, x: Tensor) -> Tensor:
        top = g.compute((4,), lambda i, r: x[i, r], (6,), "max")
        return g.compute((4, 4), lambda i, j: unary("exp", x[j, i] - top[i]))

    assert FALLING not in bodies(other)
    assert FALLING not in bodies(crossed)
