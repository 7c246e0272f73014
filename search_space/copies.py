"""Factors of products that are copied on every run, and what that moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.factors import product_factors
from tilewright.schedules.packing import ROOT
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
    strided: bool
    """Whether they are read out of order."""
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
        last = step.layout[-1].rsplit(".", 1)[0]
        strided = any(a is None or a.coefficient(last) != 1 for a in (affine(x.index[0]) for x in loads(factor)))
        out.append(CopyModel(nbytes, strided, step.loop == ROOT))
    return out
