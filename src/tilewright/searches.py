"""One task being searched: its space, and what is known of its candidates.

A record belongs to the candidate of the space that has its *schedule*. The names of its sketch and parameters only say where
to look first: a later version may give the same name to another template, and then the record says nothing of the
candidate that has its name now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tilewright.budget import Progress
from tilewright.graph.workload import Workload
from tilewright.schedules.apply import apply
from tilewright.schedules.steps import ScheduleError, parse
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Param, Sketch
from tilewright.search_space.space import Space
from tilewright.search_space.strategy import Strategy
from tilewright.tasks import Task
from tilewright.tuning_logs import NO_VERDICT, Record, candidate_id

UNSURE = 1.4
"""A candidate this many times slower than the default, by times of different sittings, may still be faster: processors change
their speed by as much for seconds at a time."""

CONTEST_CALLS = 24
"""Of each candidate, in a contest of 6 rounds: one to warm up and one that is timed, there and back."""


def identity(candidate: Candidate) -> str:
    """A candidate as the store knows it."""
    return candidate_id(str(candidate.schedule), candidate.params)


def told_ns(status: str, median_ns: float | None, samples_ns: tuple[float, ...]) -> float:
    """The time that a measurement tells a model: of a candidate that was abandoned as slow, how slow it looked; infinity
    for a failure."""
    if median_ns is not None:
        return median_ns
    return min(samples_ns) if status == "pruned_slow" and samples_ns else float("inf")


def teaches(status: str, samples_ns: tuple[float, ...]) -> bool:
    """Whether a model can learn from a measurement."""
    return status not in NO_VERDICT or (status == "pruned_slow" and len(samples_ns) > 0)


def why_stale(workload: Workload, schedule: str) -> str:
    """Why a record's schedule does not apply to this version any more; empty if it does."""
    try:
        apply(workload, parse(schedule))
    except ScheduleError as error:
        return f"its record does not apply to this version: {error}"
    return ""


def by_schedule(records: Iterable[Record]) -> dict[str, Record]:
    """What stands for each schedule, of records of one key; the latest where several do."""
    found: dict[str, Record] = {}
    for record in records:
        if record.schedule not in found or found[record.schedule].created <= record.created:
            found[record.schedule] = record
    return found


@dataclass
class Search:
    """One task being searched. ``known`` is by schedule, as text."""

    task: Task
    space: Space
    default: Candidate
    progress: Progress
    known: dict[str, Record]
    strategy: Strategy | None = None
    failures: dict[str, int] = field(default_factory=dict)
    first_error: str = ""
    abandoned: int = 0
    """Candidates that are valid, but were too slow to be timed in full."""
    measured: int = 0
    searched: int = 0
    """Measurements of this run, without those of the default."""
    spent_s: float = 0.0
    """What the measurements of this run took, without waiting."""
    known_before: int = 0
    rival_ns: float = float("inf")
    """The best time of another candidate than the default that no contest has settled."""

    def __post_init__(self) -> None:
        self.default_schedule = str(self.default.schedule)

    @property
    def default_measured(self) -> bool:
        """Whether the default has a time, and a record that says that it is the default."""
        record = self.known.get(self.default_schedule)
        return record is not None and record.is_default and self.progress.default_ns < float("inf")

    @property
    def others(self) -> int:
        """Candidates besides the default that are known to be valid."""
        valid = (r.status == "ok" and schedule != self.default_schedule for schedule, r in self.known.items())
        return sum(valid) + self.abandoned

    @property
    def open(self) -> bool:
        """Whether a candidate may beat the default that was not timed side by side with it."""
        default_ns = self.progress.default_ns
        return default_ns < float("inf") and self.rival_ns < UNSURE * default_ns

    @property
    def contestant_s(self) -> float:
        """Seconds that one candidate of a contest takes, as far as is known: to build and check it, as in a measurement, and the
        fewest rounds."""
        best_ns = self.progress.best_ns
        return self.spent_s / max(1, self.measured) + (CONTEST_CALLS * best_ns / 1e9 if best_ns < float("inf") else 0.0)

    def candidate(self, record: Record) -> Candidate | None:
        """A record's candidate in the space; None where no candidate has its schedule."""
        for sketch in sorted(self.space.sketches, key=lambda s: s.name != record.sketch):
            found = _of_sketch(sketch, record)
            if found is not None:
                return found
        return None

    def has(self, candidate: Candidate) -> bool:
        """Whether a candidate is of the space; if not, models and strategies know nothing of it."""
        return any(candidate.sketch is s for s in self.space.sketches)

    def outsider(self, record: Record) -> Candidate:
        """The candidate of a record that is not in the space any more, but may be the best all the same."""
        params = tuple(Param(name, (value,)) for name, value in record.params.items())
        sketch = Sketch(record.sketch, self.task.workload, self.space.target, parse(record.schedule).steps, params)
        return Candidate(sketch, tuple(record.params.values()))

    def remembered(self) -> Iterator[tuple[Candidate, Record]]:
        """Known records as candidates of the space."""
        for record in self.known.values():
            candidate = self.candidate(record)
            if candidate is not None:
                yield candidate, record


def _of_sketch(sketch: Sketch, record: Record) -> Candidate | None:
    """The candidate of a sketch that has a record's parameters, if it has its schedule too."""
    if set(record.params) != {p.name for p in sketch.params}:
        return None
    candidate = Candidate(sketch, tuple(record.params[p.name] for p in sketch.params))
    return candidate if str(candidate.schedule) == record.schedule else None
