"""What a phase reads that other threads have written: bytes that pass from core to core.

Threads take shares of a parallel loop in order, the first share the first iterations, so two phases that walk a tensor along the
same axis, outermost of their parallel loops, give each thread the part that it has written itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.search_space.access import Access
from tilewright.search_space.model import PhaseModel

Floats = NDArray[np.float64]


def foreign_bytes(phases: Iterable[PhaseModel], threads: int) -> list[Floats | float]:
    """For each phase, the bytes it reads of what other threads have written in phases before it."""
    written: dict[str, Any] = {}
    out: list[Floats | float] = []
    for phase in phases:
        total: Any = 0.0
        seen: set[str] = set()
        for stage in phase.stages:
            for a in stage.accesses:
                if a.store or a.tensor in seen or a.tensor not in written:
                    continue
                seen.add(a.tensor)
                apart = _span(a, phase) != written[a.tensor]
                total = total + np.where(apart, a.total * a.nbytes * (1.0 - 1.0 / threads), 0.0)
        for a in phase.stages[-1].accesses:
            if a.store:
                written[a.tensor] = _span(a, phase)
        out.append(total)
    return out


def _span(a: Access, phase: PhaseModel) -> Any:
    """Elements of a tensor from the beginning of the first thread's part to the end of the last one's: the extent of the outermost
    parallel loop that has iterations for several threads, times its stride. 0 where that loop does not walk the tensor."""
    span: Any = 0.0
    found: Any = False
    for lp in phase.stages[-1].loops:
        if lp.kind == "parallel":
            here = ~np.asarray(found) & (lp.trips > 1.0)
            extent = phase.stages[-1].extents[lp.axis]
            span = np.where(here, float(a.stride(lp.axis) * extent), span)
            found = found | here
    return span
