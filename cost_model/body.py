"""The straight-line code of one tile, counted by kind of operation, on arrays of candidates.

Loads of equal addresses are counted once, as LLVM emits them once; what they are kept for takes registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.schedules.target import Target
from tilewright.schedules.write_transposed import MOST_ROWS
from tilewright.search_space.access import Access, Terms
from tilewright.search_space.model import StageModel

MASK = (2.0, 1.5)
"""Operations of a comparison of the lanes' indices: once, and for each register."""
SCALAR_GUARD = 3.0
MASKED_LANE = 3.0
GUARDED_LANE = 2.0
"""Operations to guard one lane of a load done lane by lane: by a condition of its own, and by one for all."""
CONSTANTS = 0.6
"""Constants loaded for each operation of a function, once a body."""
LOOP_UOPS = 3.0
IN_ORDER = 3.0
"""Shuffles of a vector of elements two apart with its lanes in order; a reduction leaves that to the end."""


@dataclass(frozen=True, slots=True)
class Body:
    """Operations of one tile."""

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
    chained: Any
    """Of the spilled registers, those of accumulators: each step waits for the store of the one before."""
    rows: Any

    @property
    def loads(self) -> Any:
        """Every load instruction."""
        return self.contiguous + self.broadcast + self.strided + self.gathered + self.spills

    @property
    def uops(self) -> Any:
        """Every operation."""
        moved = self.loads + self.stores + self.spills + self.shuffles
        return self.fma + self.maths + moved + self.guards + LOOP_UOPS


def lanes_of(s: StageModel, target: Target) -> int:
    """Elements of one vector register in the arithmetic of a stage (comparisons are of 32-bit lanes)."""
    return target.lanes("float32" if s.dtype == "bool" else s.dtype)


def vector_width(s: StageModel, width: Mapping[str, Any]) -> Any:
    """Elements of the vector loop of a tile."""
    if s.vector is None:
        return 1.0
    return s.lanes if s.vector in s.reduce else width[s.vector]


def body(s: StageModel, target: Target, width: Mapping[str, Any]) -> Body:
    """The code of a tile that covers ``width[a]`` values of each axis ``a``."""
    lanes = lanes_of(s, target)
    v = s.vector
    wide = vector_width(s, width)
    # in registers, a rest of several vectors is one with idle lanes
    registers = np.ceil(wide / lanes) if s.reducer is not None or s.maths else _pieces(wide, lanes)
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
    count: dict[str, Any] = {"contiguous": s.buffered * ops, "broadcast": CONSTANTS * s.maths}
    shuffles: Any = 0.0
    kept: Any = 0.0
    for access in (*s.accesses, *s.near):
        kind, number, shuffled, carried = _moves(access, s, wide, registers, width, lanes)
        kept = kept + carried
        kind = "stores" if access.store else kind
        count[kind] = count.get(kind, 0.0) + number
        shuffles = shuffles + shuffled
    strided = count.get("strided", 0.0)
    folds = s.reducer is not None
    accumulators = registers * repeat * (s.spread if folds else 1.0)
    once: Any = registers if folds else 1.0  # the vectors of a map are computed one after the other
    alive = (accumulators if folds else once) + once + 1.0 + kept
    alive = alive + (3.0 * once if s.maths else 0.0)
    excess = np.maximum(alive - target.vector_registers, 0.0)
    chained = np.maximum(alive - kept - target.vector_registers, 0.0)
    spills = excess * (unrolled / np.maximum(s.spread, 1.0) if folds else repeat)
    tile: Any = 0.0
    for access in s.accesses:
        tile = np.maximum(tile, _tile_registers(access, s, width, registers))
    spills = spills + np.maximum(tile - target.vector_registers, 0.0)
    return Body(
        fma=ops * s.arithmetic,
        maths=ops * s.maths,
        contiguous=count["contiguous"],
        broadcast=count["broadcast"],
        strided=strided,
        gathered=count.get("gathered", 0.0),
        stores=count.get("stores", 0.0),
        shuffles=shuffles,
        guards=_guards(s, width, registers, strided),
        accumulators=accumulators,
        registers=alive,
        spills=spills,
        chained=chained,
        rows=repeat,
    )


def _guards(s: StageModel, width: Mapping[str, Any], registers: Any, strided: Any) -> Any:
    """Operations that decide whether a point is inside its tensor."""
    if not s.guards:
        return 0.0
    out: Any = 0.0
    masked = False
    for axes in s.guards:
        each: Any = 1.0
        reach: Any = 1.0
        for a in axes:
            w = width.get(a, 1.0) if a != s.vector else 1.0
            each, reach = each * w, reach + (w - 1.0)
        wide = s.vector in axes
        cost = each * (MASK[0] + MASK[1] * registers) if wide else np.minimum(each, reach) * SCALAR_GUARD
        out = out + np.where(_known(s, axes), 0.0, cost)
        masked = masked or wide
    return out + strided * (MASKED_LANE if masked else GUARDED_LANE)


def _known(s: StageModel, axes: frozenset[str]) -> Any:
    """Whether a comparison of these axes is decided when code is written: none of them is walked by a loop. A single
    innermost tile and its rest are no loop."""
    out: Any = True
    for a in axes:
        walked = [lp for lp in s.loops if lp.axis == a and lp.kind not in ("vector", "unroll")]
        for lp in walked:
            out = out & (lp.trips < 2.0 if lp is walked[-1] else lp.trips <= 1.0)
    return out


