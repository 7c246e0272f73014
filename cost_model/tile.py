"""What the straight-line code inside the loops costs: the register tile of one stage, on arrays of
candidates.

Unrolled and vector loops disappear into straight-line code. A tile size that does not divide its axis
leaves a last tile of its own size, with its own code; each combination of full and last tiles is counted
apart, because a thin last tile has too few accumulators to keep the multipliers busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model.body import Body, body, lanes_of, vector_width
from tilewright.schedules.target import Target
from tilewright.search_space.model import StageModel

Floats = NDArray[np.float64]

LOADS_PER_CYCLE = 2.0
STORES_PER_CYCLE = 1.0
SHUFFLES_PER_CYCLE = 1.6
SHUFFLE_SHARE = 0.5
"""Multiply-adds that a shuffle displaces: one of its units is one of theirs."""
UOPS_PER_CYCLE = 5.0
FMA_LATENCY = 4.0
FORWARD = 1.5
"""A spilled accumulator waits for its own store: by how much that lengthens the chain of multiply-adds."""
SCALAR_LATENCY = {"sum": 4.0, "prod": 4.0, "max": 2.0, "min": 2.0}
WINDOW_UOPS = 224.0
"""Operations a core looks ahead over: short tiles overlap with their neighbours."""
UOP_CACHE = 4096.0
HORIZONTAL = 14.0
"""Cycles to combine the lanes of one vector."""
SLACK = 0.1
"""Share of the work of the other units that does not hide behind the slowest."""
LOOP_ENTRY = 4.0
"""Cycles to set up a loop, and to leave it where the branch predictor does not expect that."""
INNER_ENTRY = 1.0
"""The same for a loop over the reduction inside a tile: it overlaps with the arithmetic around it."""
TILE_ENTRY = 8.0
RESUME = 2.0
"""Cycles to fetch an accumulator that the block of the reduction before has left in memory."""


@dataclass(frozen=True, slots=True)
class TileCost:
    """Cycles of one core over the whole stage by the unit that would bound them, and shape numbers of the
    full tile."""

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

    def times(self, k: Floats | float) -> TileCost:
        """The cost where everything is computed ``k`` times."""
        names = ("cycles", "fma", "load", "latency", "front", "overhead", "spill")
        return replace(self, **{name: getattr(self, name) * k for name in names})


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
    first: Body | None = None
    for count, width in _variants(s, tiled, cover):
        b = body(s, target, {**cover, **width})
        first = first or b
        tiles = count * depth.blocks
        times = tiles * depth.reduce_trips
        fma = (b.fma + b.maths + SHUFFLE_SHARE * b.shuffles) / target.fma_per_cycle + b.guards / 2.0
        shuffles = b.shuffles
        load = np.maximum(
            b.loads / LOADS_PER_CYCLE + (b.stores + b.spills) / STORES_PER_CYCLE,
            shuffles / SHUFFLES_PER_CYCLE,
        )
        uops = b.uops
        front = uops / UOPS_PER_CYCLE * (1.0 + np.minimum(uops / UOP_CACHE, 2.0))
        latency = (
            _chain(s, cover)
            * (1.0 + FORWARD * np.minimum(b.chained, 1.0))
            * np.minimum(1.0, uops * depth.reduce_trips / WINDOW_UOPS)
        )
        each = np.maximum(np.maximum(fma, load), np.maximum(front, latency))
        each = each + SLACK * (fma + load + front + latency - each)
        entry = tiles * (_entry(s, target, b) + np.where(depth.blocks > 1.0, RESUME * b.accumulators, 0.0))
        total["cycles"] = total["cycles"] + times * each + entry
        for name, value in (
            ("fma", fma),
            ("load", load),
            ("latency", latency),
            ("front", front),
            ("spill", b.spills),
        ):
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
    blocks: Any
    """Iterations of the reduction loops outside the tiles: each visits every tile."""
    outer_trips: Any
    """Visits of tiles."""
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
        blocks: Any = 1.0
        cycles: Any = 0.0
        for k, lp in enumerate(dynamic):
            blocks = blocks * (lp.trips if lp.axis in s.reduce and k <= last else 1.0)
            entries = outer
            outer = outer * lp.trips
            looped = lp.trips > 1.0
            own = outer if k < len(dynamic) - 1 else 0.0
            entry = INNER_ENTRY if k > last + 1 else LOOP_ENTRY
            cycles = cycles + np.where(looped, own * 1.0 + entries * entry, 0.0)
        inner = dynamic[-1].trips if dynamic else 1.0
        return _Depth(reduce, blocks, outer / reduce, inner, cycles)


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


def _entry(s: StageModel, target: Target, b: Body) -> Any:
    """Cycles around each tile: accumulators are cleared before, and combined and handed on after."""
    if s.reducer is None:
        return 0.0
    across = b.rows * HORIZONTAL if s.vector in s.reduce else 0.0
    return TILE_ENTRY + b.accumulators * 1.0 + across


def _reduced_tail(s: StageModel, target: Target, cover: Mapping[str, Any]) -> Any:
    """A reduction over lanes whose length the tile does not divide: each vector of the rest is combined on
    its own."""
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
    lanes = lanes_of(s, target)
    v = s.vector
    if v is None:
        return 1.0 / lanes
    wide = vector_width(s, cover)
    full = np.floor(float(s.extents[v]) / wide)
    rest = float(s.extents[v]) - full * wide
    return float(s.extents[v]) / (lanes * (full * np.ceil(wide / lanes) + np.ceil(rest / lanes)))


def _tail(s: StageModel, cover: Mapping[str, Any]) -> Any:
    whole: Any = 1.0
    for a, w in cover.items():
        extent = float(s.extents[a])
        whole = whole * (extent - np.mod(extent, w)) / extent
    return 1.0 - whole
