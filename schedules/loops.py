"""How one stage is looped: tile sizes, loop order and loop kinds, read from the steps of a schedule and
checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.schedules.phase import PStage
from tilewright.schedules.steps import (
    Order,
    Pack,
    Parallel,
    Schedule,
    Split,
    Spread,
    Step,
    Stream,
    Unroll,
    Vectorize,
    check,
)

STATIC = ("vector", "unroll")


@dataclass(frozen=True, slots=True)
class Item:
    """One loop: ``axis.level``; each iteration covers ``size`` elements of the axis."""

    axis: str
    level: int
    size: int
    kind: str

    @property
    def name(self) -> str:
        """``axis.level``."""
        return f"{self.axis}.{self.level}"

    @property
    def static(self) -> bool:
        """Whether the loop disappears into straight-line code."""
        return self.kind in STATIC


@dataclass(frozen=True, slots=True)
class StageLoops:
    """The loops of one stage, outermost first."""

    stage: str
    items: tuple[Item, ...]
    spread: frozenset[str]
    packs: tuple[Pack, ...]
    stream: bool

    def dynamic_inside(self, axis: str, level: int) -> bool:
        """Whether ``axis`` has a loop deeper than ``level`` that stays a loop."""
        return any(i.axis == axis and i.level > level and not i.static for i in self.items)


def sizes_of(stage: PStage, schedule: Schedule, inherited: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Tile sizes of every axis: from ``split`` steps, else inherited from the leader, else none."""
    out = {a: inherited.get(a, ()) for a in stage.extents}
    for step in schedule.of(stage.name):
        if isinstance(step, Split):
            check(step.axis in out, f"{step}: expected an axis of {sorted(out)}; got {step.axis!r}")
            check(
                len(step.sizes) > 0 and all(s > 0 for s in step.sizes),
                f"{step}: expected sizes of at least 1",
            )
            for outer, inner in zip(step.sizes, step.sizes[1:], strict=False):
                check(
                    outer % inner == 0,
                    f"{step}: expected each size to be a multiple of the next; got {outer}, {inner}",
                )
            out[step.axis] = step.sizes
    return out


def stage_loops(
    stage: PStage,
    schedule: Schedule,
    sizes: Mapping[str, tuple[int, ...]],
    first_level: Mapping[str, int],
    inherited_kinds: Mapping[str, str],
) -> StageLoops:
    """Read the loops of ``stage``. ``first_level`` says, for axes shared with a leader, the first level that
    is still open where the stage is computed; ``inherited_kinds`` gives the leader's loop kinds."""
    steps = schedule.of(stage.name)
    names = [f"{a}.{k}" for a, _ in stage.axes + stage.reduce for k in range(first_level.get(a, 0), len(sizes[a]) + 1)]
    kinds = {n: inherited_kinds.get(n, "serial") for n in names}
    for step in steps:
        if isinstance(step, (Vectorize, Unroll, Spread)):
            check(step.loop in kinds, f"{step}: expected a loop of {names}; got {step.loop!r}")
            if not isinstance(step, Spread):
                kinds[step.loop] = "vector" if isinstance(step, Vectorize) else "unroll"
    order = _order(stage, steps, names)
    spread = frozenset(s.loop for s in steps if isinstance(s, Spread))
    reduced = {a for a, _ in stage.reduce}
    for loop in spread:
        axis = loop.rsplit(".", 1)[0]
        check(
            kinds[loop] == "unroll" and axis in reduced,
            f"spread {stage.name} {loop}: expected an unrolled reduction loop",
        )
    vectors = [n for n in names if kinds[n] == "vector"]
    check(len(vectors) <= 1, f"vectorize {stage.name}: expected at most one vector loop; got {vectors}")
    count = next((s.count for s in steps if isinstance(s, Parallel)), 0)
    check(count <= len(order), f"parallel {stage.name} {count}: the stage has only {len(order)} loops")
    for n in order[:count]:
        axis = n.rsplit(".", 1)[0]
        check(
            axis not in reduced,
            f"parallel {stage.name}: loop {n} is a reduction; split it into a stage of partial results",
        )
        check(kinds[n] == "serial", f"parallel {stage.name}: loop {n} is also {kinds[n]}")
        kinds[n] = "parallel"
    items = tuple(_item(n, sizes, kinds[n]) for n in order)
    packs = tuple(s for s in steps if isinstance(s, Pack))
    return StageLoops(stage.name, items, spread, packs, any(isinstance(s, Stream) for s in steps))


def _order(stage: PStage, steps: list[Step], names: list[str]) -> list[str]:
    given = [s for s in steps if isinstance(s, Order)]
    if not given:
        return names
    order = list(given[-1].loops)
    check(sorted(order) == sorted(names), f"{given[-1]}: expected the loops {names}, each once")
    seen: dict[str, int] = {}
    for n in order:
        axis, level = n.rsplit(".", 1)
        check(
            seen.get(axis, -1) < int(level),
            f"{given[-1]}: expected the loops of axis {axis} from outer to inner",
        )
        seen[axis] = int(level)
    return order


def _item(name: str, sizes: Mapping[str, tuple[int, ...]], kind: str) -> Item:
    axis, level = name.rsplit(".", 1)
    k = int(level)
    return Item(axis, k, sizes[axis][k] if k < len(sizes[axis]) else 1, kind)