def _moves(
    a: Access, s: StageModel, wide: Any, pieces: Any, width: Mapping[str, Any], lanes: int
) -> tuple[str, Any, Any, Any]:
    """Kind of access, its distinct memory operations in one body, the shuffles they need, and the values that are
    kept from step to step because windows overlap."""
    v = s.vector
    other: Any = float(a.places)
    kept: Any = 0.0
    beside: Any = 1.0
    for _, terms in a.dims:
        product: Any = 1.0
        reach: Any = 1.0
        for axis, c in terms:
            w = width.get(axis, 1.0) if axis != v else 1.0
            product = product * w
            reach = reach + abs(c) * (w - 1.0)
        walked = any(axis == v for axis, _ in terms)
        if walked or a.packed or len(terms) < 2:
            other = other * product
            beside = beside * _repeated(terms, s, width)
        else:
            other = other * np.minimum(product, reach)
            kept = kept + np.minimum(np.maximum(product - reach, 0.0), _carried(terms, s, width))
    kept = kept * beside
    if v is None or v not in a.axes():
        return "broadcast", other, 0.0, kept
    if v in s.reduce:
        other = other * width[v] / wide
    if v in a.looked_up:
        return "gathered", other * wide * 2.0, other * wide * 2.0, 0.0
    stride = 1 if a.packed else abs(a.stride(v))
    if stride == 1:
        return "contiguous", other * pieces, 0.0, kept * pieces
    if stride == 2 and not a.store:
        shuffles = other * pieces * (1.0 if s.reducer is not None else IN_ORDER)
        return "contiguous", other * pieces * 2.0, shuffles, kept * pieces
    turned = transposed(a, s, width)
    if turned is None:
        return "strided", other * wide, other * wide, 0.0
    # rows of a tile: contiguous vectors of powers of two, and a shuffle of each register for every doubling of their number;
    # each step of the reduction moves a tile of its own
    near = next((terms for _, terms in reversed(a.dims) if any(c == 1 for _, c in terms)), ())
    product = math.prod((width.get(x, 1.0) for x, _ in near), start=1.0)
    reach = 1.0 + sum((width.get(x, 1.0) - 1.0) * abs(c) for x, c in near)
    tiles = other * wide * np.maximum(product / reach, 1.0) / turned
    loads, elements, doublings = (x[np.asarray(turned, dtype=np.int64)] for x in _PIECES)
    loads = np.where(turned > lanes, np.ceil(turned / lanes), loads)
    return "contiguous", tiles * loads, tiles * (elements + doublings / np.minimum(wide, lanes)), 0.0


def _powers(count: int) -> list[int]:
    return [1 << k for k in range(count.bit_length()) if count >> k & 1]


_PIECES = (
    np.array([float(len(_powers(n))) for n in range(MOST_ROWS + 1)]),
    np.array([float(n & 1) for n in range(MOST_ROWS + 1)]),
    np.array([float(sum(p * (p.bit_length() - 1) for p in _powers(n))) for n in range(MOST_ROWS + 1)]),
)
"""For rows of so many neighbours: the vectors they are moved as, elements that are moved alone, and elements moved by each
doubling."""


def _repeated(terms: Terms, s: StageModel, width: Mapping[str, Any]) -> Any:
    """How many places of a dimension one step of the reduction reads."""
    out: Any = 1.0
    for axis, _ in terms:
        if axis != s.vector and axis not in s.reduce:
            out = out * width.get(axis, 1.0)
    return out


def _carried(terms: Terms, s: StageModel, width: Mapping[str, Any]) -> Any:
    """Places of a window that are read again in later steps of the reduction: all that the tile is ahead of the first."""
    ahead: Any = 0.0
    for axis, c in terms:
        if axis not in s.reduce:
            ahead = ahead + abs(c) * (width.get(axis, 1.0) - 1.0)
    steps = [abs(c) for axis, c in terms if axis in s.reduce]
    return ahead / min(steps) if steps else 0.0


def _tile_registers(a: Access, s: StageModel, width: Mapping[str, Any], registers: Any) -> Any:
    """Registers of a tile that is transposed: all its rows are alive at once."""
    turned = transposed(a, s, width)
    return 0.0 if turned is None else turned * registers


def transposed(a: Access, s: StageModel, width: Mapping[str, Any]) -> Any:
    """How many neighbours of an access that jumps from lane to lane an unrolled loop walks (stores: or several, where one goes on
    from the end of the other), or None: such a tile is moved as contiguous vectors and transposed in registers."""
    if a.looked_up or a.packed or s.vector is None or (s.guards and not a.store) or a.stride(s.vector) in (0, 1):
        return None
    if a.store and s.reducer is not None:
        return None
    near = [x for x in a.axes() if x != s.vector and x in width and a.stride(x) == 1]
    if not near:
        return None
    rows: Any = width[near[0]]
    for x in sorted(a.axes() - {s.vector, near[0]}, key=a.stride) if a.store else ():
        longer = rows * width.get(x, 1.0)
        rows = np.where((rows == a.stride(x)) & (longer <= MOST_ROWS), longer, rows)
    return np.minimum(rows, float(MOST_ROWS))


def _pieces(width: Any, lanes: int) -> Any:
    """Registers, and memory operations, for ``width`` elements: whole registers, and the powers of two of what is left."""
    table = np.array([k.bit_count() for k in range(lanes)], dtype=np.float64)
    whole = np.asarray(width, dtype=np.int64)
    return whole // lanes + table[whole % lanes]
