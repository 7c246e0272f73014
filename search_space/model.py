"""The loop structure of N candidates at once.

Everything that ranks candidates reads this: loop extents, tile sizes and footprints are arrays of shape
``(N,)``, evaluated from the sketch's template. Nothing is built, and nothing is looked at one candidate at
a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.steps import At, Order, Parallel, Prefetch, Split, Spread, Stream, Unroll, Vectorize
from tilewright.search_space.access import Access, Terms, accesses, packed_factors
from tilewright.search_space.arithmetic import Arithmetic
from tilewright.search_space.copies import CopyModel, packed_copies
from tilewright.search_space.overlap import Region, around, left, overlap, regions
from tilewright.search_space.sketch import Ahead, Floats, Open, Sketch, evaluate
from tilewright.search_space.streams import streams


@dataclass(frozen=True, slots=True)
class LoopModel:
    """One loop of a stage, outermost first. ``trips`` is how often it runs on average (a remainder counts
    as a fraction), ``cover`` the elements of the axis one iteration covers."""

    axis: str
    level: int
    kind: str
    trips: Floats
    cover: Floats


@dataclass(frozen=True, slots=True)
class StageModel:
    """One stage: its loops, what it touches, and the arithmetic of one point."""

    name: str
    dtype: str
    extents: Mapping[str, int]
    reduce: frozenset[str]
    reducer: str | None
    loops: tuple[LoopModel, ...]
    accesses: tuple[Access, ...]
    arithmetic: int
    maths: float
    vector: str | None
    lanes: Floats
    spread: Floats
    leader: bool
    stream: bool
    guards: tuple[frozenset[str], ...] = ()
    """Axes of each index comparison evaluated at every point (inlined padding)."""
    streams: Floats | float = 1.0
    """Places of memory that are read at once (:mod:`tilewright.search_space.streams`)."""
    ahead: Floats | float = 0.0
    """Iterations of a loop by which what is read is fetched ahead (0: the hardware decides)."""
    buffered: int = 0
    """Local tensors in memory (not in registers) that are written at every point."""
    near: tuple[Access, ...] = ()
    """What is read of local tensors in memory."""
    overlap: Floats | float = 1.0
    """How often each point is computed on average: more than once where the windows of neighbouring blocks overlap."""

    @property
    def points(self) -> float:
        """Evaluations of the body."""
        return float(np.prod([float(e) for e in self.extents.values()])) if self.extents else 1.0


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """One phase: its stages (leader last), the number of parallel iterations and where each producer is
    attached."""

    stages: tuple[StageModel, ...]
    parallel: Floats
    position: Mapping[str, int]
    copies: tuple[CopyModel, ...]
    """Of factors that are packed on every run."""

    @property
    def pack_bytes(self) -> Floats | float:
        """Bytes packed on every run."""
        return sum((c.nbytes for c in self.copies), 0.0)

    @property
    def pack_strided(self) -> Floats | float:
        """Those of them that are read out of order."""
        return sum((c.nbytes * c.strided for c in self.copies), 0.0)


def phase_model(phase: Phase, sketch: Sketch, values: Mapping[str, NDArray[np.int64]], n: int) -> PhaseModel:
    """The loop model of a phase of the sketch for ``n`` candidates with parameter columns ``values``."""
    ats = {s.stage: s.loop for s in sketch.template if isinstance(s, At)}
    leader = phase.leader
    leader_sizes = _sizes(leader, sketch, values, {}, n)
    leader_order = _order(leader, sketch, leader_sizes, {})
    kinds = _kinds(leader, sketch, {})
    count = next((s.count for s in sketch.template if isinstance(s, Parallel) and s.stage == leader.name), 0)
    for name in leader_order[:count]:
        kinds[name] = "parallel"
    position: dict[str, int] = {}
    stages: list[StageModel] = []
    copies: list[CopyModel] = []
    outer: dict[str, int] = {leader.name: 0}
    for stage in phase.stages:
        if stage is leader:
            stages.append(_stage(stage, phase, sketch, leader_sizes, leader_order, kinds, {}, n))
            continue
        at = ats.get(stage.name, "tile")
        dynamic = [k for k, name in enumerate(leader_order) if kinds.get(name) not in ("vector", "unroll")]
        if at == "root":
            where = 0
        elif at == "tile":
            where = dynamic[-1] + 1 if dynamic else 0
        else:
            where = leader_order.index(at) + 1
        position[stage.name] = where
        spatial = {a for a, _ in stage.axes}
        first = {a: sum(1 for o in leader_order[:where] if o.rsplit(".", 1)[0] == a) for a in spatial}
        sizes = _sizes(stage, sketch, values, {a: s for a, s in leader_sizes.items() if a in spatial}, n)
        own_kinds = _kinds(stage, sketch, {k: v for k, v in kinds.items() if k.rsplit(".", 1)[0] in spatial})
        opened = leader_order[:where]
        inside = left(leader, opened, leader_sizes)
        windows = regions(stage, phase, inside)
        outside = around(opened, windows)
        outer[stage.name] = len(outside)
        order = outside + _order(stage, sketch, sizes, first)
        all_sizes = {**leader_sizes, **sizes}
        all_kinds = {**{o: kinds.get(o, "serial") for o in opened}, **own_kinds}
        costed = _stage(stage, phase, sketch, all_sizes, order, all_kinds, windows, n)
        stages.append(replace(costed, overlap=overlap(leader, inside, stage, windows)))
        copies += packed_copies(stage, sketch, stages[-1].loops)
    parallel: Floats = np.ones(n)
    for loop in stages[-1].loops[:count]:
        parallel = parallel * np.ceil(loop.trips)
    in_memory = _in_memory(phase, stages, outer, position)
    made = {s.name: s for s in phase.stages if s.name in in_memory}
    whole = tuple(
        replace(
            m,
            buffered=int(s.name in made and s.reducer is None),
            near=_near(s, made),
            ahead=_ahead(s, phase, sketch, values, n),
        )
        for s, m in zip(phase.stages, stages, strict=True)
    )
    return PhaseModel(whole, parallel, position, tuple(copies))


def _in_memory(
    phase: Phase, stages: list[StageModel], outer: Mapping[str, int], position: Mapping[str, int]
) -> set[str]:
    """Local tensors that some loop walks, so that they cannot live in registers."""
    out: set[str] = set()
    for made in phase.stages[:-1]:
        axes = {a for a, _ in made.axes}
        for s, m in zip(phase.stages, stages, strict=True):
            if s is not made and not any(load.tensor == made.name for load in loads(s.body)):
                continue
            inside = m.loops[position[made.name] if m.leader else outer[m.name] :]
            if any(lp.axis in axes and lp.kind not in ("vector", "unroll") for lp in inside):
                out.add(made.name)
    return out


def _near(stage: PStage, made: Mapping[str, PStage]) -> tuple[Access, ...]:
    """What a stage reads of local tensors in memory, by dimension."""
    out: dict[tuple[object, ...], Access] = {}
    for load in loads(stage.body):
        if load.tensor not in made:
            continue
        axes = made[load.tensor].axes
        dims: list[tuple[int, Terms]] = []
        for (_, size), index in zip(axes, load.index, strict=True):
            flat = affine(index)
            used = tuple((a, c) for a, c in flat.terms if a in stage.extents) if flat is not None else ()
            dims.append((size, used or tuple((a, 1) for a in sorted(variables(index)))))
        total = math.prod(e for _, e in axes)
        found = Access(load.tensor, SIZES[load.dtype], total, tuple(dims), False, False, False)
        out[found.tensor, found.dims] = found
    return tuple(out.values())


def _sizes(
    stage: PStage, sketch: Sketch, values: Mapping[str, Any], inherited: Mapping[str, list[Floats]], n: int
) -> dict[str, list[Floats]]:
    out = {a: list(inherited.get(a, [])) for a in stage.extents}
    for step in sketch.template:
        if step.stage == stage.name and isinstance(step, (Open, Split)) and not isinstance(step, Ahead):
            sizes = [np.asarray(evaluate(s, values), dtype=np.float64) for s in step.sizes]
            out[step.axis] = [np.broadcast_to(s, (n,)) for s in sizes]
    return out


def _order(stage: PStage, sketch: Sketch, sizes: Mapping[str, list[Floats]], first: Mapping[str, int]) -> list[str]:
    for step in sketch.template:
        if isinstance(step, Order) and step.stage == stage.name:
            return list(step.loops)
    return [f"{a}.{k}" for a, _ in stage.axes + stage.reduce for k in range(first.get(a, 0), len(sizes[a]) + 1)]


def _kinds(stage: PStage, sketch: Sketch, inherited: Mapping[str, str]) -> dict[str, str]:
    out = dict(inherited)
    for step in sketch.template:
        if step.stage == stage.name and isinstance(step, (Vectorize, Unroll)):
            out[step.loop] = "vector" if isinstance(step, Vectorize) else "unroll"
    return out


def _stage(
    stage: PStage,
    phase: Phase,
    sketch: Sketch,
    sizes: Mapping[str, list[Floats]],
    order: list[str],
    kinds: Mapping[str, str],
    windows: Mapping[str, Region],
    n: int,
) -> StageModel:
    extents = {
        **{a: e for a, e in phase.leader.extents.items() if any(o.rsplit(".", 1)[0] == a for o in order)},
        **stage.extents,
    }
    loops: list[LoopModel] = []
    for name in order:
        axis, level = name.rsplit(".", 1)
        k = int(level)
        whole = np.full(n, float(extents[axis]))
        block = np.minimum(windows[axis].width, whole) if axis in windows else whole
        outer = whole if k < 0 else np.minimum(sizes[axis][k - 1], block) if k else block
        cover = block if k < 0 else np.minimum(sizes[axis][k], outer) if k < len(sizes[axis]) else np.ones(n)
        loops.append(LoopModel(axis, k, kinds.get(name, "serial"), outer / cover, cover))
    vector = next((lp for lp in loops if lp.kind == "vector"), None)
    spread: Floats = np.ones(n)
    for step in sketch.template:
        if isinstance(step, Spread) and step.stage == stage.name:
            axis, level = step.loop.rsplit(".", 1)
            for lp in loops:
                if lp.axis == axis and lp.level == int(level):
                    spread = spread * lp.trips
    unrolled = frozenset(lp.axis for lp in loops if lp.kind == "unroll") - {
        lp.axis for lp in loops if lp.kind != "unroll"
    }
    arithmetic, maths, guards = Arithmetic(unrolled, packed_factors(stage, sketch)).of(stage.body, stage.reducer)
    stream = any(isinstance(s, Stream) and s.stage == stage.name for s in sketch.template)
    return StageModel(
        stage.name,
        stage.body.dtype,
        extents,
        frozenset(a for a, _ in stage.reduce),
        stage.reducer,
        tuple(loops),
        tuple(accesses(stage, phase, sketch)),
        arithmetic,
        maths,
        vector.axis if vector is not None else None,
        vector.trips if vector is not None else np.ones(n),
        spread,
        stage is phase.leader,
        stream,
        guards,
        streams(stage, phase, sketch, loops, n),
    )


def _ahead(stage: PStage, phase: Phase, sketch: Sketch, values: Mapping[str, NDArray[np.int64]], n: int) -> Floats:
    """The longest distance of the ``prefetch`` steps of the stages that read what a stage reads from memory."""
    read = {s.name: {e.tensor for e in loads(s.body)} - phase.local for s in phase.stages}
    out: Floats = np.zeros(n)
    for step in sketch.template:
        if not isinstance(step, (Ahead, Prefetch)) or not read.get(step.stage, set()) & read[stage.name]:
            continue
        out = np.maximum(out, evaluate(step.sizes[0], values) if isinstance(step, Ahead) else step.distance)
    return out
