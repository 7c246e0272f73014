"""The schedule space of one workload on one target: the sketches of every rule that fits, and the fallback that always does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tilewright.graph.workload import Workload
from tilewright.schedules.apply import apply
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import Inline, Schedule, ScheduleError, Step
from tilewright.schedules.target import Target
from tilewright.search_space.attention_rule import attention_sketches
from tilewright.search_space.injective_rule import copy_steps, injective_sketches
from tilewright.search_space.ordered_rule import ordered_sketches
from tilewright.search_space.prologue import plan
from tilewright.search_space.rfactor_rule import rfactor_sketches
from tilewright.search_space.rows_rule import rows_sketches
from tilewright.search_space.sketch import Open, Sketch
from tilewright.search_space.tile_rule import tile_sketches
from tilewright.search_space.winograd_rule import winograd_sketches

Rule = Callable[[Workload, Target], list[Sketch]]
RULES: tuple[Rule, ...] = (tile_sketches, rfactor_sketches, rows_sketches, attention_sketches, injective_sketches)
OTHER_ALGORITHMS: tuple[Rule, ...] = (winograd_sketches,)
"""Rules whose results round differently from the sums as they are written."""


@dataclass(frozen=True)
class Space:
    """All sketches of a workload, the fallback last."""

    workload: Workload
    target: Target
    sketches: tuple[Sketch, ...]

    @property
    def size(self) -> int:
        """Points of all sketches, before constraints."""
        return sum(s.size for s in self.sketches)


def space(workload: Workload, target: Target, algorithms: str = "any") -> Space:
    """The space of ``workload``; with ``algorithms="direct"`` without the algorithms that magnify rounding errors. Never empty: the
    fallback fits everything. Whether a sketch of the other rules applies is seen
    when a candidate of it is built: one that does not is refused with the reason, and counted."""
    rules = (*RULES, *(OTHER_ALGORITHMS if algorithms == "any" else ()))
    if any(s.ordered is not None for s in workload.stages.values()):
        rules = (ordered_sketches,)  # the others order the loops of a reduction as they like
    sketches = [s for rule in rules for s in rule(workload, target)]
    return Space(workload, target, distinct((*sketches, fallback(workload, target))))


def distinct(sketches: Iterable[Sketch]) -> tuple[Sketch, ...]:
    """The sketches with names of their own, by which candidates and records are told apart: the second of a name gets a number."""
    seen: dict[str, int] = {}
    out = []
    for s in sketches:
        seen[s.name] = seen.get(s.name, 0) + 1
        out.append(s if seen[s.name] == 1 else replace(s, name=f"{s.name}#{seen[s.name]}"))
    return tuple(out)


def fallback(workload: Workload, target: Target) -> Sketch:
    """A schedule that is legal for every workload: each stage a phase of its own, vectors along the last axis of maps."""
    best: tuple[Step | Open, ...] = ()
    for inlined in (plan(workload).inlined, ()):
        base: list[Step | Open] = [Inline(s) for s in workload.stages if s in inlined]
        steps = list(base)
        try:
            for p in phases(workload, Schedule(tuple(s for s in base if isinstance(s, Step)))):
                if len(p.stages) == 1:
                    steps += copy_steps(p.leader, target)
            sketch = Sketch("fallback", workload, target, tuple(steps), (), (), workload.output, {})
            apply(workload, sketch.schedule({}))
        except ScheduleError:
            continue
        best = tuple(steps)
        break
    return Sketch("fallback", workload, target, best, (), (), workload.output, {})
