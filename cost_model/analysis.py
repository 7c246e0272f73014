"""What the candidates of a sketch do to a core: cycles by cause and bytes by cache level, on arrays of
candidates.

Features and the prior read one :class:`Analysis`, so nothing is computed twice. Each stage is looked at on
its own, in two parts:

- *the innermost tile* (:mod:`tilewright.cost_model.tile`): what the straight-line code inside the loops
  costs;
- *the loops around it*: working sets at every depth. Of the cache levels, each keeps the outermost depth
  whose working set fits; what is outside that depth fetches the footprint again, except that a loop that
  does not index a tensor finds it there.

All of it is an approximation whose job is to *order* candidates; the learned model corrects what is
systematically wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model.body import transposed
from tilewright.cost_model.tile import TileCost, tile_cost
from tilewright.cost_model.traffic import FITS, OPEN_PLACES, WAYS, Foot, footprint, run_bytes, traffic
from tilewright.graph.stage import TensorType
from tilewright.graph.traverse import loads
from tilewright.schedules.phase import Phase
from tilewright.schedules.steps import Step
from tilewright.schedules.target import Target
from tilewright.schedules.write_stores import STREAM_BYTES
from tilewright.search_space.access import Access
from tilewright.search_space.model import PhaseModel, StageModel, phase_model
from tilewright.search_space.sketch import Sketch

Floats = NDArray[np.float64]

CHUNK = 8192
"""Candidates looked at together: their arrays stay in the caches."""
LEVELS = 3
"""L1, L2, and the last level (L3 where there is one)."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage: its model, its innermost tile, and what its loops move."""

    model: StageModel
    tile: TileCost
    traffic: tuple[Floats, ...]
    """Bytes fetched into L1, into L2 and into the last level."""
    scattered: tuple[Floats, ...]
    """The part of them that is fetched again and again because strides crowd it into few cache sets."""
    runs: tuple[Floats, ...]
    """Places from which neighbours are fetched one after the other: into L2 of what is read once to be
    reduced (a transpose reads many places at once, and waits for none), and into the last level."""
    handed: Floats
    """Bytes that pass through buffers in memory: written by one stage, read by the next."""
    working_set: tuple[Floats, ...]
    """Bytes of the innermost loop's data, of the loop around it, and of everything."""
    pages: Floats
    """Pages touched by the two innermost loops."""
    conflict: Floats
    """By how much power-of-two strides inflate what the two innermost loops take of L1 (at least 1)."""
    line_use: Floats
    """Used share of the cache lines touched by the two innermost loops."""


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """One phase: stages, and the share of the work that the busiest thread has."""

    model: PhaseModel
    stages: tuple[StageCost, ...]
    share: Floats
    threads: int
    """Threads that the phase can use at all."""
    loops: Floats | float
    """Parallel loops of more than one iteration, fused into one."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """All phases of ``n`` candidates of one sketch."""

    sketch: Sketch
    n: int
    phases: tuple[PhaseCost, ...]

    @property
    def target(self) -> Target:
        """The machine the sketch is for."""
        return self.sketch.target

    @property
    def code(self) -> Floats:
        """Operations of all the straight-line code of a candidate."""
        return sum((s.tile.code for p in self.phases for s in p.stages), np.zeros(self.n))

    def main(self) -> StageCost:
        """The stage with most work."""
        return max(
            (s for p in self.phases for s in p.stages),
            key=lambda s: s.model.points * (s.model.arithmetic + s.model.maths),
        )


def analyse(sketch: Sketch, rows: NDArray[np.int64]) -> Analysis:
    """Analyse candidates ``rows`` (N, P) of a sketch. The arrays of a phase have one element for each candidate, or a single one where
    nothing of it is searched."""
    values = sketch.columns(rows)
    return Analysis(sketch, len(rows), tuple(_phase(p, sketch, values, len(rows)) for p in sketch.structure))


def analyses(sketch: Sketch, rows: NDArray[np.int64]) -> Iterator[tuple[slice, Analysis]]:
    """Analyse any number of candidates, ``CHUNK`` at a time."""
    for start in range(0, len(rows), CHUNK):
        part = slice(start, min(start + CHUNK, len(rows)))
        yield part, analyse(sketch, rows[part])


def capacities(target: Target) -> tuple[float, float, float]:
    """Bytes that fit each cache level; a level a machine does not have is as large as the one before it."""
    l1 = float(target.l1d_bytes)
    l2 = float(target.l2_bytes) or l1
    return l1, l2, float(target.l3_bytes) or l2


def _phase(phase: Phase, sketch: Sketch, values: Mapping[str, NDArray[np.int64]], n: int) -> PhaseCost:
    names = {s.name for s in phase.stages}
    steps = tuple(s for s in sketch.template if s.stage in names)
    fixed = tuple(s for s in steps if isinstance(s, Step))
    if len(fixed) < len(steps):
        return _cost(phase_model(phase, sketch, values, n), sketch.target, n)
    seen = names | {load.tensor for s in phase.stages for load in loads(s.body)}
    types = tuple((name, kind) for name, kind in sketch.types.items() if name in seen)
    return _fixed(_Fixed(phase, sketch.workload.hash, types, fixed, sketch.target, sketch))


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What the cost of a phase depends on of which nothing is searched: many sketches of a workload have it in common."""

    phase: Phase
    workload_hash: str
    types: tuple[tuple[str, TensorType], ...]
    steps: tuple[Step, ...]
    target: Target
    sketch: Sketch = field(compare=False)


