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
                span, block = _shared_out(a, phase)
                before, its = written[a.tensor]
                # in step, the border between two threads' parts is off by half a block where the blocks do not come out even
                off = np.maximum(block, its) / np.maximum(2.0 * span, 1.0)
                share = np.where((span == before) & (span > 0.0), np.minimum(off, 1.0), 1.0) * (1.0 - 1.0 / threads)
                total = total + share * a.total * a.nbytes
        for a in phase.stages[-1].accesses:
            if a.store:
                written[a.tensor] = _shared_out(a, phase)
        out.append(total)
    return out


def _shared_out(a: Access, phase: PhaseModel) -> tuple[Any, Any]:
    """How the outermost parallel loop that has iterations for several threads walks a tensor: elements from the beginning of the first
    thread's part to the end of the last one's (its extent times its stride), and of one iteration. 0 where it does not."""
    span: Any = 0.0
    block: Any = 0.0
    found: Any = False
    for lp in phase.stages[-1].loops:
        if lp.kind == "parallel":
            here = ~np.asarray(found) & (lp.trips > 1.0)
            stride = float(a.stride(lp.axis))
            span = np.where(here, stride * phase.stages[-1].extents[lp.axis], span)
            block = np.where(here, stride * lp.cover, block)
            found = found | here
    return span, block
