"""What the straight-line code inside the loops costs: the register tile of one stage, on arrays of candidates.

Unrolled and vector loops disappear into straight-line code. A tile size that does not divide its axis leaves a last tile of its
own size, with its own code; each combination of full and last tiles is counted apart, because a thin last tile has too few
accumulators to keep the multipliers busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.schedules.target import Target
from tilewright.search_space.access import Access
from tilewright.search_space.model import StageModel

Floats = NDArray[np.float64]

LOADS_PER_CYCLE = 2.0
STORES_PER_CYCLE = 1.0
SHUFFLES_PER_CYCLE = 1.6
UOPS_PER_CYCLE = 5.0
FMA_LATENCY = 4.0
FORWARD = 1.5
"""A spilled accumulator waits for its own store: by how much that lengthens the chain of multiply-adds."""
SCALAR_LATENCY = {"sum": 4.0, "prod": 4.0, "max": 2.0, "min": 2.0}
MASK = (2.0, 1.5)
"""Operations of a comparison of the lanes' indices: once, and for each register."""
SCALAR_GUARD = 3.0
MASKED_LANE = 3.0
GUARDED_LANE = 2.0
"""Operations to guard one lane of a load that is done lane by lane: by a condition of its own, and by one for all."""
WINDOW_UOPS = 224.0
"""Operations a core looks ahead over: short tiles overlap with their neighbours."""
UOP_CACHE = 4096.0
HORIZONTAL = 14.0
"""Cycles to combine the lanes of one vector."""
SLACK = 0.1
"""Share of the work of the other units that does not hide behind the slowest."""
CONSTANTS = 0.6
"""Constants loaded for each operation of a function, once a body."""
LOOP_UOPS = 3.0
LOOP_ENTRY = 4.0
"""Cycles to set up a loop, and to leave it where the branch predictor does not expect that."""
TILE_ENTRY = 8.0


@dataclass(frozen=True, slots=True)
class TileCost:
    """Cycles of one core over the whole stage by the unit that would bound them, and shape numbers of the full tile."""

    cycles: Floats
    """The estimate: the slowest unit of each kind of tile, plus loops and tile entries."""
    fma: Floats
    load: Floats
    latency: Floats
    front: Floats
    overhead: Floats
    spill: Floats
    accumulators: Floats
    registers: Floats
    """Vector registers alive at once."""
    body: Floats
    """Operations of the innermost body."""
    inner_trips: Floats
    contiguous: Floats
    strided: Floats
    broadcast: Floats
    gathered: Floats
    """Loads of each kind for each arithmetic operation of the body."""
    lane_use: Floats
    tail: Floats
    """Share of the points that are computed in last tiles."""
    guards: Floats
    code: Floats
    """Operations of all kinds of tile together."""


@dataclass(frozen=True, slots=True)
class _Body:
    fma: Any
    maths: Any
    contiguous: Any
    broadcast: Any
    strided: Any
    gathered: Any
    stores: Any
    shuffles: Any
    guards: Any
    accumulators: Any
    registers: Any
    spills: Any
    rows: Any
    pieced: Any
    """Elements of accumulators whose width is no power of two: LLVM hands them from block to block one by one."""

    @property
    def loads(self) -> Any:
        """Every load instruction."""
        return self.contiguous + self.broadcast + self.strided + self.gathered + self.spills

    @property
    def uops(self) -> Any:
        """Every operation."""
        return (
            self.fma + self.maths + self.loads + self.stores + self.spills + self.shuffles + self.guards + LOOP_UOPS
        )


