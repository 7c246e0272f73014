"""Apply a schedule: phases and steps in, loop program out.

One recursion opens the loops of each phase's leader from the outside in, and at each loop the producers that are
computed there. Its parts are modules of their own: which loops there are (:mod:`~tilewright.schedules.placement`),
what is known at a point (:mod:`~tilewright.schedules.state`), how a loop is opened
(:mod:`~tilewright.schedules.opening`), packed copies, producers, and the statements inside all loops. The program is
refused where it is too large, so that no candidate takes LLVM more than about a second.
"""

from __future__ import annotations

from tilewright.graph.dtypes import SIZES
from tilewright.graph.workload import Workload
from tilewright.schedules.cuts import pieces
from tilewright.schedules.guarded import guarded
from tilewright.schedules.nest import Alloc, Buffer, Node, Parameter, Program, Seq, instructions, seq, walk
from tilewright.schedules.opening import open_loop, resolve
from tilewright.schedules.ordered_nest import ordered_nest
from tilewright.schedules.packing import ROOT, Packing
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.placement import Placement
from tilewright.schedules.prefetch import Prefetching
from tilewright.schedules.producers import local_buffer, output_buffer, produce, reusable_buffer
from tilewright.schedules.region import narrowed, ragged
from tilewright.schedules.state import Dyn, State, start
from tilewright.schedules.statements import Statements
from tilewright.schedules.steps import Schedule, Winograd, check

MAX_INSTRUCTIONS = 8000
"""Vector instructions of a program (:func:`tilewright.schedules.nest.instructions`): what LLVM compiles
within a second."""
MAX_BYTES, MAX_SHARE = 1 << 30, 64
"""A buffer may have the first, or as many times the bytes of the workload's tensors: a step whose tiles are many times larger than
their axes asks for more memory than there is, and gains nothing."""


def apply(workload: Workload, schedule: Schedule) -> Program:
    """The loop program of ``workload`` under ``schedule``: with an algorithm that does not hold for all numbers, behind a check
    (:mod:`~tilewright.schedules.guarded`). Raises ScheduleError if a step is not legal."""
    program = _apply(workload, schedule)
    steps = [s for s in schedule.steps if isinstance(s, Winograd)]
    return guarded(workload, steps, program, _apply) if steps else program


def _apply(workload: Workload, schedule: Schedule) -> Program:
    parts = phases(workload, schedule)
    check(
        bool(parts),
        f"workload {workload.output}: expected at least one stage; got only views, which need no kernel",
    )
    known = {s.name for p in parts for s in p.stages} | set(workload.stages)
    for step in schedule.steps:
        check(step.stage in known, f"{step}: expected a stage of {sorted(known)}; got {step.stage!r}")
    types = dict(workload.types)
    constants = {n for n, _, c in workload.inputs if c}
    shared: list[Buffer] = []
    packed: list[Buffer] = []
    prepare: list[Node] = []
    body: list[Node] = []
    for part in parts:
        builder = _Builder(part, schedule, constants)
        main = builder.build()
        body += [*builder.packing.before, main]
        check(
            not builder.placement.in_place or part.leader.name == workload.output,
            f"inplace {sorted(builder.placement.in_place)}: expected a stage computed inside {workload.output}, the output",
        )
        shared += builder.packing.shared
        packed += builder.packing.packed
        prepare += builder.packing.prepare
        if part.leader.name != workload.output:
            leader = part.leader
            shared.append(Buffer(leader.name, leader.size, leader.dtype, "shared"))
    size = sum(instructions(n) for n in (*prepare, *body))
    check(
        size <= MAX_INSTRUCTIONS,
        f"expected a program of at most {MAX_INSTRUCTIONS} vector instructions; got about {size}; "
        "unroll less or choose smaller vectors",
    )
    local = [n.buffer for node in (*prepare, *body) for n in walk(node) if isinstance(n, Alloc)]
    _check_buffers([*packed, *shared, *local], sum(t.nbytes for t in types.values()))
    out = types[workload.output]
    return Program(
        tuple(Parameter(n, t.size, t.dtype) for n, t, _ in workload.inputs),
        Parameter(workload.output, out.size, out.dtype),
        tuple(packed),
        tuple(shared),
        seq(prepare) if prepare else Seq(()),
        seq(body),
    )


