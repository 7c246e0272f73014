"""Ordered reductions (:mod:`tilewright.graph.ordered`) as phases of their own, and scans in parts.

A scan is walked like a map, with a running result beside it (:class:`~tilewright.schedules.phase.Running`). ``rfactor S AXIS N`` on
a scan along ``AXIS`` scans parts of N values, all from the start::

    y[i] = sum(x[r] for r <= i)   ->   y_scan[a, b] = sum(x[N a + r] for r <= b)
                                       y_base[a] = sum(y_scan[c, N - 1] for c < a)
                                       y[a, b] = y_base[a] + y_scan[a, b]

so that threads can share a long row. Only ``y_base``, of which there is one a part, is computed one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.affine import Ranges, affine
from tilewright.graph.expr import Expr, Load, binary, const, var
from tilewright.graph.ordered import Scan, Select
from tilewright.graph.stage import Stage, identity
from tilewright.graph.traverse import rewrite, substitute
from tilewright.schedules.divide import INNER, OUTER, walked
from tilewright.schedules.phase import Best, Phase, Running
from tilewright.schedules.steps import RFactor, check

SCANNED, BASE = "_scan", "_base"
"""What the names of the stages of a scan in parts add to that of the scan."""
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The two-argument operation a reducer repeats."""


def listed(phase: Phase, stage: Stage) -> Phase:
    """The phase of an ordered reduction ``stage``, whose leader so far has the axes of the output and the reduction axis."""
    form, leader = stage.ordered, phase.leader
    assert form is not None
    if isinstance(form, Select):
        if not leader.reduce:  # one element: it is the best
            return replace(phase, stages=(replace(leader, body=const(0, "int64")),))
        kept, count = stage.axes[-1]
        axes = tuple((a, e) for a, e in leader.axes if a != kept)
        return replace(phase, stages=(replace(leader, axes=axes, reducer="max", listing=Best(count, form.largest)),))
    kept, extent = stage.axes[form.axis]
    if extent == 1:  # one element: it is its own prefix
        body = identity(form.reducer, leader.body.dtype) if form.exclusive else leader.body
        return replace(phase, stages=(replace(leader, body=body),))
    ((axis, _),) = leader.reduce
    place = const(extent - 1, "int64") - var(kept) if form.reverse else var(kept)
    running = Running(form.reducer, kept, form.exclusive, form.reverse)
    body = _moved(leader.body, axis, place, {a: (0, e - 1) for a, e in leader.axes})
    return replace(phase, stages=(replace(leader, reduce=(), reducer=None, body=body, listing=running),))


def _moved(body: Expr, axis: str, place: Expr, ranges: Ranges) -> Expr:
    """``body``, whose loads have one flat index, with ``place`` for ``axis``."""

    def simple(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        index = rewrite(e.index[0], simple)
        flat = affine(index, ranges)
        return Load(e.dtype, e.tensor, (flat.expr() if flat is not None else index,))

    return rewrite(substitute(body, {axis: place}), simple)


def scan_in_parts(s: Stage, step: RFactor, output: str) -> list[Stage]:
    """The stages of the scan ``s`` in parts. Raises ScheduleError for another axis than the one that is scanned, a size that does not
    divide it, and a scan that is not the output of the workload (what reads it would find other axes)."""
    form = s.ordered
    check(isinstance(form, Scan), f"{step}: a selection is not made in parts; expected a reduction or a scan")
    assert isinstance(form, Scan)
    axis, extent = s.axes[form.axis]
    check(step.axis == axis, f"{step}: expected {axis}, the axis that is scanned; got {step.axis!r}")
    check(s.output == output, f"{step}: expected {output}, the output of the workload, which no stage reads")
    check(
        0 < step.size <= extent // 2 and extent % step.size == 0,
        f"{step}: expected a size that divides {extent}, the extent of {axis}, in two or more; got {step.size}",
    )
    outer, inner = axis + OUTER, axis + INNER
    check(not {outer, inner} & set(s.extents), f"{step}: there is an axis {outer} or {inner} already")
    count, size, dtype = extent // step.size, step.size, s.body.dtype
    before, after = s.axes[: form.axis], s.axes[form.axis + 1 :]
    ((over, _),) = s.reduce
    axes = (*before, (outer, count), (inner, size), *after)
    body = walked(s.body, over, var(outer) * size + var(over), {**dict(axes), over: size})
    inside = replace(form, axis=form.axis + 1)
    scanned = replace(s, output=s.output + SCANNED, axes=axes, reduce=((over, size),), reducer=inside, body=body)

    def at(part: Expr, place: Expr) -> Expr:
        """The scan of a part at a place in it."""
        return Load(dtype, scanned.output, (*(var(a) for a, _ in before), part, place, *(var(a) for a, _ in after)))

    last = const(0 if form.reverse else size - 1, "int64")
    total = at(var(over), last)
    if form.exclusive:  # without its last element so far
        end = var(over) * size + last
        total = binary(COMBINE[form.reducer], total, substitute(s.body, {over: end}))
    base = Stage(
        s.output + BASE,
        (*before, (outer, count), *after),
        total,
        ((over, count),),
        Scan(form.reducer, form.axis, True, form.reverse),
    )
    start = Load(dtype, base.output, tuple(var(a) for a, _ in base.axes))
    both = binary(COMBINE[form.reducer], start, at(var(outer), var(inner)))
    return [scanned, base, replace(s, axes=axes, reduce=(), reducer=None, body=both)]
