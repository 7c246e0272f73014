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
    """Seconds since the run began."""
    trials: int
    """Measurements finished so far."""
    task: Task
    outcome: Outcome
    best_ns: float
    """The task's best time so far; infinity before the first success."""
    improved: bool
    """Whether this measurement is the new best."""


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class TaskResult:
    """What a task's search found. Times are nanoseconds of one run of the kernel, infinity where there is none."""

    task: Task
    default_ns: float
    best_ns: float
    best_schedule: str
    """As text, one step a line."""
    measured: int
    """Measurements of this run."""
    known: int
    """Measurements that the store held before."""
    failures: dict[str, int]
    """How many of this run's measurements failed, by status (a duplicate or an abandoned one has not failed)."""
    first_error: str = ""
    """Status and error, in full, of the first of them."""
    others: int = 0
    """Candidates besides the default that are known to be valid."""
    kept: str = ""
    """Why the default stays although no contest decided that; empty where one did, or where nothing else looked faster."""

    @property
    def only_default(self) -> bool:
        """Whether candidates failed in this run and nothing but the default is known to be valid: nothing was searched."""
        return bool(self.failures) and not self.others


@dataclass(frozen=True)
class TuneResult:
    """The outcome of a run."""

    run_id: str
    """What the run's records carry."""
    tasks: tuple[TaskResult, ...]
    trials: int
    """Measurements finished, of all tasks."""
    seconds: float
    """What the run took."""
    interrupted: bool
    stopped: str
    """Why: the budget, every task flat or used up, or interrupted."""
    noise: float
    """The difference a kernel showed against itself before the run (an A/A test), as a share: 0.02 is 2 %. 0 where the runner does
    not measure."""

    @property
    def fruitless(self) -> bool:
        """Whether nothing but default schedules could be measured, in no task, because the others failed."""
        return any(t.only_default for t in self.tasks) and not any(t.others for t in self.tasks)

    @property
    def default_ns(self) -> float:
        """Nanoseconds of the kernels of one run of the model with default schedules, added up."""
        return sum(t.task.weight * t.default_ns for t in self.tasks)

    @property
    def best_ns(self) -> float:
        """Nanoseconds of the kernels of one run of the model with the best schedules found, added up."""
        return sum(t.task.weight * t.best_ns for t in self.tasks)
