"""Stages computed inside the leader's loops: where their result lives, and their own loops around it.

A result is kept in registers where every loop that writes or reads it disappears into straight-line code, so that all
its addresses are constant; otherwise it goes to the thread's scratch, laid out in the order of the producer's loops, or
takes the place of a result there that only it reads from here on.
A reduction takes its spatial loops, and blocks of the reduction among them, outside; what is inside, and so has
static widths, is left to :mod:`tilewright.schedules.accumulators`.
"""

from __future__ import annotations

from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Var, var
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.accumulators import accumulate
from tilewright.schedules.lanes import room
from tilewright.schedules.loops import StageLoops
from tilewright.schedules.nest import LINE_BYTES, Buffer, Node, Seq, seq
from tilewright.schedules.opening import open_all, open_loop, resolve
from tilewright.schedules.packing import ROOT, Packing
from tilewright.schedules.phase import PStage
from tilewright.schedules.placement import Placement
from tilewright.schedules.prefetch import Prefetching
from tilewright.schedules.state import MAX_REGISTER_ELEMENTS, ZERO, Dyn, Local, State, cap
from tilewright.schedules.statements import Statements
from tilewright.schedules.steps import check


def local_buffer(stage: PStage, placement: Placement, state: State) -> Local:
    """Where the result of a producer lives when it is computed at this point."""
    loops = placement.loops_of(stage)
    axes = [a for a, _ in stage.axes]
    last = {i.axis: k for k, i in enumerate(loops.items)}
    strides: dict[str, int] = {}
    size = 1
    constant = _constant_addresses(stage, loops, placement)
    lanes = {i.axis for i in loops.items if i.kind == "vector"}
    for k, a in enumerate(reversed(sorted(axes, key=lambda a: last.get(a, -1)))):
        strides[a] = size
        size *= room(cap(state.width[a])) if k == 0 and constant and a in lanes else cap(state.width[a])
        if k == 0 and not constant and _across(loops, a):
            size = _odd_lines(size, stage.body.dtype)
    scope = "register" if constant and size <= MAX_REGISTER_ELEMENTS else "thread"
    return Local(Buffer(f"{stage.name}.buf", size, stage.body.dtype, scope), strides, {a: state.base[a] for a in axes})


def _across(loops: StageLoops, contiguous: str) -> bool:
    """Whether the lanes of a stage's vectors lie in different rows of a buffer whose rows run along axis ``contiguous``."""
    return any(i.kind == "vector" and i.axis != contiguous for i in loops.items)


def _odd_lines(size: int, dtype: str) -> int:
    """A row of ``size`` elements, longer by a cache line if it is an even number of lines: what is written down the rows of a
    buffer would else use few sets of a cache."""
    line = LINE_BYTES // SIZES[dtype]
    return size + line if size % (2 * line) == 0 else size


def reusable_buffer(stage: PStage, placement: Placement, state: State) -> Local | None:
    """Where ``stage`` needs no buffer of its own: the place of the output, if its steps say so, or that of a producer in the
    thread's scratch which it can overwrite element by element, because it is the last to read it (half the cache for a chain of
    maps). None where there is none."""
    if stage.name in placement.in_place:
        return output_buffer(placement.phase.leader)
    if stage.reducer is not None:
        return None
    phase = placement.phase
    later = phase.stages[phase.stages.index(stage) + 1 :]
    read = [e for e in loads(stage.body) if e.tensor in state.locals]
    for tensor in dict.fromkeys(e.tensor for e in read):
        local, source = state.locals[tensor], phase.stage(tensor)
        if (
            local.buffer.scope == "thread"
            and local.buffer.dtype == stage.body.dtype
            and source.axes == stage.axes
            and placement.position[tensor] == placement.position[stage.name]
            and all(e.index == tuple(var(a) for a, _ in source.axes) for e in read if e.tensor == tensor)
            and not any(e.tensor == tensor for s in later for e in loads(s.body))
            and not _constant_addresses(stage, placement.loops_of(stage), placement)
        ):
            return local
    return None


def output_buffer(leader: PStage) -> Local:
    """The output of a phase, which lies in memory, row-major."""
    strides: dict[str, int] = {}
    size = 1
    for a, extent in reversed(leader.axes):
        strides[a] = size
        size *= extent
    return Local(Buffer(leader.name, size, leader.body.dtype, "shared"), strides, dict.fromkeys(strides, ZERO))


def _constant_addresses(stage: PStage, loops: StageLoops, placement: Placement) -> bool:
    """Whether all reads and writes of the result of ``stage`` are at constant addresses."""
    axes = {a for a, _ in stage.axes}
    phase = placement.phase
    items = [*loops.items, *placement.leader.items[placement.position[stage.name] :]]
    for reader in phase.stages:
        reads = [e for e in loads(reader.body) if e.tensor == stage.name]
        if any(not isinstance(i, Var) and variables(i) for e in reads for i in e.index):
            return False  # a window, not plain axes or fixed places
        if reads and reader is not stage and reader is not phase.leader:
            items += placement.loops_of(reader).items
    return all(i.static for i in items if i.axis in axes)


def produce(
    stage: PStage,
    placement: Placement,
    packing: Packing,
    statements: Statements,
    prefetching: Prefetching,
    state: State,
) -> Node:
    """Compute a producer into its buffer. A guest of another producer is computed there."""
    if stage.name in placement.host:
        return Seq(())
    loops = placement.loops_of(stage)
    local = state.locals[stage.name]
    guests = placement.guests(stage.name)

    def first(st: State) -> list[Node]:
        """What is fetched and computed at each point just before the stage itself."""
        puts = [statements.put(st.locals[g.name], st, statements.value(g, g.body, st)) for g in guests]
        return [*prefetching.at(stage, st), *puts]

    if stage.reducer is None:
        return open_all(
            loops.items,
            loops,
            state,
            lambda s: seq([*first(s), statements.put(local, s, statements.value(stage, stage.body, s))]),
        )
    inner = _inside(stage, loops)
    places = [i.name for i in loops.items[:inner]]
    vectors = [i.name for i in loops.items[:inner] if i.kind == "vector"]
    check(
        not vectors,
        f"vectorize {stage.name}: expected {vectors} inside every spatial loop that stays a loop ({places[-1:]})",
    )
    for p in loops.packs:
        if (stage.name, p.factor) in state.packed:
            continue  # before all loops, or at a loop of the leader
        check(p.loop in (ROOT, *places), f"{p}: expected root or a loop of {places}; got {p.loop!r}")
    sizes = placement.sizes_of(stage)

    def outside(position: int, st: State) -> Node:
        if position == inner:
            return static(st)
        item = loops.items[position]
        here = [p for p in loops.packs if p.loop == item.name]
        return open_loop(
            item,
            loops,
            st,
            lambda s: packing.at_loop(stage, loops, here, s, lambda inside: outside(position + 1, inside)),
        )

    def static(st: State) -> Node:
        for a, _ in stage.axes:
            if isinstance(st.width[a], Dyn):
                return resolve(a, st, static)
        return accumulate(stage, loops, inner, sizes, local, st, statements, first)

    return outside(0, state)


def _inside(stage: PStage, loops: StageLoops) -> int:
    """The number of loops outside the accumulators: down to the last spatial one that stays a loop."""
    spatial = {a for a, _ in stage.axes}
    return max((k + 1 for k, i in enumerate(loops.items) if i.axis in spatial and not i.static), default=0)