@lru_cache(maxsize=256)
def _fixed(of: _Fixed) -> PhaseCost:
    return _cost(phase_model(of.phase, of.sketch, {}, 1), of.target, 1)


def _cost(phase: PhaseModel, target: Target, n: int) -> PhaseCost:
    leader = phase.stages[-1]
    loops = [lp for lp in leader.loops if lp.kind == "parallel"]
    work: Any = 1.0
    whole: Any = 1.0
    for lp in loops:
        work, whole = work * lp.trips, whole * np.floor(lp.trips)
    threads = target.threads if loops else 1
    # whole pieces are claimed one by one; those of remainders are shorter, and leave threads about half a piece apart
    even = np.maximum(np.ceil(whole / threads), work / threads + (1.0 - 1.0 / threads) / 2.0)
    share = np.minimum(np.minimum(np.ceil(phase.parallel / threads), even) / np.maximum(work, 1e-9), 1.0)
    shared = np.full(n, 1.0) if threads == 1 else np.broadcast_to(share, (n,)).astype(np.float64)
    moved = {a.tensor: a.total * a.nbytes for s in phase.stages for a in s.accesses}
    everything = sum(moved.values()) if not any(s.reduce for s in phase.stages) else None
    stages: list[StageCost] = []
    seen: dict[str, int] = {}
    for s in phase.stages:
        depth = phase.position.get(s.name, 0)
        again = {a.tensor for a in s.accesses if a.tensor in seen and not a.store}
        stages.append(_stage(s, target, n, again, min([depth, *(seen[t] for t in again)]), everything))
        for a in s.accesses:
            seen.setdefault(a.tensor, depth)
    walked = sum(((lp.trips > 1.0).astype(np.float64) for lp in loops), np.zeros(n))
    return PhaseCost(phase, tuple(stages), shared, threads, walked)


