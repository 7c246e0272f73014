"""The injective rule: chains without a reduction. One pass, vectorised along one axis; a transposing chain is tiled."""

from __future__ import annotations

from tilewright.graph.affine import parted
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import MATHS, Op
from tilewright.graph.traverse import loads, walk
from tilewright.graph.workload import Workload
from tilewright.schedules.falling import FALLING
from tilewright.schedules.phase import PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import Order, Parallel, Schedule, Step, Stream, Unroll, Vectorize
from tilewright.schedules.steps import Split as SplitStep
from tilewright.schedules.target import Target
from tilewright.schedules.write_transposed import MOST_ROWS
from tilewright.search_space.block_rule import block_sketches, near, parallel_loops, vector_width
from tilewright.search_space.dot_rule import strides_of
from tilewright.search_space.prologue import plan, worth_threads
from tilewright.search_space.sketch import Ahead, Constraint, Open, Param, Sketch

BLOCK = 64
"""Elements along each side of a block that is transposed at a time: a few cache lines both ways, which hardware fetches together."""

WHOLE_ROW, ROW_VECTORS = 8, 4
"""Vectors of the longest row, of padding or one that is looked up, that is copied as one, and of a part of a longer row of padding."""


FETCHED = 2048
"""Bytes ahead of where a long run is read at which they are asked for."""


def _waits(workload: Workload, target: Target, leader: PStage, axis: str) -> bool:
    """Whether fetching ahead can pay for a run: so much is computed for each vector that a core does not itself look ahead far
    enough to keep memory busy, and the last cache does not hold what is read. Where little is computed it costs some percent."""
    far = 2 * workload.min_bytes > max(target.l3_bytes, target.l2_bytes)
    maths = any(isinstance(e, Op) and (e.kind in MATHS or e.kind in ("pow", FALLING)) for e in walk(leader.body))
    return far and maths and strides_of(leader.body, axis) <= {0, 1}


