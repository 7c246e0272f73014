"""The loop programs of ordered reductions.

A scan is a loop nest like that of a map. Just outside the first loop of the scanned axis come the running results of everything
inside, set to the identity; the loops of that axis then run one after the other, in order. They live in registers where all other
axes are straight-line code there. In a vector loop along the scanned axis, which must be the innermost, lanes are scanned by shuffles.

A selection loops over rows. The loops of its reduction axis say how a row is looked through: vectors of the vector loop's width, as
many at a time as an unrolled loop repeats.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.affine import Affine, make
from tilewright.graph.dtypes import SIZES
from tilewright.graph.stage import identity
from tilewright.schedules.loops import Item
from tilewright.schedules.nest import Alloc, Buffer, Node, Pick, Prefix, seq
from tilewright.schedules.opening import open_all, open_loop, resolve
from tilewright.schedules.phase import Best, PStage, Running
from tilewright.schedules.placement import Placement
from tilewright.schedules.producers import output_buffer
from tilewright.schedules.state import MAX_REGISTER_ELEMENTS, Dyn, Local, State
from tilewright.schedules.statements import Statements
from tilewright.schedules.steps import check

MAX_MASK = 64
"""Values compared at a time: the bits of a word say which are better."""
NARROW = 4
"""Bytes of the widest type whose value and position are one key of 8 bytes."""


def ordered_nest(placement: Placement, statements: Statements, state: State) -> Node:
    """The loop program of a phase whose leader is an ordered reduction, from the state outside all loops. Raises ScheduleError for
    loops that do not keep the order."""
    leader = placement.phase.leader
    loops = placement.leader
    check(
        not loops.packs and not loops.spread and not loops.stream and not placement.in_place,
        f"stage {leader.name}: pack, spread, stream and inplace are for reductions and maps that keep no order",
    )
    if isinstance(leader.listing, Best):
        return _Selection(leader, leader.listing, placement, statements).open(0, state)
    assert isinstance(leader.listing, Running)
    return _Scan(leader, leader.listing, placement, statements).open(0, state)


class _Scan:
    def __init__(self, stage: PStage, form: Running, placement: Placement, statements: Statements) -> None:
        self.stage, self.form, self.statements = stage, form, statements
        self.loops = placement.leader
        items = self.loops.items
        own = [k for k, i in enumerate(items) if i.axis == form.axis]
        self.first = own[0]
        check(
            not any(i.kind == "vector" for i in items[: self.first]),
            f"vectorize {stage.name}: expected a loop inside those of {form.axis}, which is scanned",
        )
        for k in own:
            item = items[k]
            check(
                item.kind != "parallel",
                f"parallel {stage.name}: loop {item.name} is scanned; rfactor scans parts of it",
            )
            check(
                item.kind != "vector" or k == len(items) - 1,
                f"vectorize {stage.name} {item.name}: expected the innermost loop, as its lanes are scanned in order",
            )
        self.others = [a for a, _ in stage.axes if a != form.axis]

    def open(self, position: int, state: State) -> Node:
        """The loops from ``position`` on."""
        if position == self.first:
            return self._start(state)
        item = self.loops.items[position]
        return open_loop(item, self.loops, state, lambda s: self.open(position + 1, s))

    def _start(self, state: State) -> Node:
        """The running results, and the loops of which they are the results."""
        for a in self.others:
            if isinstance(state.width[a], Dyn):
                return resolve(a, state, self._start)
        inside = self.loops.items[self.first :]
        spatial = [i for i in inside if i.axis != self.form.axis]
        last = {i.axis: k for k, i in enumerate(inside)}
        strides: dict[str, int] = {}
        size = 1
        for a in sorted(self.others, key=lambda a: -last.get(a, -1)):
            width = state.width[a]
            assert isinstance(width, int)
            strides[a] = size
            size *= width
        scope = "register" if all(i.static for i in spatial) and size <= MAX_REGISTER_ELEMENTS else "thread"
        buffer = Buffer(f"{self.stage.name}.run", size, self.stage.body.dtype, scope)
        carry = Local(buffer, strides, {a: state.base[a] for a in self.others})
        zero = identity(self.form.reducer, self.stage.body.dtype)
        start = open_all(spatial, self.loops, state, lambda s: self.statements.put(carry, s, zero))
        return Alloc(buffer, seq([start, open_all(inside, self.loops, state, lambda s: self._leaf(carry, s))]))

    def _leaf(self, carry: Local, state: State) -> Node:
        value = self.statements.value(self.stage, self.stage.body, state)
        base = dict(state.base)
        if self.form.reverse:
            end = Affine((), self.stage.extents[self.form.axis] - 1)
            base[self.form.axis] = end + base[self.form.axis].scale(-1)
        index = output_buffer(self.stage).index(base).expr()
        self.statements.counted()
        place = carry.index(state.base).expr()
        return Prefix(self.stage.name, index, value, self.form.reducer, carry.buffer.name, place, self.form.exclusive)


class _Selection:
    def __init__(self, stage: PStage, form: Best, placement: Placement, statements: Statements) -> None:
        self.stage, self.form, self.statements = stage, form, statements
        self.loops = placement.leader
        ((self.axis, self.extent),) = stage.reduce
        rows = [i for i in self.loops.items if i.axis != self.axis]
        own = list(self.loops.items[len(rows) :])
        check(
            all(i.axis == self.axis for i in own),
            f"order {stage.name}: expected the loops of {self.axis}, along which is selected, inside all others",
        )
        check(
            not any(i.kind == "vector" for i in rows),
            f"vectorize {stage.name}: expected a loop of {self.axis}, along which is selected",
        )
        self.rows = rows
        self.lanes, self.group = self._vectors(own)

    def _vectors(self, own: list[Item]) -> tuple[int, int]:
        """Lanes of a vector, and vectors at a time, from the loops of the reduction axis."""
        lanes = group = 1
        size = self.extent
        for item in own:
            trips = size // item.size
            if item.kind == "vector":
                check(item is own[-1], f"vectorize {self.stage.name} {item.name}: expected the innermost loop")
                lanes = size
            elif item.kind == "unroll":
                group *= trips
            size = item.size
        check(
            lanes & (lanes - 1) == 0 and lanes * group <= MAX_MASK,
            f"stage {self.stage.name}: expected vectors of a power of two of lanes, and at most {MAX_MASK} values at a time; got "
            f"{group} vectors of {lanes}",
        )
        return lanes, group

    def open(self, position: int, state: State) -> Node:
        """The loops over rows from ``position`` on."""
        if position < len(self.rows):
            return open_loop(self.rows[position], self.loops, state, lambda s: self.open(position + 1, s))
        stage, form = self.stage, self.form
        local = output_buffer(stage)
        index = local.index(state.base).scale(form.count).expr()
        lane = f"{self.axis}.lane"
        along = make({self.axis: 1, lane: 1}, 0)
        ranges = {**state.ranges, self.axis: (0, self.extent - 1), lane: (0, self.lanes - 1)}
        inside = replace(state, base={**state.base, self.axis: along}, ranges=ranges)
        value = self.statements.value(stage, stage.body, inside)
        key_bytes = 8 if SIZES[stage.body.dtype] <= NARROW and self.extent < 1 << 32 else 16
        heap = Buffer(f"{stage.name}.best", form.count * key_bytes // 8, "int64", "thread")
        self.statements.counted()
        pick = Pick(
            stage.name, index, value, self.axis, lane, self.extent, form.count, form.largest, self.lanes, self.group,
            heap.name, key_bytes,
        )  # fmt: skip
        return Alloc(heap, pick)
