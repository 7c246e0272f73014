"""The rfactor rule: a long reduction to few outputs, done in parts that threads share (split-K).

Where there are fewer register tiles of outputs than it takes to keep the threads busy, the loops over outputs are no place to be
parallel. The reduction is cut into parts along one of its axes; a part has the same form as the whole, so its loops are those of the
tile and dot rules, with one more parallel axis. What reduces the parts, with the epilogue, is small, and its steps are fixed.

It looks at extents and at what reads of a factor have in common, not at operators: sums over everything, products with a small result,
matrices with few rows all come out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.stage import Axes, Stage
from tilewright.graph.traverse import loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.rewrites import resolve_views
from tilewright.schedules.rfactor import PART, REST, SUM
from tilewright.schedules.steps import (
    At,
    Inline,
    Order,
    Parallel,
    RFactor,
    Schedule,
    ScheduleError,
    Split,
    Spread,
    Step,
    Unroll,
    Vectorize,
)
from tilewright.schedules.target import Target
from tilewright.search_space.prologue import Plan, plan, worth_threads
from tilewright.search_space.sketch import Sketch
from tilewright.search_space.tile_rule import sketches_of_phase

PARTS = (8, 4, 2, 1)
"""Parts for each thread: the most that fit, as small ones even out how far threads are and stay in a cache."""
REUSED = 4
"""Uses of each element from which on a reduction is bound by arithmetic."""
TILES = 4
"""Register tiles of outputs, or vectors where nothing is reused, for each thread up to which parts may pay."""
LONG_TILES = 64
"""Register tiles up to which they may pay where what one reads does not fit the second cache: what a tile of a part reads does."""
ROWS = 6
"""Rows of a usual register tile."""
SHORTEST = 64
"""Values of a part below which storing what it gives costs too much."""
MOST_LEFT = 32
"""The rest that parts leave is reduced by fixed steps: it is less than this part of the whole."""
WORTH_THREADS = 50_000
"""Points of the last stages from which on a parallel region pays."""


def rfactor_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with exactly one reduction, long and to few outputs; none for any other."""
    p = plan(workload)
    if len(p.reductions) != 1 or not worth_threads(workload, target):
        return []
    whole = next(s for s in resolve_views(workload) if s.output == p.reductions[0])
    if not _few_outputs(whole, target):
        return []
    for parts in PARTS:
        step = _step(whole, parts * target.threads, target)
        if step is not None:
            return _in_parts(workload, target, p, whole, step)
    return []


def _few_outputs(s: Stage, target: Target) -> bool:
    """Whether there are too few outputs for the threads, or for what they read to stay in a cache."""
    if s.body.dtype == "bool" and s.reducer not in ("max", "min"):
        return False
    outputs = prod(e for _, e in s.axes)
    width = 2 * (target.lanes(s.body.dtype) if s.body.dtype != "bool" else 8)
    if not _reused(s):
        return outputs <= TILES * target.threads * width
    walked = prod(e for _, e in s.reduce) * (ROWS + width) * SIZES[s.body.dtype]
    most = LONG_TILES if walked > target.l2_bytes else TILES * target.threads
    return outputs <= most * ROWS * width


def _reused(s: Stage) -> bool:
    """Whether each element that is read is used several times."""
    every = prod(s.extents.values())
    return all(every >= REUSED * prod(s.extents[a] for a in variables(f)) for f in product_factors(s.body) if loads(f))


