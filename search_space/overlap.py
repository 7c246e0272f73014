"""How much of a producer that its readers look at through windows is computed for each block, on arrays of candidates.

The same bounds as :mod:`tilewright.schedules.region` puts into the loop program, without positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
