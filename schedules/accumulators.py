"""The accumulators of a reduction and the loops inside them.

Sums are kept in registers, because a load and a store for each term would cost more than the term. Where the
reduction is blocked, a block starts from the identity or from what the block before it left in the result's buffer;
where the whole reduction is inside, the result itself is the accumulator if its addresses are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.graph.expr import all_of, binary
from tilewright.graph.stage import identity
from tilewright.schedules.lanes import room
from tilewright.schedules.loops import StageLoops
from tilewright.schedules.nest import Alloc, Buffer, If, Node, seq
from tilewright.schedules.opening import open_all
from tilewright.schedules.phase import PStage
from tilewright.schedules.spread import Separate, separate, separate_loops
from tilewright.schedules.state import MAX_REGISTER_ELEMENTS, Body, Local, State
from tilewright.schedules.statements import Statements
from tilewright.schedules.steps import check


def accumulate(
    stage: PStage,
    loops: StageLoops,
    inner: int,
    sizes: Mapping[str, tuple[int, ...]],
    local: Local,
    state: State,
    statements: Statements,
    guests: Callable[[State], list[Node]],
) -> Node:
    """Reduce ``stage`` into ``local`` inside its first ``inner`` loops, where all spatial widths are static. ``guests``
    makes what is computed at each point before the point itself."""
    assert stage.reducer is not None
    axes = [a for a, _ in stage.axes]
    dtype = stage.body.dtype
    zero = identity(stage.reducer, dtype)
    items = loops.items[inner:]
    spatial = [i for i in items if i.axis in axes]
    blocks = [i for i in loops.items[:inner] if i.axis not in axes]
    counts = separate_loops(stage, loops, items, sizes)
    in_place = local.buffer.scope == "register" or (inner == 0 and not counts)
    lane = next((i.axis for i in loops.items if i.kind == "vector"), None)
    result = local if in_place else _registers(f"{stage.name}.acc", axes, local, state, dtype, lane)

    def each(body: Body) -> Node:
        """``body`` for every element of the result that is computed here."""
        return open_all(spatial, loops, state, body)

    start = each(lambda s: statements.put(result, s, zero))
    if blocks:
        first = all_of([binary("eq", state.loops[i.axis, i.level].expr(), 0) for i in blocks])
        resume = each(lambda s: statements.copy(result, local, s))
        start = If(first, start, None if in_place else resume)
    nodes = [start]
    wide: Separate | None = None
    if counts:
        wide = separate(stage, counts, result)
        nodes.append(wide.fill(each, zero, statements))

    def leaf(st: State) -> Node:
        before = guests(st)
        value = statements.value(stage, stage.body, st)
        if wide is None or any(i.axis in st.short for i in wide.counts):
            return seq([*before, statements.put(result, st, value, stage.reducer)])
        return seq([*before, statements.store(wide.local.buffer.name, wide.index(st), value, stage.reducer)])

    nodes.append(open_all(items, loops, state, leaf))
    if wide is not None:
        nodes.append(wide.fold(each, result, stage.reducer, statements))
    if not in_place:
        nodes.append(each(lambda s: statements.copy(local, result, s)))
    node = seq(nodes)
    if wide is not None:
        node = Alloc(wide.local.buffer, node)
    return node if in_place else Alloc(result.buffer, node)


def _registers(name: str, axes: list[str], like: Local, state: State, dtype: str, lane: str | None) -> Local:
    """A register for each element of ``like`` at this point, in the same order, with room for idle lanes behind rows of ``lane``."""
    strides: dict[str, int] = {}
    size = 1
    for a in sorted(axes, key=lambda a: like.strides[a]):
        strides[a] = size
        width = state.width[a]
        assert isinstance(width, int)
        size *= room(width) if a == lane and size == 1 else width
    check(size <= MAX_REGISTER_ELEMENTS, f"{name}: expected at most {MAX_REGISTER_ELEMENTS} accumulators; got {size}")
    return Local(Buffer(name, size, dtype, "register"), strides, {a: state.base[a] for a in axes})
