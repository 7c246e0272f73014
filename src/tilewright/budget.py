"""When to stop, and where the next measurements go: tasks get their share by weight x time x expected gain; no task starves."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.cost_model.prior import CLOCK_GHZ
from tilewright.schedules.target import Target
from tilewright.tasks import Task

PATIENCE = 4
"""Batches without improvement after which a task's expected gain is nearly nothing."""

LEAST = 56
"""Measurements of a task before it counts as flat: with fewer the model knows too little to say so."""


def floor_ns(task: Task, target: Target) -> float:
    """The least time the workload could take: operations over the peak rate, bytes over a generous bandwidth (the caches')."""
    flops_per_ns = target.threads * target.lanes("float32") * 2 * target.fma_per_cycle * CLOCK_GHZ
    bytes_per_ns = 16.0 * CLOCK_GHZ * target.threads
    return max(task.workload.flops / flops_per_ns, task.workload.min_bytes / bytes_per_ns, 100.0)


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: whichever limit is reached first. None is no limit; at least one of the two is needed.

    Raises ValueError for a limit that is not above 0, and where both are None.
    """

    seconds: float | None = 120.0
    """Of the whole run, with starting its workers."""
    trials: int | None = None
    """Finished measurements of this run; failures and duplicates count."""

    def __post_init__(self) -> None:
        if self.seconds is None and self.trials is None:
            raise ValueError("budget: expected seconds or trials; got neither")
        for name, value in (("seconds", self.seconds), ("trials", self.trials)):
            if value is not None and not value > 0:
                raise ValueError(f"budget {name}: expected a number above 0; got {value}")
        if self.trials is not None and (isinstance(self.trials, bool) or not isinstance(self.trials, int)):
            raise ValueError(f"budget trials: expected a whole number; got {self.trials!r}")


@dataclass
class Progress:
    """The state of one task during a run."""

    task: Task
    floor_ns: float
    default_ns: float = float("inf")
    best_ns: float = float("inf")
    best_schedule: str = ""
    trials: int = 0
    failures: int = 0
    stale: int = 0
    exhausted: bool = False
    history: list[tuple[int, float]] = field(default_factory=list)

    def told(self, time_ns: float, schedule: str) -> bool:
        """Count a finished measurement; True if it is the best so far."""
        self.trials += 1
        if time_ns == float("inf"):
            self.failures += 1
        better = time_ns < self.best_ns
        if better:
            self.best_ns, self.best_schedule = time_ns, schedule
            self.history.append((self.trials, time_ns))
        return better

    def expected_gain(self) -> float:
        """Nanoseconds of a model run that another batch may win."""
        if self.exhausted:
            return 0.0
        if self.best_ns == float("inf"):
            return float("inf") if self.trials < 64 else 0.0
        room = max(0.02, 1.0 - self.floor_ns / self.best_ns)
        fresh = 1.0 / (1.0 + self.trials / 16.0)
        return self.task.weight * self.best_ns * room * fresh * 0.5**self.stale


def choose(states: list[Progress]) -> Progress | None:
    """The task to measure next, or None when every task is exhausted or flat."""
    open_states = [s for s in states if not s.exhausted and (s.stale < PATIENCE or s.trials < LEAST)]
    if not open_states:
        return None
    return max(open_states, key=lambda s: (s.expected_gain(), -s.trials))
