"""The analytic prior: how long a candidate would take, before anything was measured.

A roofline over one core's units and the cache levels, for each stage; stages and phases add up. It is made
to order candidates. Its unit is nanoseconds at an assumed clock; the learned model finds the factor of the
machine at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model.analysis import Analysis, StageCost, analyses
from tilewright.cost_model.sharing import foreign_bytes
from tilewright.search_space.sketch import Sketch

Floats = NDArray[np.float64]

CLOCK_GHZ = 3.0
BYTES_PER_CYCLE = (64.0, 32.0, 7.0)
"""What one core gets from L2, from L3 and from memory where it reads on and on."""
RUN_BYTES = 192.0
"""What each place costs that is begun to be read or written at one after the other, in bytes that would pass meanwhile: what would
be fetched ahead is not known yet, and in memory another row of a bank has to be opened."""
SCATTERED = (13.0, 4.5, 3.0)
"""The same where lines are evicted early, from crowded cache sets."""
ONE_STREAM, MORE_STREAMS = 0.67, 0.11
"""Share of the bandwidth of memory that a core gets while it reads at one place, and what each further place adds."""
OVERLAP = 0.8
"""Share of a transfer that hides behind what takes longest."""
OVERLAP_AHEAD = 0.9
"""The same of what the program fetches ahead."""
REGION_NS = 2000.0
"""Starting and joining a parallel region."""
HANDED_BYTES_PER_CYCLE = 32.0
"""Writing a buffer and reading it back: the stage that writes it waits for memory, and so does the one that reads it, but not at
the same time."""
PHASE_NS = 50.0
PIECE_CYCLES = 8.0
"""Finding the index of each but the outermost of the fused parallel loops, once an iteration."""
PACK_CYCLES_PER_BYTE = (1 / 12.0, 1 / 3.0)
"""Copying a factor in order, and out of order."""
SHARED_CYCLES_PER_BYTE = 0.2
"""Reading what other cores have just written, lines that lie changed in their caches: 1 MB packed before all loops took 30
microseconds more than the copy itself at 2 threads, 4 MB 290."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Nanoseconds by cause; they add up to ``total``."""

    compute: Floats
    memory: Floats
    parallel: Floats
    packing: Floats

    @property
    def total(self) -> Floats:
        """The prior."""
        return self.compute + self.memory + self.parallel + self.packing


def prior_ns(sketch: Sketch, rows: NDArray[np.int64]) -> Floats:
    """Estimated nanoseconds of candidates ``rows`` (N, P) of a sketch: positive and finite."""
    out = np.empty(len(rows))
    for part, a in analyses(sketch, rows):
        out[part] = estimate(a).total
    return out


def estimate(a: Analysis) -> Estimate:
    """The prior of analysed candidates, by cause."""
    zero = np.zeros(a.n)
    compute, memory, parallel, packing = zero, zero, zero, zero
    foreign = foreign_bytes((p.model for p in a.phases), a.target.threads)
    for p, others in zip(a.phases, foreign, strict=True):
        memory = memory + others * SHARED_CYCLES_PER_BYTE / CLOCK_GHZ / a.target.threads
        for s in p.stages:
            cycles = s.tile.cycles
            moved = transfer_cycles(s)
            slowest = np.maximum(cycles, np.max(moved, axis=0))
            overlap = np.where(np.asarray(s.model.ahead) > 0.0, OVERLAP_AHEAD, OVERLAP)
            both = slowest + (1.0 - overlap) * (cycles + np.sum(moved, axis=0) - slowest)
            both = both + s.handed / HANDED_BYTES_PER_CYCLE
            compute = compute + cycles * p.share / CLOCK_GHZ
            memory = memory + (both - cycles) * p.share / CLOCK_GHZ
        regions = float(p.threads > 1)
        pieces = p.model.parallel * p.share * (PIECE_CYCLES * np.maximum(p.loops - 1.0, 0.0)) / CLOCK_GHZ
        parallel = parallel + np.where(p.model.parallel > 1, REGION_NS * regions, 0.0) + PHASE_NS + pieces
        for copy in p.model.copies:
            ordered, strided = PACK_CYCLES_PER_BYTE
            cycles = copy.nbytes * (ordered + copy.strided * (strided - ordered))
            if not copy.region:
                packing = packing + cycles * p.share / CLOCK_GHZ
            elif a.target.threads == 1:
                packing = packing + cycles / CLOCK_GHZ
            else:
                cycles = cycles + copy.nbytes * SHARED_CYCLES_PER_BYTE
                packing = packing + cycles / CLOCK_GHZ / a.target.threads + REGION_NS
    return Estimate(compute, memory, parallel, packing)


def transfer_cycles(s: StageCost) -> list[Floats]:
    """Cycles in which the bytes of each level would pass."""
    out = []
    for moved, scattered, runs, fast, slow in zip(
        s.traffic, s.scattered, s.runs, BYTES_PER_CYCLE, SCATTERED, strict=True
    ):
        out.append((moved + runs * RUN_BYTES) / fast + scattered * (1 / slow - 1 / fast))
    share = np.clip(ONE_STREAM + MORE_STREAMS * (s.model.streams - 1.0), ONE_STREAM, 1.0)
    out[-1] = out[-1] / np.where(np.asarray(s.model.streams) > 0.0, share, 1.0)  # stores alone are not fetched ahead
    return out
