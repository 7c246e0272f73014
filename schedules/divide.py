"""Divided axes: the output is walked along two axes where it has one.

``y[i] = f(i)`` becomes ``y[a, b] = f(N a + b)``. The elements lie where they lay, because N divides the extent; what changes is
what is affine: a reader of tiles that loads ``t[i // N, i % N]`` loads ``t[a, b]`` afterwards, walks the tiles in step, and so
they can be computed inside its loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.graph.affine import Ranges, affine
from tilewright.graph.expr import Expr, var
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import rewrite, substitute
from tilewright.schedules.steps import Divide, check

OUTER, INNER = "a", "b"
"""What the names of the two axes add to that of the one."""


def divide(stages: Sequence[Stage], step: Divide, output: str) -> list[Stage]:
    """The stages with an axis of the output as two. Raises ScheduleError for another stage, an axis that it does not have, or a
    size that does not divide its extent."""
    check(step.stage == output, f"{step}: expected {output}, the output of the workload, which no stage reads")
    return [_divided(s, step) if s.output == step.stage else s for s in stages]


def _divided(s: Stage, step: Divide) -> Stage:
    check(s.ordered is None, f"{step}: {s.output} lists its results in order; its axes are walked as they are")
    extents = dict(s.axes)
    check(step.axis in extents, f"{step}: expected an axis of {list(extents)}; got {step.axis!r}")
    extent = extents[step.axis]
    outer, inner = step.axis + OUTER, step.axis + INNER
    check(not {outer, inner} & set(s.extents), f"{step}: there is an axis {outer} or {inner} already")
    check(
        step.size > 0 and extent % step.size == 0,
        f"{step}: expected a size that divides {extent}, the extent of {step.axis}; got {step.size}",
    )
    axes = tuple(
        pair
        for a, e in s.axes
        for pair in (((outer, extent // step.size), (inner, step.size)) if a == step.axis else ((a, e),))
    )
    body = walked(s.body, step.axis, var(outer) * step.size + var(inner), dict(axes + s.reduce))
    return replace(s, axes=axes, body=body)


def walked(body: Expr, axis: str, value: Expr, extents: Mapping[str, int]) -> Expr:
    """``body`` with ``value`` for ``axis``: over axes of these extents, indices are affine where they can be."""
    ranges: Ranges = {a: (0, e - 1) for a, e in extents.items()}

    def affine_where_possible(e: Expr) -> Expr | None:
        if e.dtype != "int64":
            return None
        a = affine(e, ranges)
        return a.expr() if a is not None else None

    return rewrite(substitute(body, {axis: value}), affine_where_possible)
