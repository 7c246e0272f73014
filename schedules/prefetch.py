"""Software prefetch: what a stage reads some iterations of a loop later is asked for now.

Hardware finds runs that go on for long enough and stops at the end of a page; of a loop that reads short runs far apart
only the program knows where the next one begins. A fetch changes no value and may be of a place outside a tensor.
Iterations at the end of a loop fetch what the next one of the loop around it begins with.

- Mostly that is done where the stage reads: ``for i: y[i] = f(x[i])`` becomes
  ``for i: (fetch x[i + distance]; y[i] = f(x[i]))``.
- Where the stage is a block (:mod:`~tilewright.schedules.blocks`), what the next block is made from is asked for while
  this one is written out, some lines in each iteration of the loop that writes, run by run. So memory is read and written
  at the same time, which a block otherwise does one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.graph.affine import Affine, affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr, Load, binary, const, select, var
from tilewright.graph.traverse import loads
from tilewright.schedules.blocks import BLOCK
from tilewright.schedules.factors import product_factors
from tilewright.schedules.loops import Item
from tilewright.schedules.nest import LINE_BYTES, Fetch, If, Node, seq
from tilewright.schedules.phase import PStage
from tilewright.schedules.placement import Placement
from tilewright.schedules.state import State, cap
from tilewright.schedules.statements import Statements
from tilewright.schedules.steps import Prefetch, check

MOST_LINES = 64
"""Lines that one iteration of the loop that writes a block may ask for: each is an instruction."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A step, its loop, and the loop around that, if there is one."""

    step: Prefetch
    item: Item
    around: Item | None


@dataclass(frozen=True, slots=True)
class _Run:
    """What a block reads of a tensor: ``lines`` one after the other, and as many further on, along ``rows``: the extent and
    the step of each axis."""

    lines: int
    rows: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """How many runs there are."""
        out = 1
        for extent, _ in self.rows:
            out *= extent
        return out

    def offset(self, row: Expr) -> Expr:
        """Where run number ``row`` begins, after the first."""
        out: Expr = const(0, "int64")
        below = 1
        for extent, step in reversed(self.rows):
            at = binary("floordiv", row, below) if below > 1 else row
            at = binary("mod", at, extent) if below * extent < self.count else at
            out = binary("add", out, binary("mul", at, step))
            below *= extent
        return out