def tile_cost(s: StageModel, target: Target, n: int) -> TileCost:
    """Cost of the innermost code of ``s`` for ``n`` candidates."""
    cover: dict[str, Any] = {}
    for lp in s.loops:
        if lp.kind in ("vector", "unroll"):
            cover[lp.axis] = cover.get(lp.axis, 1.0) * lp.trips
    tiled = [a for a in cover if a not in s.reduce]
    depth = _Depth.of(s)
    zero = np.zeros(n)
    total = {k: zero for k in ("cycles", "fma", "load", "latency", "front", "spill", "overhead", "code")}
    first: _Body | None = None
    for count, width in _variants(s, tiled, cover):
        b = _body(s, target, {**cover, **width})
        first = first or b
        times = count * depth.reduce_trips
        fma = (b.fma + b.maths) / target.fma_per_cycle + b.guards / 2.0
        shuffles = b.shuffles + np.where(depth.reduce_trips > 1.0, b.pieced, 0.0)
        load = np.maximum(b.loads / LOADS_PER_CYCLE + (b.stores + b.spills) / STORES_PER_CYCLE, shuffles / SHUFFLES_PER_CYCLE)
        uops = b.uops
        front = uops / UOPS_PER_CYCLE * (1.0 + np.minimum(uops / UOP_CACHE, 2.0))
        latency = _chain(s, cover) * (1.0 + FORWARD * np.minimum(b.spills, 1.0)) * np.minimum(1.0, uops * depth.reduce_trips / WINDOW_UOPS)
        each = np.maximum(np.maximum(fma, load), np.maximum(front, latency))
        each = each + SLACK * (fma + load + front + latency - each)
        entry = count * _entry(s, target, b)
        total["cycles"] = total["cycles"] + times * each + entry
        for name, value in (("fma", fma), ("load", load), ("latency", latency), ("front", front), ("spill", b.spills)):
            total[name] = total[name] + times * value
        total["overhead"] = total["overhead"] + entry
        total["code"] = total["code"] + np.where(count > 0, uops, 0.0)
    assert first is not None
    across = _reduced_tail(s, target, cover) * depth.outer_trips
    overhead = total["overhead"] + depth.loop_cycles + across
    ops = np.maximum(first.fma + first.maths, 1.0)
    whole = np.full(n, 1.0)
    return TileCost(
        total["cycles"] + depth.loop_cycles + across,
        total["fma"], total["load"], total["latency"], total["front"], overhead, total["spill"],
        first.accumulators * whole, first.registers * whole, first.uops * whole, depth.inner_trips * whole,
        first.contiguous / ops * whole, first.strided / ops * whole, first.broadcast / ops * whole,
        first.gathered / ops * whole, _lane_use(s, target, cover) * whole, _tail(s, cover) * whole,
        first.guards / ops * whole, total["code"],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Depth:
    """Trips of the loops that stay loops, and what looping itself costs."""

    reduce_trips: Any
    """Iterations of the reduction loops inside one tile."""
    outer_trips: Any
    """Tiles."""
    inner_trips: Any
    loop_cycles: Any

    @staticmethod
    def of(s: StageModel) -> _Depth:
        dynamic = [lp for lp in s.loops if lp.kind in ("serial", "parallel")]
        last = max((k for k, lp in enumerate(dynamic) if lp.axis not in s.reduce), default=-1)
        reduce: Any = 1.0
        for lp in dynamic[last + 1 :]:
            reduce = reduce * lp.trips
        outer: Any = 1.0
        cycles: Any = 0.0
        for k, lp in enumerate(dynamic):
            entries = outer
            outer = outer * lp.trips
            looped = lp.trips > 1.0
            own = outer if k < len(dynamic) - 1 else 0.0
            cycles = cycles + np.where(looped, own * 1.0 + entries * LOOP_ENTRY, 0.0)
        inner = dynamic[-1].trips if dynamic else 1.0
        return _Depth(reduce, outer / reduce, inner, cycles)


def _variants(s: StageModel, tiled: list[str], cover: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each combination of full and last tiles: how many there are, and their widths."""
    outside: Any = 1.0
    for a, e in s.extents.items():
        if a not in s.reduce and a not in tiled:
            outside = outside * float(e)
    combos: list[tuple[Any, dict[str, Any]]] = [(outside, {})]
    for a in tiled:
        extent = float(s.extents[a])
        full = np.floor(extent / cover[a])
        rest = extent - full * cover[a]
        more = [(c * full, {**w, a: cover[a]}) for c, w in combos]
        if np.any(rest > 0):
            short = np.maximum(rest, 1.0)
            more += [(np.where(rest > 0, c, 0.0), {**w, a: short}) for c, w in combos]
        combos = more
    yield from combos


def _pieces(width: Any, lanes: int) -> Any:
    """Memory operations for a vector of ``width`` elements: whole registers, and the powers of two of what is left."""
    table = np.array([bin(k).count("1") for k in range(lanes)], dtype=np.float64)
    whole = np.asarray(width, dtype=np.int64)
    return whole // lanes + table[whole % lanes]


def _body(s: StageModel, target: Target, width: Mapping[str, Any]) -> _Body:
    lanes = target.lanes(s.dtype) if s.dtype != "bool" else target.lanes("float32")
    v = s.vector
    wide: Any = _vector_width(s, width)
    registers = np.ceil(wide / lanes)
    repeat: Any = 1.0
    unrolled: Any = 1.0
    for a, w in width.items():
        if a == v:
            continue
        if a in s.reduce:
            unrolled = unrolled * w
        else:
            repeat = repeat * w
    if v is not None and v in s.reduce:
        unrolled = unrolled * width[v] / wide  # the separate accumulators along the vector axis
    ops = registers * repeat * unrolled
    kinds: dict[str, Any] = {"contiguous": 0.0, "broadcast": 0.0, "strided": 0.0, "gathered": 0.0, "stores": 0.0}
    shuffles: Any = 0.0
    kept: Any = 0.0
    pieces = _pieces(wide, lanes)
    for a in s.accesses:
        kind, loads, shuffled, shared = _loads(a, v, wide, pieces, {**width, **({v: 1.0} if v is not None else {})}, width, s)
        kept = kept + np.maximum(shared, 0.0)
        if a.store:
            kinds["stores"] = kinds["stores"] + loads
        else:
            kinds[kind] = kinds[kind] + loads
        shuffles = shuffles + shuffled
    kinds["broadcast"] = kinds["broadcast"] + CONSTANTS * s.maths
    local = s.buffered * ops
    kinds["contiguous"] = kinds["contiguous"] + local
    guards: Any = 0.0
    masked = any(v in g for g in s.guards)
    for g in s.guards:
        each: Any = 1.0
        for a in g - {v}:
            each = each * width.get(a, 1.0)
        guards = guards + (each * (MASK[0] + MASK[1] * registers) if v in g else each * SCALAR_GUARD)
    if s.guards:
        guards = guards + kinds["strided"] * (MASKED_LANE if masked else GUARDED_LANE)
    spread = s.spread if s.reducer is not None else 1.0
    accumulators = registers * repeat * (spread if s.reducer is not None else 1.0)
    alive = (accumulators if s.reducer is not None else registers) + registers + 1.0 + kept / unrolled + (3.0 * registers if s.maths else 0.0)
    excess = np.maximum(alive - target.vector_registers, 0.0)
    spills = excess * (unrolled / np.maximum(spread, 1.0)) if s.reducer is not None else excess * repeat
    odd = np.log2(wide) % 1.0 > 0.0
    pieced = np.where(odd, repeat * wide * spread, 0.0) if s.reducer is not None else 0.0
    return _Body(
        ops * s.arithmetic, ops * s.maths, kinds["contiguous"], kinds["broadcast"], kinds["strided"], kinds["gathered"],
        kinds["stores"], shuffles, guards, accumulators, alive, spills, repeat, pieced,
    )  # fmt: skip


def _vector_width(s: StageModel, width: Mapping[str, Any]) -> Any:
    if s.vector is None:
        return 1.0
    return s.lanes if s.vector in s.reduce else width[s.vector]


def _loads(
    a: Access, v: str | None, wide: Any, pieces: Any, flat: Mapping[str, Any], width: Mapping[str, Any], s: StageModel
) -> tuple[str, Any, Any, Any]:
    """Kind of access, its distinct memory operations in one body, the shuffles they need, and how many more there would be if
    windows did not overlap: values that are kept for that."""
    other: Any = 1.0
    every: Any = 1.0
    for _, terms in a.dims:
        product: Any = 1.0
        reach: Any = 1.0
        for axis, c in terms:
            w = flat.get(axis, 1.0)
            product = product * w
            reach = reach + abs(c) * (w - 1.0)
        walked = v is not None and any(axis == v for axis, _ in terms)
        every = every * product
        other = other * (product if walked or a.packed or len(terms) < 2 else np.minimum(product, reach))
    if v is not None and v in s.reduce:
        other = other * (width[v] / wide if v in a.axes() else 1.0)
    if v is None or v not in a.axes():
        return "broadcast", other, 0.0, every - other
    if a.indirect:
        return "gathered", other * wide * 2.0, other * wide * 2.0, 0.0
    stride = 1 if a.packed else abs(a.stride(v))
    if stride == 1:
        return "contiguous", other * pieces, 0.0, every - other
    if stride == 2 and not a.store and not s.guards:
        return "contiguous", other * pieces * 2.0, other * pieces * np.where(pieces > 1.0, 3.0, 1.5), 0.0
    return "strided", other * wide, other * wide, 0.0


def _chain(s: StageModel, cover: Mapping[str, Any]) -> Any:
    """Cycles for which one iteration's updates of the same accumulator wait for each other."""
    if s.reducer is None:
        return 0.0
    steps: Any = 1.0
    for a, w in cover.items():
        if a in s.reduce:
            steps = steps * w
    if s.vector in s.reduce:
        steps = steps / s.lanes
    return SCALAR_LATENCY.get(s.reducer, FMA_LATENCY) * np.maximum(steps / s.spread, 1.0)


def _entry(s: StageModel, target: Target, b: _Body) -> Any:
    """Cycles around each tile: accumulators are cleared before, and combined and handed on after."""
    if s.reducer is None:
        return 0.0
    across = b.rows * HORIZONTAL if s.vector in s.reduce else 0.0
    return TILE_ENTRY + b.accumulators * 1.0 + across


def _reduced_tail(s: StageModel, target: Target, cover: Mapping[str, Any]) -> Any:
    """A reduction over lanes whose length the tile does not divide: each vector of the rest is combined on its own."""
    v = s.vector
    if v is None or v not in s.reduce:
        return 0.0
    rest = np.mod(float(s.extents[v]), cover[v])
    repeat: Any = 1.0
    for a, w in cover.items():
        if a not in s.reduce:
            repeat = repeat * w
    return np.ceil(rest / s.lanes) * HORIZONTAL * repeat


def _lane_use(s: StageModel, target: Target, cover: Mapping[str, Any]) -> Any:
    lanes = target.lanes(s.dtype) if s.dtype != "bool" else target.lanes("float32")
    v = s.vector
    if v is None:
        return 1.0 / lanes
    wide = _vector_width(s, cover)
    full = np.floor(float(s.extents[v]) / wide)
    rest = float(s.extents[v]) - full * wide
    return float(s.extents[v]) / (lanes * (full * np.ceil(wide / lanes) + np.ceil(rest / lanes)))


def _tail(s: StageModel, cover: Mapping[str, Any]) -> Any:
    whole: Any = 1.0
    for a, w in cover.items():
        extent = float(s.extents[a])
        whole = whole * (extent - np.mod(extent, w)) / extent
    return 1.0 - whole
