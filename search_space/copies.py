"""Factors of products that are copied on every run, and what that moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph.affine import Affine, affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.factors import product_factors
from tilewright.schedules.packing import ROOT, SHORT
from tilewright.schedules.phase import PStage
from tilewright.schedules.steps import Pack
from tilewright.search_space.sketch import Floats, Sketch

if TYPE_CHECKING:
    from tilewright.search_space.model import LoopModel


@dataclass(frozen=True, slots=True)
class CopyModel:
    """A factor that is packed on every run."""

    nbytes: Floats
    """Bytes, as often as they are packed."""
    strided: Floats | float
    """The share of them that is read out of order."""
    region: bool
    """Whether all threads pack it before the loops, in a parallel region of its own; else each thread packs what it needs."""


def packed_copies(stage: PStage, sketch: Sketch, loops: tuple[LoopModel, ...]) -> list[CopyModel]:
    """The factors of a stage, in ``loops``, that are packed on every run."""
    out: list[CopyModel] = []
    constants = {k for k, _, c in sketch.workload.inputs if c}
    for step in sketch.template:
        if not isinstance(step, Pack) or step.stage != stage.name:
            continue
        factor = product_factors(stage.body)[step.factor]
        if {load.tensor for load in loads(factor)} <= constants:
            continue
        used = variables(factor)
        nbytes: Any = float(np.prod([stage.extents[a] for a in used])) * SIZES[factor.dtype]
        for lp in loops if step.loop != ROOT else ():
            nbytes = nbytes * (lp.trips if lp.axis not in used else 1.0)
            if f"{lp.axis}.{lp.level}" == step.loop:
                break
        flat = [affine(x.index[0]) for x in loads(factor)]
        out.append(CopyModel(nbytes, _out_of_order(step, flat, loops), step.loop == ROOT))
    return out


def _out_of_order(step: Pack, flat: list[Affine | None], loops: tuple[LoopModel, ...]) -> Any:
    """The share of a copy, all or nothing, whose innermost loop does not read neighbours, and whose tiles are not transposed in
    registers."""

    def along(loop: str) -> bool:
        axis = loop.rsplit(".", 1)[0]
        return all(a is not None and a.coefficient(axis) == 1 for a in flat)

    if along(step.layout[-1]):
        return 0.0
    inner = step.layout[-2:-1]
    near = next((lp for lp in loops if (f"{lp.axis}.{lp.level}",) == inner), None)
    if near is None or near.level == 0 or not along(*inner):
        return 1.0
    return np.where((near.trips > 1.0) & (near.trips <= SHORT), 0.0, 1.0)
