"""Reductions in parts: what one long reduction would do one after the other is done side by side.

``y[i] = sum(f(i, r))`` over R values of ``r`` becomes ``y_part[a, i] = sum(f(i, N a + b))`` over N values of ``b``, and ``y[i] =
sum(y_part[a, i])``. The parts are independent, so threads can share them where there are too few outputs to share, and the data of
a part is small enough to stay in a cache. The same holds for products, largest and smallest values.

Parts are equal, so that every loop has the extent it is written for. The R mod N values that are left are reduced by a stage of their
own, ``y_rest[i]``; then ``y[i] = y_sum[i] + y_rest[i]``, where ``y_sum`` is made of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.expr import Load, binary, var
from tilewright.graph.stage import Axes, Stage
from tilewright.schedules.divide import INNER, OUTER, walked
from tilewright.schedules.ordered import BASE, COMBINE, SCANNED, scan_in_parts
from tilewright.schedules.steps import RFactor, check

PART, REST, SUM = "_part", "_rest", "_sum"
"""What the names of the stages add to that of the reduction."""


def factor_out(stages: Sequence[Stage], step: RFactor, output: str) -> list[Stage]:
    """The stages of a workload that hands on ``output`` with ``step.stage`` reduced in parts, or scanned in parts. Raises
    ScheduleError for a stage that is not there or does not reduce along the axis, and for a size of which there are not two in the
    axis."""
    known = {s.output for s in stages}
    check(step.stage in known, f"{step}: expected a stage of {sorted(known)}")
    fresh = [step.stage + suffix for suffix in (PART, REST, SUM, SCANNED, BASE)]
    check(
        not known & set(fresh),
        f"{step}: expected one step for a stage; there are stages {sorted(known & set(fresh))} already",
    )
    out: list[Stage] = []
    for s in stages:
        if s.output != step.stage:
            out.append(s)
        else:
            out += _in_parts(s, step) if s.ordered is None else scan_in_parts(s, step, output)
    return out


def _in_parts(s: Stage, step: RFactor) -> list[Stage]:
    axis, size = step.axis, step.size
    extents = dict(s.reduce)
    check(axis in extents, f"{step}: expected a reduction axis of {list(extents)}; got {axis!r}")
    check(
        0 < size <= extents[axis] // 2,
        f"{step}: expected a size of which there are two in {extents[axis]}, the extent of {axis}; got {size}",
    )
    check(
        s.body.dtype != "bool" or s.reducer in ("max", "min"),
        f"{step}: expected numbers, or the largest or smallest of them; got a {s.reducer} of truth values",
    )
    outer, inner = axis + OUTER, axis + INNER
    check(not {outer, inner} & set(s.extents), f"{step}: there is an axis {outer} or {inner} already")
    assert isinstance(s.reducer, str)
    count, rest = divmod(extents[axis], size)
    axes: Axes = ((outer, count), *s.axes)
    reduce: Axes = tuple((inner, size) if a == axis else (a, e) for a, e in s.reduce)
    body = walked(s.body, axis, var(outer) * size + var(inner), dict(axes + reduce))
    part = replace(s, output=s.output + PART, axes=axes, reduce=reduce, body=body)
    index = tuple(var(a) for a, _ in s.axes)
    whole = replace(s, body=Load(s.body.dtype, part.output, (var(outer), *index)), reduce=((outer, count),))
    if not rest:
        return [part, whole]
    reduce = tuple((a, rest if a == axis else e) for a, e in s.reduce)
    body = walked(s.body, axis, var(axis) + count * size, dict(s.axes + reduce))
    left = replace(s, output=s.output + REST, reduce=reduce, body=body)
    whole = replace(whole, output=s.output + SUM)
    both = binary(COMBINE[s.reducer], *(Load(s.body.dtype, x.output, index) for x in (whole, left)))
    return [part, whole, left, replace(s, body=both, reduce=(), reducer=None)]
