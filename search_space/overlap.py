"""How much of a producer that its readers look at through windows is computed for each block, on arrays of candidates.

The same bounds as :mod:`tilewright.schedules.region` puts into the loop program, without positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.affine import affine
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.region import windows


@dataclass(frozen=True, slots=True)
class Region:
    """What a block needs of one axis of a producer: ``width`` elements; ``axes`` of the leader bound it."""

    width: Any
    axes: frozenset[str]


def regions(stage: PStage, phase: Phase, widths: Mapping[str, Any]) -> dict[str, Region]:
    """The region of each axis of ``stage`` that its readers look at through windows, while each axis ``a`` of the leader covers
    ``widths[a]`` values (all of it where that is not given)."""
    extents = {a: e for s in phase.stages for a, e in (*s.axes, *s.reduce)}
    out: dict[str, Region] = {}
    for axis, extent in stage.axes:
        if axis in phase.leader.extents:
            continue
        width: Any = 0.0
        bounding: set[str] = set()
        for index in windows(phase, axis):
            position = affine(index)
            reach: Any = float(extent) if position is None else 1.0
            for v, c in position.terms if position is not None else ():
                reach = reach + abs(c) * (widths.get(v, float(extents[v])) - 1.0)
                bounding |= {v} & set(phase.leader.extents)
            width = np.maximum(width, reach)
        if bounding:
            out[axis] = Region(np.minimum(width, float(extent)), frozenset(bounding))
    return out


def left(leader: PStage, opened: list[str], sizes: Mapping[str, list[NDArray[np.float64]]]) -> dict[str, Any]:
    """What is left of each axis of the leader inside the loops ``opened``."""
    out: dict[str, Any] = {}
    for name in opened:
        axis, level = name.rsplit(".", 1)
        inside: list[Any] = [*sizes[axis], 1.0]
        out[axis] = np.minimum(inside[int(level)], float(leader.extents[axis]))
    return out


def around(outside: list[str], windows: Mapping[str, Region]) -> list[str]:
    """The loops around a producer. Those of the leader that bound its windows are, for the producer, loops over blocks of its own
    axes (level -1)."""
    out: dict[str, None] = {}
    for name in outside:
        bound = [w for w, r in windows.items() if name.rsplit(".", 1)[0] in r.axes]
        out |= dict.fromkeys([f"{w}.-1" for w in bound] or [name])
    return list(out)


def overlap(leader: PStage, inside: Mapping[str, Any], stage: PStage, windows: Mapping[str, Region]) -> Any:
    """How often a point of a producer is computed on average, as the windows of blocks overlap; ``inside`` is what is left of the
    leader's axes where it is computed."""
    out: Any = 1.0
    for axis in {a for r in windows.values() for a in r.axes if a in inside}:
        out = out * leader.extents[axis] / inside[axis]
    for axis, r in windows.items():
        out = out * r.width / stage.extents[axis]
    return out
