"""Tasks: what a model asks to be tuned. One for each distinct workload, with the number of times the model runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.cost_model.prior import prior_ns
from tilewright.fixed import groups_of_a_call
from tilewright.graph.graph import Graph
from tilewright.graph.passes import prepared
from tilewright.graph.workload import Workload
from tilewright.schedules.apply import apply
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.target import Target
from tilewright.search_space.candidate import Candidate, preferred
from tilewright.search_space.fusion import fuse
from tilewright.search_space.sketch import enumerate_points
from tilewright.search_space.space import Space, space


@dataclass(frozen=True)
class Task:
    """A workload and its ``weight`` (how often the model runs it); ``origin`` is a name for people."""

    workload: Workload
    weight: int
    origin: str


def extract(graph: Graph, target: Target) -> list[Task]:
    """The tasks of a model, in order of first use. What runs once, when the model is loaded, is none."""
    counts: dict[str, int] = {}
    first: dict[str, tuple[Workload, str]] = {}
    graph = prepared(graph)
    for g in groups_of_a_call(graph, fuse(graph, target)):
        counts[g.workload.hash] = counts.get(g.workload.hash, 0) + 1
        first.setdefault(g.workload.hash, (g.workload, g.origin))
    return [Task(w, counts[h], origin) for h, (w, origin) in first.items()]


SAMPLED = 96
"""Points of each sketch that the default is chosen from, besides its preferred one."""


def default_candidate(of: Space) -> Candidate:
    """Candidate 0 of a space, and what an untuned compile uses: the fastest by the analytic prior among the preferred candidates
    and a fixed sample of each sketch. Needs no measurement and no learned model."""
    times: list[float] = []
    candidates: list[Candidate] = []
    for first in preferred(of):
        sketch = first.sketch
        rows = np.asarray([first.values], dtype=np.int64).reshape(1, len(first.values))
        if sketch.params:
            rows = np.concatenate([rows, enumerate_points(sketch, SAMPLED).rows])
        predicted = prior_ns(sketch, rows)
        for k in np.argsort(predicted, kind="stable")[:3]:
            times.append(float(predicted[k]))
            candidates.append(Candidate(sketch, tuple(int(x) for x in rows[k])))
    for k in np.argsort(times, kind="stable"):
        if applies(candidates[int(k)]):
            return candidates[int(k)]
    return preferred(of)[-1]


def applies(candidate: Candidate) -> bool:
    """Whether a candidate's schedule is legal for its workload."""
    try:
        apply(candidate.sketch.workload, candidate.schedule)
    except ScheduleError:
        return False
    return True


def default_for(workload: Workload, target: Target, algorithms: str = "any") -> Candidate:
    """The default candidate of a workload."""
    return default_candidate(space(workload, target, algorithms))