def _stage(s: StageModel, target: Target, n: int, again: set[str], depth: int, everything: int | None) -> StageCost:
    """``again``: tensors that an earlier stage of the phase has just read in the same ``depth`` outer
    loops; ``everything``: bytes that the phase touches, if it has no reduction, whose operands would pass through the caches
    between one touch and the next."""
    dynamic = [lp for lp in s.loops if lp.kind in ("serial", "parallel")]
    spans = _spans(s)
    feet = [[footprint(a, span, target) for span in spans] for a in s.accesses]
    deep = len(dynamic)
    outside: list[Any] = [1.0]
    for lp in dynamic:
        outside.append(outside[-1] * lp.trips)
    zero = np.zeros(n)
    starts: list[Floats] = []
    moved: list[Floats] = []
    scattered: list[Floats] = []
    sets: list[Floats] = []
    for level, limit in enumerate(capacities(target)):
        used = [sum((f[d].occupied[level] for f in feet), zero) for d in range(deep + 1)]
        fits = [u <= FITS * limit for u in used]
        if level == LEVELS - 1 and everything is not None:
            fits[0] = fits[0] & (everything <= FITS * limit)
        total, sparse, runs = zero, zero, zero
        for a, f in zip(s.accesses, feet, strict=True):
            times = _times(a, again, fits, depth, level == LEVELS - 1, s.stream and _whole(a, s, spans[-1]))
            bytes_, part = traffic(f, level, fits, outside, _touches(a, s, spans[-1]) * target.line_bytes, a.store)
            once = _once(a, s)
            if everything is not None and once:  # a line that is used whole before others crowd it out is not missed
                part = np.where(run_bytes(a, s.loops, WAYS) < target.line_bytes, part, 0.0)
            elif s.reduce and not a.store:
                part = np.where(_ahead(a, s, f[max(deep - 1, 0)], target.line_bytes), 0.0, part)
            total, sparse = total + bytes_ * times, sparse + part * times
            if level == LEVELS - 1 or (level and once and s.reduce):
                run = np.maximum(run_bytes(a, s.loops, OPEN_PLACES), float(target.line_bytes))
                runs = runs + np.where(fits[0], 0.0, bytes_ * times / run)
        moved.append(total)
        scattered.append(sparse)
        starts.append(runs)
        sets = sets or used
    near = max(deep - 2, 0)
    lines = sum((f[near].moved for f in feet), zero)
    return StageCost(
        s,
        tile_cost(s, target, n).times(s.overlap),
        tuple(m * s.overlap for m in moved),
        tuple(m * s.overlap for m in scattered),
        tuple(m * s.overlap for m in starts),
        zero if everything is None else zero + sum(2.0 * s.points * a.nbytes for a in s.near),
        (sets[max(deep - 1, 0)], sets[near], sets[0]),
        sum((f[near].pages for f in feet), zero),
        np.maximum(sets[near], 1.0) / np.maximum(lines, 1.0),
        np.minimum(sum((f[near].used for f in feet), zero) / np.maximum(lines, 1.0), 1.0) if feet else np.ones(n),
    )


def _times(a: Access, again: set[str], fits: list[NDArray[np.bool_]], depth: int, last: bool, stream: Any) -> Any:
    """A store fetches its line and writes it back, unless it bypasses the caches; what was just read is
    still there if it fits, and so is in the last level what the run or the kernel before has touched."""
    once: Any = 2.0 if a.store else 1.0
    if a.tensor in again:
        once = np.where(fits[min(depth, len(fits) - 1)], 0.0, once)
    once = np.where(fits[0], 0.0, once) if last else once
    return np.where(stream, 1.0 if last else 0.0, once) if a.store else once


def _once(a: Access, s: StageModel) -> bool:
    """Whether each element is touched just once."""
    return {x for x, e in s.extents.items() if e > 1} <= a.axes()


def _ahead(a: Access, s: StageModel, foot: Foot, line: int) -> Any:
    """Whether crowded sets do not matter: whole lines are used at once and, as there are others in their pages, fetched ahead."""
    run = run_bytes(a, s.loops, WAYS)
    return (run >= line) & (np.mod(run, line) == 0) & (foot.moved >= 2.0 * line * foot.pages)


def _whole(a: Access, s: StageModel, span: Mapping[str, Any]) -> Any:
    """Whether a store is of whole vectors at aligned places, which may pass the caches."""
    row = a.dims[-1][0] if len(a.dims) > 1 else 0
    if a.stride(s.vector or "") == 1:
        return row * a.nbytes % STREAM_BYTES == 0
    turned = transposed(a, s, span)
    return False if turned is None else row % turned == 0


def _touches(a: Access, s: StageModel, span: Mapping[str, Any]) -> Any:
    """Memory operations of an access in the innermost tile that go to different places, where it is walked
    lane by lane."""
    if a.packed or s.vector is None or a.stride(s.vector) in (0, 1) or transposed(a, s, span) is not None:
        return 0.0
    out: Any = 1.0
    for axis in a.axes():
        out = out * span.get(axis, 1.0)
    return out


def _spans(s: StageModel) -> list[Mapping[str, Any]]:
    """Values each axis covers inside the first ``d`` loops that stay loops, for d = 0 (everything) to all
    of them."""
    span: dict[str, Any] = {}
    for lp in s.loops:
        if lp.kind not in ("serial", "parallel"):
            span[lp.axis] = span.get(lp.axis, 1.0) * lp.trips
    out: list[Mapping[str, Any]] = [dict(span)]
    for lp in reversed(s.loops):
        if lp.kind in ("serial", "parallel"):
            span[lp.axis] = span.get(lp.axis, 1.0) * lp.trips
            out.append(dict(span))
    return out[::-1]
