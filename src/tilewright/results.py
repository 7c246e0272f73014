"""What a tuning run says while it goes on and at its end: plain data for displays and callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.measure import Outcome
from tilewright.tasks import Task


class TuneError(RuntimeError):
    """Nothing could be tuned: not one candidate of some task was valid. The text holds the first error in full."""


@dataclass(frozen=True, slots=True)
class Event:
    """One finished measurement, for progress displays."""

    elapsed_s: float
    trials: int
    task: Task
    outcome: Outcome
    best_ns: float
    improved: bool


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class TaskResult:
    """What a task's search found (times in ns; ``measured`` counts this run's measurements, ``known`` what was there)."""

    task: Task
    default_ns: float
    best_ns: float
    best_schedule: str
    measured: int
    known: int
    failures: dict[str, int]


@dataclass(frozen=True)
class TuneResult:
    """The outcome of a run."""

    run_id: str
    tasks: tuple[TaskResult, ...]
    trials: int
    seconds: float
    interrupted: bool
    stopped: str
    noise: float
    """The difference a kernel showed against itself before the run (A/A test); 0 where the runner does not measure."""

    @property
    def default_ns(self) -> float:
        """Sum of kernel times of one model run with default schedules."""
        return sum(t.task.weight * t.default_ns for t in self.tasks)

    @property
    def best_ns(self) -> float:
        """Sum of kernel times of one model run with the best schedules found."""
        return sum(t.task.weight * t.best_ns for t in self.tasks)
