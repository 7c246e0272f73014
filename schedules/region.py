"""The part of a producer that the loops around it need: the windows its readers look at from this point on.

A producer that its readers do not walk in step (``t[2 * i + r]``: a padded image under a convolution) has axes that no
loop of the leader opens. What is left of the leader's axes at a point bounds what is read of them; the producer
computes just that, into a buffer of just that size. Neighbouring blocks compute what both of them read twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from tilewright.graph.affine import Affine, affine, interval
from tilewright.graph.expr import Expr, Var
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.state import Dyn, State


def windows(phase: Phase, axis: str) -> Iterator[Expr]:
    """The positions along ``axis``, which belongs to producers only, at which a stage that does not walk it in step reads it."""
    local = {s.name: s for s in phase.stages[:-1]}
    for reader in phase.stages:
        for load in loads(reader.body):
            producer = local.get(load.tensor)
            if producer is not None:
                for index, (a, _) in zip(load.index, producer.axes, strict=True):
                    if a == axis and not (isinstance(index, Var) and index.name == axis):
                        yield index


def ragged(stage: PStage, phase: Phase, state: State) -> str | None:
    """An axis of the leader whose width must be known before the windows over ``stage`` are, if there is one."""
    leader = phase.leader.extents
    seen: set[str] = set()
    wanted = [a for a, _ in stage.axes if a not in leader]
    while wanted:
        axis = wanted.pop()
        for index in windows(phase, axis):
            for v in sorted(variables(index) - seen):
                seen.add(v)
                if isinstance(state.width[v], Dyn):
                    return v
                if v not in leader:
                    wanted.append(v)
    return None


def narrowed(stage: PStage, phase: Phase, whole: Container[str], state: State) -> State:
    """The state in which the axes of ``stage`` that the leader does not have cover just what is read of them inside; all of them for
    axes in ``whole``."""
    for axis, extent in stage.axes:
        if axis not in phase.leader.extents and axis not in whole:
            first, width = _region(axis, extent, phase, state)
            state = replace(state, base={**state.base, axis: first}, width={**state.width, axis: width})
    return state


def _region(axis: str, extent: int, phase: Phase, state: State) -> tuple[Affine, int]:
    """Where what is read of ``axis`` begins, and how long it is; all of it where less cannot be shown to be enough."""
    whole = Affine((), 0), extent
    parts: list[tuple[Affine, Affine]] = []
    for index in windows(phase, axis):
        position = affine(index)
        if position is None:
            return whole
        low, high = interval(position, {v: (0, _extent(phase, v) - 1) for v, _ in position.terms})
        if low < 0 or high >= extent:
            return whole  # read under a condition
        first = last = Affine((), position.const)
        for v, c in position.terms:
            if v in phase.leader.extents:
                base, width = state.base[v], state.width[v]
            else:
                base, width = _region(v, _extent(phase, v), phase, state)
            assert isinstance(width, int)  # made so before
            span = c * (width - 1)
            first = first + base.scale(c) + Affine((), min(span, 0))
            last = last + base.scale(c) + Affine((), max(span, 0))
        parts.append((first, last))
    if not parts or len({e.terms for part in parts for e in part}) > 1:
        return whole
    first = Affine(parts[0][0].terms, min(f.const for f, _ in parts))
    last = Affine(first.terms, max(e.const for _, e in parts))
    return first, last.const - first.const + 1


def _extent(phase: Phase, axis: str) -> int:
    return next(s.extents[axis] for s in phase.stages if axis in s.extents)
