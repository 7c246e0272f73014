"""Where an axis is cut: an index that is a choice of places by the axis (the reflected border of an image) is plain on either side.

A row of a reflected image is a few elements backwards, the row itself, and a few elements backwards again. A vector loop over all of
it would choose the place of every element; cut where the choice changes, it is three loops of which each has one place, and the row
itself is copied as vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from tilewright.graph.affine import affine
from tilewright.graph.expr import Expr, Load, Op, binary
from tilewright.graph.traverse import walk
from tilewright.schedules.loops import StageLoops
from tilewright.schedules.phase import Phase

MOST = 4
"""Pieces of an axis: each is a loop of its own."""

Pieces = tuple[tuple[int, int], ...]


def pieces(phase: Phase, loops: StageLoops) -> Mapping[str, Pieces]:
    """For the axis of the vector loop of a map, if its places change along it: the pieces, each as its first value and the one after
    its last."""
    if len(phase.stages) > 1 or phase.leader.reducer is not None:
        return {}
    axis = next((i.axis for i in loops.items if i.kind == "vector"), None)
    if axis is None or _parallel_inside(loops, axis):
        return {}
    extent = phase.leader.extents[axis]
    at = sorted({c for c in _changes(phase.leader.body, axis) if 0 < c < extent})
    return {axis: tuple(pairwise((0, *at, extent)))} if 0 < len(at) < MOST else {}


def _parallel_inside(loops: StageLoops, axis: str) -> bool:
    """Whether a loop of the axis is parallel inside another: then there is one region, which cannot be cut."""
    return any(i.kind == "parallel" and i.axis == axis for i in loops.items[1:])


def _changes(body: Expr, axis: str) -> Iterator[int]:
    """The values of ``axis`` from which on a place is chosen otherwise."""
    places = (i for load in walk(body) if isinstance(load, Load) for i in load.index)
    choices = (e for i in places for e in walk(i) if isinstance(e, Op) and e.kind == "select")
    for e in {c for choice in choices for c in walk(choice.args[0])}:
        if not isinstance(e, Op) or e.kind not in ("lt", "le") or e.args[0].dtype != "int64":
            continue
        difference = affine(binary("sub", e.args[0], e.args[1]))
        if difference is None or [v for v, _ in difference.terms] != [axis]:
            continue
        step, start = difference.coefficient(axis), difference.const - (e.kind == "le")
        yield -(start // step) if step > 0 else start // -step + 1
