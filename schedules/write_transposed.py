"""Write transposed accesses: neighbours along an unrolled loop that lie apart along the vector loop.

A tile of values, one vector for each iteration of an unrolled loop, is often stored (or loaded) where neighbours in
memory are not the lanes of a vector but the same lane of vectors that follow each other: a transpose, or the
epilogue of a convolution whose pixels are unrolled and whose channels are lanes. Lane by lane that is an instruction
for each element. Here such a tile is transposed in registers and moved as contiguous vectors: stores wait until the
iterations of the unrolled loop are written (:class:`Held`), loads fetch what later iterations need and are
remembered for them (:func:`load_group`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.traverse import loads
from tilewright.schedules.emit import Function, Value
from tilewright.schedules.nest import Alloc, Loop, Node, Pick, Prefix, Seq, Store, walk

SEGMENT_BYTES = 16
"""Processors interleave within parts of a vector of this size; whole parts move in steps of their own."""
MOST_BYTES = 64
"""Longest vector that is made of one lane of a tile: a cache line, which is then stored at once."""
MOST_ROWS = 16
"""Vectors that are transposed together: as many as the registers of most processors."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where iteration 0 of unrolled loops stores a vector: ``constant`` elements after ``pointer``, and each lane
    ``stride`` after the one before. What ``pointer`` adds to the address of ``tensor`` is a multiple of ``grain``."""

    tensor: str
    pointer: str
    constant: int
    stride: int
    lanes: int
    grain: int
    stream: bool

    def aligned(self, first: int, length: int) -> bool:
        """Whether vectors of ``length`` elements from iteration ``first`` on begin at a multiple of their size."""
        return length > 1 and all(n % length == 0 for n in (self.grain, self.constant + first, self.stride))


@dataclass
class Held:
    """Vectors that wait for their neighbours along unrolled loops: the vector of each iteration, by the place of the
    first. ``stores`` are those that wait, each with what its place moves by in an iteration of each loop."""

    stores: list[tuple[Store, Mapping[str, int]]]
    values: dict[Place, dict[int, Value]] = field(default_factory=dict)

    def steps(self, store: Store) -> Mapping[str, int] | None:
        """What the place of ``store`` moves by in each loop, if it is one of those that wait here."""
        return next((steps for s, steps in self.stores if s is store), None)

    def tiles(self) -> Iterator[tuple[Place, int, list[Value]]]:
        """What waited: the place, the first iteration, and the vectors of as many as are moved together."""
        for place, found in self.values.items():
            for run in runs(list(found)):
                for first, length in pieces(len(run), found[run[0]].dtype):
                    yield place, run[first], [found[k] for k in run[first : first + length]]


def held(loop: Loop, lane: str | None, registers: set[str]) -> Held | None:
    """What waits until the unrolled ``loop`` is written, if anything does. ``lane`` is the variable of a vector loop
    around it. A tensor that is read or updated inside is left alone: its stores may not be put off."""
    if loop.limit < 2:
        return None
    written = [(s, v, lps) for s, v, lps in _straight(loop, lane, ()) if v is not None and s.tensor not in registers]
    if not written:
        return None
    busy: set[str] = set()
    for n in walk(loop.body):
        if isinstance(n, Prefix | Pick):
            return None
        if isinstance(n, Store):
            busy |= {x.tensor for x in loads(n.value)} | ({n.tensor} if n.reducer is not None else set())
    stores = [(s, steps) for s, v, lps in written if s.tensor not in busy and (steps := _steps(s, v, lps)) is not None]
    return Held(stores) if stores else None


def _straight(
    node: Node, lane: str | None, loops: tuple[Loop, ...]
) -> Iterator[tuple[Store, str | None, tuple[Loop, ...]]]:
    """Stores in straight-line code, the variable of the vector loop each is in, and the unrolled loops around it."""
    if isinstance(node, Store):
        yield node, lane, loops
    elif isinstance(node, Seq):
        for n in node.nodes:
            yield from _straight(n, lane, loops)
    elif isinstance(node, Alloc):
        yield from _straight(node.body, lane, loops)
    elif isinstance(node, Loop) and node.kind == "unroll":
        yield from _straight(node.body, lane, (*loops, node))
    elif isinstance(node, Loop) and node.kind == "vector":
        yield from _straight(node.body, node.var, loops)


def _steps(store: Store, lane: str, loops: tuple[Loop, ...]) -> Mapping[str, int] | None:
    """What the place of ``store`` moves by in each of the unrolled loops whose iterations follow each other in memory
    without a gap, if the outermost of ``loops`` is one of them and lanes lie apart: no more loops than their tile has
    rows that can be transposed together."""
    a = affine(store.index)
    if a is None or a.coefficient(lane) in (0, 1):
        return None
    steps: dict[str, int] = {}
    length = 1
    for loop in sorted((lp for lp in loops if a.coefficient(lp.var) > 0), key=lambda lp: a.coefficient(lp.var)):
        if a.coefficient(loop.var) != length or (steps and length * loop.limit > MOST_ROWS):
            break
        steps[loop.var] = length
        length *= loop.limit
    return steps if loops[0].var in steps else None


def pieces(count: int, dtype: str) -> Iterator[tuple[int, int]]:
    """``count`` neighbours as first element and length of vectors: powers of two, at most a cache line."""
    first, most = 0, min(MOST_BYTES // SIZES[dtype], MOST_ROWS)
    while first < count:
        length = min(most, 1 << (count - first).bit_length() - 1)
        yield first, length
        first += length


def runs(keys: list[int]) -> Iterator[list[int]]:
    """Ascending numbers as runs without a gap."""
    run: list[int] = []
    for k in sorted(keys):
        if run and k != run[-1] + 1:
            yield run
            run = []
        run.append(k)
    if run:
        yield run


def transpose(fn: Function, rows: list[Value]) -> list[Value]:
    """The columns of a tile: ``len(rows)`` vectors of L lanes become L vectors of ``len(rows)`` lanes, both powers of
    two.

    Neighbouring rows are interleaved within segments of 16 bytes until a segment holds one column (of as many rows as
    fit), then whole segments are put together. Processors have one instruction for each of these steps.
    """
    size = SIZES[rows[0].dtype]
    groups = [[(r, list(range(r.lanes)))] for r in rows]
    width = 1  # elements of one column that lie together
    while len(groups) > 1 and width * size < SEGMENT_BYTES:
        groups = [_interleaved(fn, a, b, width, SEGMENT_BYTES // size) for a, b in _pairs(groups)]
        width *= 2
    while len(groups) > 1:
        groups = [_joined(fn, a, b, width) for a, b in _pairs(groups)]
        width *= 2
    out: dict[int, Value] = {}
    for v, columns in groups[0]:
        for k, c in enumerate(columns):
            whole = len(columns) == 1
            out[c] = v if whole else fn.shuffle(v, None, list(range(k * width, (k + 1) * width)))
    return [out[c] for c in range(rows[0].lanes)]


Part = tuple[Value, list[int]]
"""A vector and the columns its parts belong to."""


def _pairs(groups: list[list[Part]]) -> Iterator[tuple[list[Part], list[Part]]]:
    return zip(groups[::2], groups[1::2], strict=True)


def _interleaved(fn: Function, a: list[Part], b: list[Part], width: int, segment: int) -> list[Part]:
    """Parts of ``width`` elements of two groups of rows, alternating within segments."""
    out: list[Part] = []
    for (x, columns), (y, _) in zip(a, b, strict=True):
        per = segment // width  # parts of a segment
        count = len(columns)
        chosen = [list(range(count))]
        if 2 * count > per:
            half = per // 2
            chosen = [[s + k for s in range(0, count, per) for k in range(first, first + half)] for first in (0, half)]
        for parts in chosen:
            mask = [side + p * width + i for p in parts for side in (0, x.lanes) for i in range(width)]
            out.append((fn.shuffle(x, y, mask), [columns[p] for p in parts]))
    return out


def _joined(fn: Function, a: list[Part], b: list[Part], width: int) -> list[Part]:
    """Each part of one group followed by that of the other."""
    out: list[Part] = []
    for (x, columns), (y, _) in zip(a, b, strict=True):
        for p, c in enumerate(columns):
            mask = [side + p * width + i for side in (0, x.lanes) for i in range(width)]
            out.append((fn.shuffle(x, y, mask), [c]))
    return out
