"""How many streams of memory a stage reads at once.

A core follows several places of memory better than one: each is fetched ahead of its use on its own. Unrolled loops that step
far make streams: several rows of a matrix, or several packed tiles that lie one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Load
from tilewright.graph.traverse import loads
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.steps import Pack
from tilewright.search_space.sketch import Sketch

if TYPE_CHECKING:
    from tilewright.search_space.model import LoopModel

FAR = 1024
"""Bytes from which on two places count as two streams."""


def streams(stage: PStage, phase: Phase, sketch: Sketch, loops: Sequence[LoopModel], n: int) -> NDArray[np.float64]:
    """Streams that the innermost code of ``stage`` reads from outside the phase, for ``n`` candidates."""
    layouts: dict[Load, tuple[str, ...]] = {}
    for step in sketch.template:
        if isinstance(step, Pack) and step.stage == stage.name:
            layouts |= dict.fromkeys(loads(product_factors(stage.body)[step.factor]), step.layout)
    unrolled = [lp for lp in loops if lp.kind == "unroll"]
    most: dict[str, NDArray[np.float64]] = {}
    for load in loads(stage.body):
        if load.tensor in phase.local:
            continue
        count = np.ones(n)
        for lp in unrolled:
            count = count * np.where(_is_far(lp, load, layouts.get(load), stage), lp.trips, 1.0)
        most[load.tensor] = np.maximum(most.get(load.tensor, count), count)
    return np.asarray(sum(most.values(), np.zeros(n)))


def _is_far(loop: LoopModel, load: Load, layout: tuple[str, ...] | None, stage: PStage) -> NDArray[np.bool_]:
    """Whether neighbouring iterations of a loop read places that are far from each other."""
    if layout is not None:
        reduced = {a for a, _ in stage.reduce}
        outside = layout[: next((k for k, name in enumerate(layout) if name.rsplit(".", 1)[0] in reduced), 0)]
        return np.asarray(f"{loop.axis}.{loop.level}" in outside)
    flat = affine(load.index[0])
    stride = abs(flat.coefficient(loop.axis)) if flat is not None else 0
    return stride * loop.cover * SIZES[load.dtype] >= FAR