def _check_buffers(buffers: list[Buffer], tensor_bytes: int) -> None:
    most = max(MAX_BYTES, MAX_SHARE * tensor_bytes)
    for b in buffers:
        nbytes = b.size * SIZES[b.dtype]
        check(
            nbytes <= most, f"{b.name}: expected a buffer of at most {most} bytes; got {nbytes}; choose smaller tiles"
        )


class _Builder:
    """Builds the loop program of one phase: the leader's loops and what is computed in them."""

    def __init__(self, phase: Phase, schedule: Schedule, constants: set[str]) -> None:
        self.phase = phase
        self.placement = Placement(phase, schedule)
        self.statements = Statements(phase)
        self.packing = Packing(self.placement, self.statements, constants)
        self.whole = self.placement.packed_before()
        self.prefetching = Prefetching(self.placement, self.statements)
        self.pieces = pieces(phase, self.placement.leader)

    def build(self) -> Node:
        """The loops of the phase; what it packs before them is left in ``packing``."""
        leader = self.phase.leader
        state = start(self.phase)
        if leader.listing is not None:
            node = ordered_nest(self.placement, self.statements, state)
            self.prefetching.check_used()
            return node
        for s in self.phase.stages:
            loops = self.placement.loops_of(s)
            check(
                s is leader or not loops.stream,
                f"stream {s.name}: expected {leader.name}, which writes to memory",
            )
            for pack in loops.packs:
                check(s.reducer == "sum", f"{pack}: expected a stage that sums products")
                if pack.loop == ROOT:
                    state = self.packing.at_root(s, loops, pack, state)
        node = self._point(0, state)
        self.prefetching.check_used()
        return node

    def _point(self, position: int, state: State) -> Node:
        """What is inside the first ``position`` loops: widths that must be static from here on are made so, then
        come the producers computed here and the next loop."""
        if position >= self.placement.parallel_end:
            items = self.placement.leader.items[position:]
            for axis, _ in self.phase.leader.axes:
                if isinstance(state.width[axis], Dyn) and all(i.static for i in items if i.axis == axis):
                    return resolve(axis, state, lambda s: self._point(position, s))
        return self._pack(list(self.phase.stages[:-1]) if position else [], position, state)

    def _pack(self, stages: list[PStage], position: int, state: State) -> Node:
        """What ``stages`` pack at this loop of the leader, and then the producers computed here and the next loop."""
        if not stages:
            here = [n for n, _, _ in self.phase.attached if self.placement.position[n] == position]
            return self._attach(here, position, state)
        return self.packing.at_leader(stages[0], position, state, lambda s: self._pack(stages[1:], position, s))

    def _attach(self, names: list[str], position: int, state: State) -> Node:
        """Producers computed at this point, one after the other, and then the rest of the leader."""
        if not names:
            return self._loop(position, state)
        stage = self.phase.stage(names[0])
        if position:
            unknown = ragged(stage, self.phase, state)
            if unknown is not None:
                return resolve(unknown, state, lambda s: self._attach(names, position, s))
            state = narrowed(stage, self.phase, self.whole, state)
        reused = reusable_buffer(stage, self.placement, state)
        local = reused or local_buffer(stage, self.placement, state)
        inner = state.with_local(stage.name, local)
        node = produce(stage, self.placement, self.packing, self.statements, self.prefetching, inner)
        both = seq([node, self._attach(names[1:], position, inner)])
        return both if reused else Alloc(local.buffer, both)

    def _loop(self, position: int, state: State) -> Node:
        loops = self.placement.leader
        if position == len(loops.items):
            return self._leaf(state)
        cut = self.pieces.get(loops.items[position].axis, ())
        if cut and loops.items[position].axis not in state.within:
            return seq([self._loop(position, state.piece(loops.items[position].axis, *piece)) for piece in cut])
        fetches = self.prefetching.blocks_at(position, state)
        return open_loop(
            loops.items[position], loops, state, lambda s: seq([*fetches(s), self._point(position + 1, s)])
        )

    def _leaf(self, state: State) -> Node:
        """One element of the leader, which lives in memory, row-major."""
        leader = self.phase.leader
        index = output_buffer(leader).index(state.base)
        value = self.statements.value(leader, leader.body, state)
        store = self.statements.store(leader.name, index, value, stream=self.placement.leader.stream)
        return seq([*self.prefetching.at(leader, state), store])