def _step(s: Stage, parts: int, target: Target) -> RFactor | None:
    """The outermost axis that falls into so many parts, or some more for each thread, with little left over."""
    points = prod(e for _, e in s.reduce)
    line = target.line_bytes // SIZES[s.body.dtype]
    reused = _reused(s)
    for axis, extent in s.reduce:
        found = []
        for count in range(parts, 2 * parts, target.threads):
            size = extent // count
            if size >= SHORTEST * line:
                size -= size % line
                # parts that are read at once do not start in the same sets of the caches
                size -= line if not reused and size // line % 2 == 0 else 0
            if size and size * (points // extent) >= SHORTEST:
                found.append((extent - count * size, count, size))
        if found and min(found)[0] * MOST_LEFT <= extent:
            size = min(found)[2]
            return RFactor(s.output, axis, size)
    return None


def _in_parts(workload: Workload, target: Target, p: Plan, whole: Stage, step: RFactor) -> list[Sketch]:
    for base in _decisions(p, whole, step):
        try:
            found = phases(workload, Schedule(tuple(base)))
        except ScheduleError:
            continue
        part = next(ph for ph in found if ph.leader.name == whole.output + PART)
        main, others = part.leader, [ph for ph in found if ph is not part]
        for ph in others:
            if len(ph.stages) > 1:
                base += _last(ph, target)
        along = main.axes[0][0]
        count = dict(whole.reduce)[step.axis] // step.size
        return [
            replace(s, name=f"parts{count}:{s.name}")
            for s in sketches_of_phase(workload, target, part, others, base)
            if _parts_outside(s, main.name, along)
        ]
    return []


def _decisions(p: Plan, whole: Stage, step: RFactor) -> Iterator[list[Step]]:
    """What is inlined and attached: the parts are reduced inside the leader, or, where it does not walk them in step, before it."""
    name = whole.output
    base: list[Step] = [step, *p.steps()]
    halves = (name + SUM, name + REST) if dict(whole.reduce)[step.axis] % step.size else ()
    if p.leader is not None:
        yield (
            [*base, Inline(name), *(At(s, p.leader, "tile") for s in halves)]
            if halves
            else [*base, At(name, p.leader, "tile")]
        )
    yield [*base, *(At(s, name, "tile") for s in halves)]


def _parts_outside(s: Sketch, stage: str, along: str) -> bool:
    """Whether no vector goes across parts, and no register tile covers several besides outputs that share what they read."""
    steps = [x for x in s.template if isinstance(x, (Vectorize, Unroll)) and x.stage == stage]
    across = [x for x in steps if _axis(x.loop) == along]
    return not across or (isinstance(across[0], Unroll) and sum(isinstance(x, Unroll) for x in steps) == 1)


def _axis(loop: str) -> str:
    return loop.rsplit(".", 1)[0]


def _last(phase: Phase, target: Target) -> list[Step]:
    """Fixed steps of the phase that reduces the parts: vectors along the outputs or, where there are too few, along the rest."""
    leader = phase.leader
    steps: list[Step] = []
    lanes = target.lanes(leader.body.dtype) if leader.body.dtype != "bool" else 8
    static: list[str] = []
    if leader.axes and leader.axes[-1][1] >= lanes:
        axis, extent = leader.axes[-1]
        static = [f"{axis}.1"]
        steps += [Split(leader.name, axis, (min(2 * lanes, extent),)), Vectorize(leader.name, static[0])]
    points = sum(prod(s.extents.values()) for s in phase.stages)
    if leader.axes and points >= WORTH_THREADS:
        steps.append(Parallel(leader.name, len(leader.axes)))
    for s in phase.stages[:-1]:
        if static and _walks(s, leader.axes):
            steps.append(Order(s.name, (*(f"{a}.0" for a, _ in s.reduce), *static)))
        elif s.reduce and not static:
            steps += _along(s, lanes)
    return steps


def _walks(s: PStage, axes: Axes) -> bool:
    return s.reducer is not None and axes[-1][0] in dict(s.axes)


def _along(s: PStage, lanes: int) -> list[Step]:
    """Vectors along the last axis of a reduction, if it is long enough and read in order."""
    axis, extent = s.reduce[-1]
    steps = [a.coefficient(axis) for load in loads(s.body) if (a := affine(load.index[-1])) is not None]
    if extent < 4 * lanes or 1 not in steps:
        return []
    return [
        Split(s.name, axis, (4 * lanes, lanes)),
        Unroll(s.name, f"{axis}.1"),
        Spread(s.name, f"{axis}.1"),
        Vectorize(s.name, f"{axis}.2"),
    ]