def injective_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload without reductions; an empty list for any other."""
    p = plan(workload)
    if p.reductions:
        return []
    base = p.steps()
    parts = phases(workload, Schedule(tuple(base)))
    extra: list[Step | Open] = []
    for other in parts[:-1]:
        extra += copy_steps(other.leader, target)
    leader = parts[-1].leader
    out: list[Sketch] = []
    for axis in _vector_axes(leader):
        for stream in (False, True) if may_stream(workload, target, axis == leader.axes[-1][0]) else (False,):
            out.append(_sketch(workload, target, leader, axis, base, extra, stream))
        out += block_sketches(workload, target, leader, axis, base, extra)
    return out or [_scalar(workload, target, leader, base, extra)]


def may_stream(workload: Workload, target: Target, along: bool = True) -> bool:
    """Whether stores past the caches can pay: the last cache does not hold most of what is moved, and lines are written
    whole also where tiles are transposed."""
    whole = along or MOST_ROWS * SIZES[workload.types[workload.output].dtype] >= target.line_bytes
    return whole and workload.min_bytes > MOST_CACHED * max(target.l3_bytes, target.l2_bytes)


def _vector_axes(leader: PStage) -> list[str]:
    """The axis the output is contiguous in, and any other that a load is contiguous in (a transpose). What is only looked up to
    find a place is not moved, so it does not count."""
    if not leader.axes:
        return []
    out = [leader.axes[-1][0]]
    found = loads(leader.body)
    looked_up = {e for load in found for e in loads(load.index[0])}
    for load in found:
        if load not in looked_up:
            terms = parted(load.index[0]).form.terms
            out += [v for v, c in terms if c == 1 and v in leader.extents and v not in out]
    return [a for a in out if leader.extents[a] > 1][:2]


def _finds_rows(leader: PStage) -> bool:
    """Whether a place is looked up: what is done once for each row is not little beside a loop over a short row."""
    return any(parted(load.index[0]).parts for load in loads(leader.body))


def _sketch(
    workload: Workload,
    target: Target,
    leader: PStage,
    axis: str,
    base: list[Step],
    extra: list[Step | Open],
    stream: bool,
) -> Sketch:
    lanes = vector_width(target, leader)
    extent = leader.extents[axis]
    last = leader.axes[-1][0]
    widths = tuple(w for w in (lanes, 2 * lanes, 4 * lanes) if w <= extent) or (extent,)
    whole = axis == last and widths[-1] < extent <= WHOLE_ROW * lanes and _finds_rows(leader)
    widths = (*widths, extent) if whole else widths
    count = -(-extent // widths[0])
    outer = [f"{a}.0" for a, _ in leader.axes]
    params: list[Param] = []
    template: list[Step | Open] = []
    if axis != last:
        # a tile of rows is transposed in registers; a streamed line is written whole
        rows = _rows(leader.extents[last], target.line_bytes // SIZES[workload.types[workload.output].dtype], stream)
        blocks = tuple(b for b in (1, 2, 4, 8) if b <= count)
        params = [Param("r", rows, "rows at once"), Param("rb", (1, 2, 4, 8, 16), "row tiles in a cache block")]
        template = [Open(leader.name, axis, ("v*vb", "v")), Open(leader.name, last, ("r*rb", "r"))]
        order = [*outer, f"{last}.1", f"{axis}.1", f"{last}.2", f"{axis}.2"]
        static = [f"{last}.2", f"{axis}.2"]
        preferred = {"v": widths[0], "vb": near(blocks, BLOCK // lanes), "r": max(rows)}
        preferred["rb"] = near(params[1].values, BLOCK // max(rows))
    else:
        blocks = tuple(sorted({b for b in (1, 4, 16, 64, 256, 1024) if b < count} | {count}))
        template = [Open(leader.name, axis, ("v*vb", "v"))]
        order = [*outer, f"{axis}.1", f"{axis}.2"]
        static = [f"{axis}.2"]
        preferred = {"v": extent if whole else widths[min(1, len(widths) - 1)], "vb": near(blocks, 64)}
    params = [Param("v", widths, "width of the vector loop"), Param("vb", blocks, "vectors in a piece"), *params]
    template = [*base, *extra, *template]
    template.append(Order(leader.name, tuple(order)))
    if worth_threads(workload, target):
        template.append(Parallel(leader.name, parallel_loops(leader.axes, {axis, last}, target)))
    template += [Unroll(leader.name, s) for s in static[:-1]]
    template.append(Vectorize(leader.name, static[-1]))
    if stream:
        template.append(Stream(leader.name))
    if axis == last and _waits(workload, target, leader, axis):
        params.append(Param("d", (0, 8, 16, 32), "vectors fetched ahead"))
        template.append(Ahead(leader.name, f"{axis}.1", ("d",)))
        preferred["d"] = near(params[-1].values, FETCHED // (preferred["v"] * SIZES[leader.body.dtype]))
    name = f"map[v={axis}{',stream' if stream else ''}]"
    limits = (_tile_fits(lanes, target.vector_registers),) if axis != last else ()
    return Sketch(name, workload, target, tuple(template), tuple(params), limits, leader.name, preferred)


MOST_CACHED = 1.5
"""Bytes moved, over those of the last cache, from which on stores past it pay: measured, 1.2 times is still faster cached."""


def _tile_fits(lanes: int, registers: int) -> Constraint:
    """All rows of a tile that is transposed are alive at once."""
    return Constraint(
        "registers", f"a tile of at most {registers} registers", lambda c: -(-c["v"] // lanes) * c["r"] <= registers
    )


def _rows(extent: int, line: int, stream: bool) -> tuple[int, ...]:
    """Rows of a register tile: as many elements as a vector store, at most a cache line."""
    most = min(line, MOST_ROWS)
    rows = tuple(r for r in ((most,) if stream else (2, 4, 8, 16)) if r <= min(extent, most))
    return rows or (min(extent, most),)


def _scalar(workload: Workload, target: Target, leader: PStage, base: list[Step], extra: list[Step | Open]) -> Sketch:
    return Sketch("map[scalar]", workload, target, (*base, *extra), (), (), leader.name, {})


def row_steps(stage: PStage, target: Target) -> list[Step]:
    """Vectors along the rows of padding: all of a short row as one, as its conditions are then decided when code is written."""
    lanes = vector_width(target, stage)
    axis, extent = stage.axes[-1]
    width = extent if extent <= WHOLE_ROW * lanes else ROW_VECTORS * lanes
    return [SplitStep(stage.name, axis, (width,)), Vectorize(stage.name, f"{axis}.1")]


def copy_steps(leader: PStage, target: Target) -> list[Step | Open]:
    """Fixed steps for a phase that is not searched (a padded copy): vectors along the last axis, outer loops parallel."""
    if not leader.axes:
        return []
    if isinstance(leader.body, Op) and leader.body.kind == "select":
        steps: list[Step | Open] = [*row_steps(leader, target)]
    else:
        axis, extent = leader.axes[-1]
        width = min(2 * vector_width(target, leader), extent)
        steps = [SplitStep(leader.name, axis, (width,)), Vectorize(leader.name, f"{axis}.1")]
    outer = len(leader.axes) - 1
    steps.append(Parallel(leader.name, max(1, outer)))
    return steps