class Prefetching:
    """The fetches of one phase."""

    def __init__(self, placement: Placement, statements: Statements) -> None:
        self.placement = placement
        self.phase = placement.phase
        self.statements = statements
        self.inside: dict[str, list[_Wanted]] = {}
        self.blocks: dict[int, list[_Wanted]] = {}
        self.made: set[Prefetch] = set()
        for step in placement.schedule.steps:
            if isinstance(step, Prefetch) and step.stage in {s.name for s in self.phase.stages}:
                self._add(step)

    def _add(self, step: Prefetch) -> None:
        stage, leader = self.phase.stage(step.stage), self.placement.leader
        place = self.placement.position.get(stage.name, 0)
        outside = leader.items[:place]
        items = [i for i in (*outside, *self.placement.loops_of(stage).items) if not i.static]
        names = [i.name for i in items]
        check(step.distance > 0, f"{step}: expected a distance of at least 1")
        check(step.loop in names, f"{step}: expected a loop of {names}, which stay loops; got {step.loop!r}")
        at = names.index(step.loop)
        wanted = _Wanted(step, items[at], items[at - 1] if at else None)
        if stage.name.endswith(BLOCK) and items[at] in outside:
            check(
                place < len(leader.items) and not leader.items[place].static,
                f"{step}: expected a block that is written out by a loop of {leader.stage} that stays one",
            )
            self.blocks.setdefault(place, []).append(wanted)
        else:
            self.inside.setdefault(stage.name, []).append(wanted)

    def at(self, stage: PStage, state: State) -> list[Node]:
        """What ``stage`` fetches at this point, where it reads."""
        out: list[Node] = []
        for w in self.inside.get(stage.name, ()):
            for source in self._sources(stage, state):
                found = self._later(stage, source, state, w)
                if found is not None and found not in out:
                    out.append(found)
        return out

    def blocks_at(self, position: int, state: State) -> Callable[[State], list[Node]]:
        """What is fetched for later blocks in each iteration of the leader's loop number ``position``; ``state`` is that
        outside the loop."""
        parts: list[Callable[[State], list[Node]]] = []
        for w in self.blocks.get(position, ()):
            stage = self.phase.stage(w.step.stage)
            item = self.placement.leader.items[position]
            trips = -(-cap(state.width[item.axis]) // item.size)
            for source in self._sources(stage, state):
                run = self._run(stage, source, _moved(state, w.item, w.step.distance))
                first = self._later(stage, source, state, w) if run is not None else None
                if run is not None and first is not None:
                    parts.append(_spread(first, run, trips, item, w.step))
        return lambda inner: [n for p in parts for n in p(inner)]

    def _sources(self, stage: PStage, state: State) -> list[Expr]:
        """The loads of ``stage``, and its packed factors, which are loads where they are read."""
        factors = product_factors(stage.body)
        packed = [factors[k] for name, k in state.packed if name == stage.name]
        inside = {e for f in packed for e in loads(f)}
        return [*packed, *(e for e in loads(stage.body) if e not in inside)]

    def _read(self, stage: PStage, source: Expr, state: State) -> tuple[Load, Affine] | None:
        """What is read from memory that all threads see, and where, if that is an affine form."""
        e = self.statements.value(stage, source, state)
        own = {x.buffer.name for x in state.locals.values() if x.buffer.scope in ("register", "thread")}
        own |= {p.buffer.name for p in state.packed.values() if p.buffer.scope == "thread"}
        if not isinstance(e, Load) or e.tensor in own:
            return None
        index = affine(e.index[0])
        return None if index is None else (e, index)

    def _later(self, stage: PStage, source: Expr, state: State, w: _Wanted) -> Fetch | None:
        """The fetch of what will be read, unless that is what is read now."""
        now, later = self._read(stage, source, state), self._read(stage, source, _moved(state, w.item, w.step.distance))
        if now is None or later is None or now[1] == later[1]:
            return None
        self.made.add(w.step)
        load, index = later
        beyond: Expr | None = None
        first = _trips(state, w.item) - w.step.distance
        further = self._read(stage, source, _wrapped(state, w))
        if further is not None and first >= 0 and w.item.name in state.ranges:
            delta = further[1] + index.scale(-1)
            if delta.const and not delta.terms:
                past = binary("le", const(first, "int64"), var(w.item.name))
                beyond = select(past, const(delta.const, "int64"), const(0, "int64"))
        return Fetch(load.tensor, index.expr(), load.dtype, beyond)

    def _run(self, stage: PStage, source: Expr, state: State) -> _Run | None:
        """What the block reads of a tensor, if runs of it are contiguous."""
        start = self._read(stage, source, state)
        if start is None:
            return None
        steps: list[tuple[int, int]] = []
        length = 0
        for a, _ in stage.axes:
            moved = self._read(stage, source, replace(state, base={**state.base, a: state.base[a] + Affine((), 1)}))
            step = moved[1] + start[1].scale(-1) if moved is not None else None
            if step is None or step.terms:
                return None
            if step.const == 1:
                length = cap(state.width[a])
            elif step.const and cap(state.width[a]) > 1:
                steps.append((cap(state.width[a]), step.const))
        lines = -(-length * SIZES[start[0].dtype] // LINE_BYTES)
        return _Run(lines, tuple(steps)) if lines else None

    def check_used(self) -> None:
        """Refuse a step that fetches nothing."""
        for wanted in (*self.inside.values(), *self.blocks.values()):
            for w in wanted:
                check(
                    w.step in self.made,
                    f"{w.step}: expected a stage that reads, from memory, other places in each iteration of the loop",
                )


def _spread(first: Fetch, run: _Run, trips: int, item: Item, step: Prefetch) -> Callable[[State], list[Node]]:
    """All runs of a block that begins at ``first``, in order, a share of them in each of the ``trips`` iterations of
    ``item``."""
    share = -(-run.count * run.lines // trips)
    if share < run.lines:  # a part of a run, such that a run is a whole number of parts
        share = next(n for n in range(share, run.lines + 1) if run.lines % n == 0)
    else:
        share = -(-share // run.lines) * run.lines
    text = f"{step}: expected at most {MOST_LINES} lines in an iteration of {item.name}; got {share}"
    check(share <= MOST_LINES, text)
    parts, each = max(run.lines // share, 1), max(share // run.lines, 1)
    line = LINE_BYTES // SIZES[first.dtype]
    needed = -(-run.count * parts // each)

    def fetches(inner: State) -> list[Node]:
        at = inner.loops[item.axis, item.level].expr()
        out: list[Node] = []
        for r in range(each):
            row = binary("floordiv", at, parts) if parts > 1 else binary("add", binary("mul", at, each), r)
            more = run.offset(row)
            if parts > 1:
                more = binary("add", more, binary("mul", binary("mod", at, parts), share * line))
            if first.beyond is not None:
                more = binary("add", more, first.beyond)
            for k in range(min(share, run.lines)):
                out.append(replace(first, index=binary("add", first.index, k * line), beyond=more))
        return out if needed >= trips else [If(binary("lt", at, needed), seq(out))]

    return fetches


def _moved(state: State, item: Item, by: int) -> State:
    """The state ``by`` iterations of a loop later."""
    step, key = Affine((), by), (item.axis, item.level)
    return replace(
        state,
        base={**state.base, item.axis: state.base[item.axis] + step.scale(item.size)},
        loops={**state.loops, key: state.loops[key] + step},
    )


def _trips(state: State, item: Item) -> int:
    """Iterations of a loop, 1 where it is none here."""
    return state.ranges.get(item.name, (0, 0))[1] + 1


def _wrapped(state: State, w: _Wanted) -> State:
    """The state as many iterations later, of which the last are those of the next iteration of the loop around."""
    later = _moved(state, w.item, w.step.distance)
    if w.around is None or w.around.name not in state.ranges:
        return later
    return _moved(_moved(later, w.item, -_trips(state, w.item)), w.around, 1)
