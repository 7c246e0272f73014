"""Which loops each stage of a phase has, and at which loop of the leader it is computed.

A producer shares the axes of the leader, so the loops of these axes that are already open where it is computed are
its own too, with the leader's tile sizes; inside them it takes the leader's sizes and kinds unless its steps say
otherwise. A producer may also be computed inside all loops of another producer that reads it (a *guest* of that
host): it then has the loops of the host. All of this is known before any loop is opened and is refused here.
"""

from __future__ import annotations

from tilewright.graph.expr import Var
from tilewright.graph.traverse import loads
from tilewright.schedules.factors import product_factors
from tilewright.schedules.loops import StageLoops, sizes_of, stage_loops
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.steps import At, InPlace, Schedule, check


class Placement:
    """The loops of the stages of one phase. ``position`` is the number of the leader's loops around each
    producer."""

    def __init__(self, phase: Phase, schedule: Schedule) -> None:
        self.phase = phase
        self.schedule = schedule
        self.sizes = sizes_of(phase.leader, schedule, {})
        self.leader = stage_loops(phase.leader, schedule, self.sizes, {}, {})
        self.position: dict[str, int] = {}
        self.host: dict[str, str] = {n: into for n, into, _ in phase.attached if into != phase.leader.name}
        parallel = [k for k, i in enumerate(self.leader.items) if i.kind == "parallel"]
        self.parallel_end = parallel[-1] + 1 if parallel else 0
        """The number of loops down to the innermost parallel one."""
        loop_of = {name: loop for name, _, loop in phase.attached}
        for name, into, loop in phase.attached:
            if into in loop_of:
                check(loop == "tile", f"at {name}: expected tile, inside all loops of {into}; got {loop!r}")
                check(into not in self.host, f"at {name}: expected {into} to be computed in {phase.leader.name}")
            self.position[name] = self._position(name, loop_of.get(into, loop))
            self._check_place(name, len(parallel))
        for a, b in zip(phase.attached, phase.attached[1:], strict=False):
            check(
                self.position[a[0]] <= self.position[b[0]],
                f"at {b[0]}: it must be computed no further out than {a[0]}, which comes before it",
            )

        self.in_place = {s.stage for s in schedule.steps if isinstance(s, InPlace)} & {s.name for s in phase.stages}
        """Producers whose result lies where the leader's output will be."""
        for name in sorted(self.in_place):
            self._check_in_place(phase.stage(name))
        for name, into in self.host.items():
            self._check_guest(phase.stage(name), phase.stage(into))

    def guests(self, host: str) -> list[PStage]:
        """The producers computed inside all loops of ``host``, in order."""
        return [self.phase.stage(n) for n, _, _ in self.phase.attached if self.host.get(n) == host]

    def _check_in_place(self, stage: PStage) -> None:
        """Refuse a producer whose place the leader would write before everybody has read it."""
        leader = self.phase.leader
        check(stage is not leader, f"inplace {stage.name}: expected a stage computed inside another")
        check(stage.reducer is None, f"inplace {stage.name}: expected a stage without a reduction")
        check(
            (dict(stage.axes), stage.body.dtype) == (dict(leader.axes), leader.body.dtype),
            f"inplace {stage.name}: expected the axes and the type of {leader.name}",
        )
        for reader in self.phase.stages:
            reads = [e for e in loads(reader.body) if e.tensor == stage.name]
            if reads and reader is leader:
                check(
                    all(isinstance(i, Var) for e in reads for i in e.index),
                    f"inplace {stage.name}: expected {leader.name} to read just the element that it writes",
                )
            elif reads:
                check(
                    self.position[reader.name] == self.position[stage.name],
                    f"inplace {stage.name}: expected {reader.name}, which reads it, at the same loop",
                )

    def _check_guest(self, guest: PStage, host: PStage) -> None:
        """Refuse a guest that the loops of its host would not compute once at every point, just before it is read."""
        stages = self.phase.stages
        text = f"at {guest.name} {host.name}"
        check(guest.reducer is None, f"{text}: expected a stage without a reduction")
        inside = {i.axis for i in self.loops_of(host).items}
        own = {a for a, _ in guest.axes}
        check(
            inside <= own <= set(host.extents),
            f"{text}: expected the axes {sorted(inside)} of its loops; got {sorted(own)}",
        )
        before = stages[stages.index(guest) + 1 : stages.index(host) + 1]
        for reader in before:
            reads = [e for e in loads(reader.body) if e.tensor == guest.name]
            with_host = reader is host or self.host.get(reader.name) == host.name
            check(
                not reads or (with_host and all(isinstance(i, Var) for e in reads for i in e.index)),
                f"{text}: expected {reader.name} to read it in step, in the same loops",
            )
        steps = [s for s in self.schedule.of(guest.name) if not isinstance(s, (At, InPlace))]
        check(not steps, f"{'; '.join(map(str, steps))}: {guest.name} has no loops of its own inside {host.name}")
        packed = [p for p in self.loops_of(host).packs if guest.name in _read_by_factor(host, p.factor)]
        check(not packed, f"{text}: {host.name} packs a factor that reads it")

    def _position(self, name: str, loop: str) -> int:
        if loop == "root":
            return 0
        if loop == "tile":
            return max((k + 1 for k, i in enumerate(self.leader.items) if not i.static), default=0)
        names = [i.name for i in self.leader.items]
        check(loop in names, f"at {name}: expected a loop of {names}, root or tile; got {loop!r}")
        return names.index(loop) + 1

    def _check_place(self, name: str, parallel: int) -> None:
        """Refuse a place where a producer cannot be computed."""
        stage = self.phase.stage(name)
        outside = self.leader.items[: self.position[name]]
        opened = {i.axis for i in outside} & {a for a, _ in stage.reduce}
        check(not opened, f"at {name}: expected a place outside the loops of {sorted(opened)}, which it reduces")
        check(all(i.kind != "vector" for i in outside), f"at {name}: expected a place outside the vector loop")
        check(
            not outside or len(outside) >= self.parallel_end,
            f"at {name}: expected a place inside all {parallel} parallel loops or outside of them",
        )

    def packed_before(self) -> set[str]:
        """Axes of factors that are packed further out than the stage that reads the copy: the copy is found by their loops, which
        must therefore walk all of them."""
        out: set[str] = set()
        for stage in self.phase.stages[:-1]:
            around = {i.name for i in self.leader.items[: self.position[stage.name]]}
            for pack in self.loops_of(stage).packs:
                if pack.loop in around or pack.loop not in {i.name for i in self.loops_of(stage).items}:
                    out |= {name.rsplit(".", 1)[0] for name in pack.layout}
        return out

    def sizes_of(self, stage: PStage) -> dict[str, tuple[int, ...]]:
        """Tile sizes of a producer: its own, or for the axes it shares with the leader the leader's."""
        return sizes_of(stage, self.schedule, self._inherited(stage))

    def loops_of(self, stage: PStage) -> StageLoops:
        """The loops of a stage, for a producer those that are not open where it is computed."""
        if stage is self.phase.leader:
            return self.leader
        if stage.name in self.host:
            host = self.loops_of(self.phase.stage(self.host[stage.name]))
            return StageLoops(stage.name, host.items, frozenset(), (), False)
        opened = [i.axis for i in self.leader.items[: self.position[stage.name]]]
        kinds = {i.name: i.kind for i in self.leader.items if i.kind != "parallel"}
        inherited = self._inherited(stage)
        sizes = self.sizes_of(stage)
        for a in inherited:
            count = opened.count(a)
            fixed = (*inherited[a], 1)[:count]  # the innermost loop of an axis covers one element an iteration
            check(
                (*sizes[a], 1)[:count] == fixed,
                f"split {stage.name} {a}: expected the sizes {fixed} of the loops outside; got {sizes[a]}",
            )
            if sizes[a] != inherited[a]:
                for k in range(count, len(sizes[a]) + 1):
                    kinds.pop(f"{a}.{k}", None)
        shared = {a: opened.count(a) for a in inherited}
        own = {n: k for n, k in kinds.items() if n.rsplit(".", 1)[0] in inherited}
        loops = stage_loops(stage, self.schedule, sizes, shared, own)
        check(
            all(i.kind != "parallel" for i in loops.items),
            f"parallel {stage.name}: it is computed inside {self.phase.leader.name}; make the loops of that parallel",
        )
        return loops

    def _inherited(self, stage: PStage) -> dict[str, tuple[int, ...]]:
        """The leader's tile sizes of the axes that ``stage`` shares with it."""
        spatial = {a for a, _ in stage.axes}
        return {a: s for a, s in self.sizes.items() if a in spatial}


def _read_by_factor(stage: PStage, factor: int) -> set[str]:
    """The tensors that a factor of the product ``stage`` sums reads."""
    factors = product_factors(stage.body)
    return {e.tensor for e in loads(factors[factor])} if factor < len(factors) else set()
