"""The block form of a transposing chain: a block is read in long runs, transposed into the thread's cache and written out in
long runs.

Memory is fast where neighbours are read, or written, one after the other for a kilobyte or more, and a loop nest over tiles
gives long runs to one side only. Rows of the input that start a power of two apart also share the same few sets of the
first cache, so that what a tile leaves unread of its lines is gone before the next tile comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dtypes import SIZES
from tilewright.graph.workload import Workload
from tilewright.schedules.blocks import BLOCK
from tilewright.schedules.phase import PStage
from tilewright.schedules.steps import At, Block, Order, Parallel, Step, Stream, Unroll, Vectorize
from tilewright.schedules.target import Target
from tilewright.schedules.write_transposed import MOST_ROWS
from tilewright.search_space.prologue import worth_threads
from tilewright.search_space.sketch import Ahead, Constraint, Open, Param, Sketch

PIECES_EACH = 16
"""Iterations of the parallel loops for each thread that are enough to share the work evenly."""
MOST_CACHED = 0.75
"""Bytes moved, over those of the last cache, from which on stores past it can pay."""
CACHED, STREAMED = 8, 2
"""Part of the second cache that a block may take: what is read and what is written pass through it too, unless it is stored past
it."""
LONG = 2048
"""Bytes of a run that memory reads as fast as longer ones."""


def block_sketches(
    workload: Workload,
    target: Target,
    leader: PStage,
    axis: str,
    base: list[Step],
    extra: list[Step | Open],
) -> list[Sketch]:
    """Sketches that read along ``axis``; none where that is the output's own axis, or where the second cache holds all. Where the
    last cache does not, the output may be stored past it."""
    last, extent = leader.axes[-1]
    lanes = vector_width(target, leader)
    nbytes = SIZES[workload.types[workload.output].dtype]
    if axis == last or min(extent, leader.extents[axis]) < 2 * lanes or workload.min_bytes <= target.l2_bytes:
        return []
    wide = 2 * lanes if extent >= 4 * lanes else lanes
    rows = min(lanes, MOST_ROWS)
    params = (
        Param("v", (wide,), "width of the vectors that are written out"),
        Param("b", _powers(-(-extent // wide), (2, 4, 8, 16, 32)), f"vectors in a run along {last}"),
        Param("r", (rows,), "rows read at once"),
        Param(
            "c", _powers(-(-leader.extents[axis] // lanes), (4, 8, 16, 32, 64, 128)), f"vectors in a run along {axis}"
        ),
        Param("d", (0, 1), "blocks fetched ahead, while the one before is written"),
    )
    own = leader.name + BLOCK
    walk = [(a, leader.extents[a]) for a in (*(a for a, _ in leader.axes if a not in (axis, last)), last, axis)]
    outer = [f"{a}.0" for a, _ in walk]
    template: list[Step | Open] = [
        *base,
        *extra,
        Block(leader.name),
        At(own, leader.name, outer[-1]),
        Open(leader.name, axis, (f"{lanes}*c",)),
        Open(leader.name, last, ("v*b", "v")),
        Order(leader.name, (*outer, f"{axis}.1", f"{last}.1", f"{last}.2")),
        *(
            [Parallel(leader.name, parallel_loops(walk, {axis, last}, target))]
            if worth_threads(workload, target)
            else []
        ),
        Vectorize(leader.name, f"{last}.2"),
        Open(own, axis, (f"{lanes}*c", lanes)),
        Open(own, last, ("v*b", "r")),
        Order(own, (f"{last}.1", f"{axis}.1", f"{axis}.2", f"{last}.2")),
        Vectorize(own, f"{axis}.2"),
        Unroll(own, f"{last}.2"),
        Ahead(own, outer[-1], ("d",)),
    ]
    name = f"block[v={axis}"
    forms: list[tuple[str, list[Step | Open], int]] = [(f"{name}]", template, CACHED)]
    if workload.min_bytes > MOST_CACHED * max(target.l3_bytes, target.l2_bytes):
        forms.append((f"{name},stream]", [*template, Stream(leader.name)], STREAMED))
    out = []
    for form, steps, part in forms:
        run = LONG if part == STREAMED else LONG // 4
        wanted = {
            "v": wide,
            "b": LONG // 4 // (wide * nbytes),
            "r": rows,
            "c": run // (lanes * nbytes),
            "d": int(part == STREAMED),
        }
        preferred = {p.name: near(p.values, wanted[p.name]) for p in params}
        out.append(
            Sketch(
                form,
                workload,
                target,
                tuple(steps),
                params,
                (_fits(lanes * nbytes, target.l2_bytes // part),),
                own,
                preferred,
            )
        )
    return out


def vector_width(target: Target, leader: PStage) -> int:
    """Lanes of a vector of what a chain computes."""
    dtype = leader.body.dtype
    return target.lanes("float32" if dtype == "bool" else dtype)


def _fits(nbytes: int, most: int) -> Constraint:
    """``nbytes`` are those of a vector that is read."""
    return Constraint(
        "block",
        "the second cache holds a block and what is read and stored meanwhile",
        lambda c: c["v"] * c["b"] * c["c"] * nbytes <= most,
    )


def _powers(most: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """``values`` below ``most``, and ``most`` where it is not far above them."""
    below = tuple(x for x in values if x < most)
    return (*below, most) if most <= values[-1] else below


def parallel_loops(axes: Sequence[tuple[str, int]], tiled: set[str], target: Target) -> int:
    """How many of the outermost loops, those of ``axes`` in this order, are parallel: as few as give every thread enough to do,
    because what is inside them needs no division to find its place. Loops over blocks of a tiled axis have an extent that is not
    known here."""
    total = 1
    for k, (a, extent) in enumerate(axes):
        if total >= PIECES_EACH * target.threads or (a in tiled and total > 1 and total >= 4 * target.threads):
            return max(k, 1)
        total *= 1 if a in tiled else extent
    return len(axes)


def near(values: tuple[int, ...], wanted: int) -> int:
    """The value that is nearest."""
    return min(values, key=lambda n: abs(n - wanted))
