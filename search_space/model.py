"""The loop structure of N candidates at once.

Everything that ranks candidates reads this: loop extents, tile sizes and footprints are arrays of shape ``(N,)``, evaluated from
the sketch's template. Nothing is built, and nothing is looked at one candidate at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import FLOATS, SIZES
from tilewright.graph.expr import MATHS, Expr, Load, Op, loads, variables, walk
from tilewright.graph.stage import TensorType
from tilewright.schedules.apply import product_factors
from tilewright.schedules.phases import Phase, PStage
from tilewright.schedules.steps import At, Order, Pack, Parallel, Spread, Stream, Unroll, Vectorize
from tilewright.search_space.sketch import Open, Sketch, evaluate

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoopModel:
    """One loop of a stage, outermost first. ``trips`` is how often it runs on average (a remainder counts as a fraction),
    ``cover`` the elements of the axis one iteration covers."""

    axis: str
    level: int
    kind: str
    trips: Floats
    cover: Floats


@dataclass(frozen=True, slots=True)
class Access:
    """One tensor a stage reads or writes. ``dims`` are, for each dimension of the tensor, its size and the axes it is walked by
    with their coefficients, outermost first; ``packed`` says the access goes to a packed copy (contiguous)."""

    tensor: str
    nbytes: int
    total: int
    dims: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    store: bool
    packed: bool
    constant: bool
    indirect: bool

    def axes(self) -> set[str]:
        """Axes the address depends on."""
        return {a for _, terms in self.dims for a, _ in terms}

    def stride(self, axis: str) -> int:
        """Elements between neighbours along ``axis``."""
        inner = 1
        out = 0
        for size, terms in reversed(self.dims):
            for a, c in terms:
                if a == axis:
                    out += c * inner
            inner *= size
        return out

    def footprint(self, span: Mapping[str, Any]) -> Any:
        """Elements touched while each axis ``a`` covers ``span[a]`` values."""
        out: Any = 1.0
        for size, terms in self.dims:
            extent: Any = 1.0
            for a, c in terms:
                extent = extent + abs(c) * (span.get(a, 1.0) - 1.0)
            out = out * (np.minimum(extent, size) if len(self.dims) > 1 else extent)
        return np.minimum(out, self.total)

    def lines(self, span: Mapping[str, Any], line: int) -> Any:
        """Cache lines touched: rows of the innermost dimension are rounded up to whole lines, unless the copy is packed."""
        elements = self.footprint(span)
        if self.packed or not self.dims:
            return np.ceil(elements * self.nbytes / line)
        inner: Any = 1.0
        for a, c in self.dims[-1][1]:
            inner = inner + abs(c) * (span.get(a, 1.0) - 1.0)
        inner = np.minimum(inner, self.dims[-1][0])
        row = np.maximum(np.ceil(inner * self.nbytes / line), 1.0)
        sparse = np.minimum(row, inner)
        return elements / np.maximum(inner, 1.0) * sparse


@dataclass(frozen=True, slots=True)
class StageModel:
    """One stage: its loops, what it touches, and the arithmetic of one point."""

    name: str
    extents: Mapping[str, int]
    reduce: frozenset[str]
    loops: tuple[LoopModel, ...]
    accesses: tuple[Access, ...]
    arithmetic: int
    maths: float
    vector: str | None
    lanes: Floats
    spread: Floats
    leader: bool
    stream: bool

    @property
    def points(self) -> float:
        """Evaluations of the body."""
        return float(np.prod([float(e) for e in self.extents.values()])) if self.extents else 1.0


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """One phase: its stages (leader last), the number of parallel iterations and where each producer is attached."""

    stages: tuple[StageModel, ...]
    parallel: Floats
    position: Mapping[str, int]
    pack_bytes: float


#: Rough cost of a maths function, in fused multiply-adds of the same vector width.
MATHS_COST = {"exp": 12, "tanh": 16, "sigmoid": 18, "erf": 26, "log": 24, "sqrt": 8, "rsqrt": 12, "pow": 90, "sin": 70, "cos": 70}


def model(sketch: Sketch, rows: NDArray[np.int64]) -> list[PhaseModel]:
    """The loop model of every phase for candidates ``rows`` (N, P)."""
    values = sketch.columns(rows)
    return [_phase(p, sketch, values, len(rows)) for p in sketch.structure()]


def _phase(phase: Phase, sketch: Sketch, values: Mapping[str, NDArray[np.int64]], n: int) -> PhaseModel:
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
    pack_bytes = 0.0
    for stage in phase.stages:
        if stage is leader:
            stages.append(_stage(stage, phase, sketch, leader_sizes, leader_order, kinds, n, True))
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
        outside = [o for o in leader_order[:where] if o.rsplit(".", 1)[0] in leader_sizes]
        order = outside + _order(stage, sketch, sizes, first)
        all_sizes = {**leader_sizes, **sizes}
        all_kinds = {**{o: kinds.get(o, "serial") for o in outside}, **own_kinds}
        stages.append(_stage(stage, phase, sketch, all_sizes, order, all_kinds, n, False))
        for step in sketch.template:
            if isinstance(step, Pack) and step.stage == stage.name:
                factor = product_factors(stage.body)[step.factor]
                if not {load.tensor for load in loads(factor)} <= {k for k, _, c in sketch.workload.inputs if c}:
                    used = variables(factor)
                    pack_bytes += float(np.prod([stage.extents[a] for a in used])) * SIZES[factor.dtype]
    parallel: Floats = np.ones(n)
    for loop in stages[-1].loops[:count]:
        parallel = parallel * np.ceil(loop.trips)
    return PhaseModel(tuple(stages), parallel, position, pack_bytes)


def _sizes(
    stage: PStage, sketch: Sketch, values: Mapping[str, Any], inherited: Mapping[str, list[Floats]], n: int
) -> dict[str, list[Floats]]:
    out = {a: list(inherited.get(a, [])) for a in stage.extents}
    for step in sketch.template:
        if step.stage != stage.name:
            continue
        if isinstance(step, Open) or hasattr(step, "sizes"):
            sizes = step.sizes
            out[step.axis] = [np.broadcast_to(np.asarray(evaluate(s, values), dtype=np.float64), (n,)) for s in sizes]
    return out


def _order(
    stage: PStage, sketch: Sketch, sizes: Mapping[str, list[Floats]], first: Mapping[str, int]
) -> list[str]:
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
    n: int,
    leader: bool,
) -> StageModel:
    extents = {**{a: e for a, e in phase.leader.extents.items() if any(o.rsplit(".", 1)[0] == a for o in order)}, **stage.extents}
    loops: list[LoopModel] = []
    for name in order:
        axis, level = name.rsplit(".", 1)
        k = int(level)
        whole = np.full(n, float(extents[axis]))
        outer = np.minimum(sizes[axis][k - 1], whole) if k else whole
        cover = np.minimum(sizes[axis][k], outer) if k < len(sizes[axis]) else np.ones(n)
        loops.append(LoopModel(axis, k, kinds.get(name, "serial"), outer / cover, cover))
    vector = next((lp for lp in loops if lp.kind == "vector"), None)
    spread: Floats = np.ones(n)
    for step in sketch.template:
        if isinstance(step, Spread) and step.stage == stage.name:
            axis, level = step.loop.rsplit(".", 1)
            for lp in loops:
                if lp.axis == axis and lp.level == int(level):
                    spread = spread * lp.trips
    arithmetic, maths = _arithmetic(stage.body, stage.reducer)
    stream = any(isinstance(s, Stream) and s.stage == stage.name for s in sketch.template)
    return StageModel(
        stage.name,
        extents,
        frozenset(a for a, _ in stage.reduce),
        tuple(loops),
        tuple(_accesses(stage, phase, sketch)),
        arithmetic,
        maths,
        vector.axis if vector is not None else None,
        vector.trips if vector is not None else np.ones(n),
        spread,
        leader,
        stream,
    )


def _arithmetic(body: Expr, reducer: str | None) -> tuple[int, float]:
    """Simple operations at each point (a multiply that is summed counts as one fused operation), and the cost of its maths."""
    ops, maths = (1 if reducer else 0), 0.0
    fused = 1 if reducer == "sum" and isinstance(body, Op) and body.kind == "mul" else 0
    for e in walk(body):
        if isinstance(e, Op) and e.dtype in FLOATS:
            if e.kind in MATHS or e.kind == "pow":
                maths += MATHS_COST.get(e.kind, 30)
            elif e.kind == "div":
                maths += 4
            elif e.kind != "cast":
                ops += 1
    return max(1, ops - fused), maths


def _accesses(stage: PStage, phase: Phase, sketch: Sketch) -> list[Access]:
    types = dict(sketch.workload.types)
    constants = {k for k, _, c in sketch.workload.inputs if c}
    packed: set[Expr] = set()
    for step in sketch.template:
        if isinstance(step, Pack) and step.stage == stage.name:
            packed |= set(loads(product_factors(stage.body)[step.factor]))
    out: dict[tuple[Any, ...], Access] = {}
    for load in loads(stage.body):
        if load.tensor in phase.local:
            continue
        access = _access(load, types[load.tensor], load in packed, load.tensor in constants)
        out[access.tensor, access.dims] = access
    if stage is phase.leader:
        t = types[stage.name]
        inner = 1
        dims: list[tuple[int, tuple[tuple[str, int], ...]]] = []
        for a, e in reversed(stage.axes):
            dims.append((e, ((a, 1),)))
            inner *= e
        out["store",] = Access(
            stage.name, SIZES[t.dtype], t.size, tuple(reversed(dims)), True, False, False, False
        )
    return list(out.values())


def _access(load: Load, t: TensorType, packed: bool, constant: bool) -> Access:
    """Sort the terms of a flat index into the dimensions of the tensor, by their strides."""
    flat = affine(load.index[0])
    nbytes = SIZES[load.dtype]
    if flat is None:
        used = tuple((a, 1) for a in sorted(variables(load.index[0])))
        return Access(load.tensor, nbytes, t.size, ((t.size, used),) if used else (), False, packed, constant, True)
    terms: list[list[tuple[str, int]]] = [[] for _ in t.shape]
    strides = t.strides
    for a, c in flat.terms:
        k = next((k for k, s in enumerate(strides) if abs(c) >= s and abs(c) % s == 0 and t.shape[k] > 1), len(strides) - 1)
        if not strides:
            continue
        terms[k].append((a, max(1, abs(c) // strides[k])))
    dims = tuple((s, tuple(x)) for s, x in zip(t.shape, terms, strict=True) if x or s > 1)
    return Access(load.tensor, nbytes, t.size, dims, False, packed, constant, False)
