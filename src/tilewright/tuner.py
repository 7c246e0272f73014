"""Tune a model: measure the best candidates of every task within a budget, and keep everything in the store.

Each finished measurement is committed to the store before the next starts, so an interrupt or a kill loses nothing and the same
call resumes: what was measured is told to the search again and costs no trial. The default schedule is candidate 0 of every
task. The run ends by measuring the leaders and the default of the tasks that gained most once more, as far as the budget allows;
what the store calls a candidate's time is then a median of several measurements.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.budget import Progress, choose, floor_ns
from tilewright.graph.graph import Graph
from tilewright.learning import Learner
from tilewright.measure import DeviceError, LocalRunner, Outcome, Policy, Request
from tilewright.measure.request import Runner
from tilewright.runtime import missing_features
from tilewright.schedules.target import Target
from tilewright.search_space.sketch import Ints, Sketch
from tilewright.search_space.space import Space, space
from tilewright.search_space.strategies import Candidate, SearchConfig, Strategy, make_strategy
from tilewright.tasks import Task, default_candidate, extract
from tilewright.tuning_logs import (
    NO_VERDICT,
    Record,
    Store,
    candidate_id,
    environment_versions,
    policy_hash,
    target_hash,
)

BUILDERS = min(2, os.cpu_count() or 1)
"""Candidates built side by side (timing always has the machine to itself)."""


def _time_of(record: Record) -> float:
    return record.median_ns if record.median_ns is not None else float("inf")


class TuneError(RuntimeError):
    """Nothing could be tuned: not one candidate of some task was valid. The text holds the first error in full."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: seconds and finished measurements, whichever comes first (None: no limit)."""

    seconds: float | None = 120.0
    trials: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.trials is None:
            raise ValueError("budget: expected seconds or trials; got neither")
        for name, value in (("seconds", self.seconds), ("trials", self.trials)):
            if value is not None and value <= 0:
                raise ValueError(f"budget {name}: expected a number above 0; got {value}")


@dataclass(frozen=True, slots=True)
class Event:
    """One finished measurement, for progress displays."""

    elapsed_s: float
    trials: int
    task: Task
    outcome: Outcome
    best_ns: float
    improved: bool


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


Listener = Callable[[Event], None]


@dataclass
class _Search:
    """One task being searched."""

    task: Task
    space: Space
    progress: Progress
    known: dict[str, Record]
    strategy: Strategy | None = None
    failures: dict[str, int] = field(default_factory=dict)
    first_error: str = ""
    measured: int = 0
    top: list[tuple[float, Candidate]] = field(default_factory=list)
    known_before: int = 0


def tune(
    model: Graph | Iterable[Task],
    target: Target,
    store: Store,
    budget: Budget | None = None,
    *,
    strategy: str = "ranked",
    seed: int = 0,
    policy: Policy | None = None,
    batch: int = 8,
    listener: Listener | None = None,
    runner: Runner | None = None,
    max_noise: float = 1.0,
) -> TuneResult:
    """Tune a graph (or tasks) for ``target`` into ``store``.

    Raises TuneError if some task had no valid candidate at all, DeviceError if the device cannot measure, is another one than
    the target, or differs from itself by more than ``max_noise`` in an A/A test. A KeyboardInterrupt ends the run early; the
    result then says ``interrupted``.
    """
    tasks = extract(model, target) if isinstance(model, Graph) else list(model)
    run = _Run(tasks, target, store, budget or Budget(), strategy, seed, policy or Policy(), batch, listener)
    if runner is not None:
        return run.go(runner)
    missing = missing_features(target, Target.host())
    if missing:
        raise DeviceError(
            f"target {target.name}: this machine lacks {', '.join(missing)}; tune on a machine that has them"
        )
    with LocalRunner(target, run.policy, workers_for_build=BUILDERS) as own:
        own.preflight()
        run.noise = own.noise_floor()
        if run.noise > max_noise:
            raise DeviceError(
                f"too noisy: a kernel differs from itself by {run.noise:.0%}, allowed are {max_noise:.0%}; stop other programs, "
                "or allow more"
            )
        return run.go(own)


class _Run:
    def __init__(
        self,
        tasks: list[Task],
        target: Target,
        store: Store,
        budget: Budget,
        strategy: str,
        seed: int,
        policy: Policy,
        batch: int,
        listener: Listener | None,
    ) -> None:
        self.target = target
        self.store = store
        self.budget = budget
        self.strategy = strategy
        self.config = SearchConfig(seed=seed)
        self.policy = policy
        self.batch = batch
        self.listener = listener
        self.run_id = uuid.uuid4().hex
        self.start = time.monotonic()
        self.trials = 0
        self.target_json = target.to_json()
        self.fingerprint = target.fingerprint()
        self.policy_text = json.dumps(policy.identity(), sort_keys=True)
        self.versions = environment_versions()
        self.learner = Learner(seed)
        self.noise = 0.0
        self.searches = [self._search(t) for t in tasks]

    # ------------------------------------------------------------ setting up

    def _search(self, task: Task) -> _Search:
        keys = (task.workload.hash, target_hash(self.fingerprint), policy_hash(self.policy_text))
        progress = Progress(task, floor_ns(task, self.target))
        known = self.store.measured(*keys)
        return _Search(
            task, space(task.workload, self.target, self.policy.algorithms), progress, known, known_before=len(known)
        )

    def _strategy(self, search: _Search) -> Strategy:
        """Made when the task is first searched; told everything that is known."""
        if search.strategy is None:
            search.strategy = make_strategy(self.strategy, search.space, self._rank, self.config)
            for candidate, record in self._remembered(search):
                search.strategy.tell(candidate, _time_of(record))
        return search.strategy

    def _rank(self, sketch: Sketch, rows: Ints) -> Any:
        return self.learner.predict_ns(sketch, rows)

    def _remembered(self, search: _Search) -> Iterator[tuple[Candidate, Record]]:
        """Known records as candidates of the space (records of sketches that no longer exist are left out)."""
        sketches = {s.name: s for s in search.space.sketches}
        for record in search.known.values():
            sketch = sketches.get(record.sketch)
            if sketch is None or set(record.params) != {p.name for p in sketch.params}:
                continue
            yield Candidate(sketch, tuple(record.params[p.name] for p in sketch.params)), record

    def _recall(self) -> None:
        """Start from what earlier runs measured."""
        for search in self.searches:
            for candidate, record in self._remembered(search):
                time_ns = _time_of(record)
                if record.status not in NO_VERDICT:
                    self.learner.add(candidate, search.task.workload.hash, time_ns)
                search.progress.told(time_ns, record.schedule)
                search.top.append((time_ns, candidate))
                if record.is_default and record.median_ns is not None:
                    search.progress.default_ns = record.median_ns

    # ------------------------------------------------------------ running

    def go(self, runner: Runner) -> TuneResult:
        """Search until the budget is used up, then confirm the winners."""
        stopped, interrupted = "budget", False
        try:
            self._recall()
            self._defaults(runner)
            self.learner.refit(force=True)
            stopped = self._search_all(runner)
            self._confirm(runner)
        except KeyboardInterrupt:
            stopped, interrupted = "interrupted", True
        if not interrupted:
            self._check_valid()
        results = tuple(self._result(s) for s in self.searches)
        return TuneResult(
            self.run_id, results, self.trials, time.monotonic() - self.start, interrupted, stopped, self.noise
        )

    def _result(self, search: _Search) -> TaskResult:
        """Times as the store sees them: the median of a candidate's measurements, so that no lucky sample counts."""
        w, known = search.task.workload, search.known_before
        default = default_candidate(search.space)
        hits = self.store.top(w.hash, self.fingerprint, self.policy_text, n=1 << 16)
        times = {h.record.candidate: h.time_ns for h in hits}
        best_ns = hits[0].time_ns if hits else float("inf")
        default_ns = times.get(candidate_id(str(default.schedule), default.params), float("inf"))
        schedule = hits[0].record.schedule if hits else ""
        return TaskResult(search.task, default_ns, best_ns, schedule, search.measured, known, dict(search.failures))

    def _left(self, share: float = 1.0) -> float:
        """Seconds left of the given share of the budget."""
        if self.budget.seconds is None:
            return float("inf")
        return self.start + self.budget.seconds * share - time.monotonic()

    def _trials_left(self) -> int:
        return 1 << 30 if self.budget.trials is None else self.budget.trials - self.trials

    def _defaults(self, runner: Runner) -> None:
        """Candidate 0 of every task. This is done even where the budget is short: a task without a time cannot be ranked."""
        missing = []
        for s in self.searches:
            c = default_candidate(s.space)
            if candidate_id(str(c.schedule), c.params) not in s.known or s.progress.default_ns == float("inf"):
                missing.append((s, c))
        self._measure(runner, missing, default=True)

    def _search_all(self, runner: Runner) -> str:
        while True:
            if self._left(0.88) <= 0 or self._trials_left() <= 0:
                return "budget"
            state = choose([s.progress for s in self.searches])
            if state is None:
                return "every task is flat or used up"
            search = next(s for s in self.searches if s.progress is state)
            count = min(self.batch, self._trials_left())
            chosen = self._strategy(search).ask(count)
            fresh = [c for c in chosen if candidate_id(str(c.schedule), c.params) not in search.known]
            if not chosen:
                state.exhausted = True
                continue
            before = state.best_ns
            self._measure(runner, [(search, c) for c in fresh])
            state.stale = 0 if state.best_ns < 0.985 * before else state.stale + 1
            self.learner.refit()

    def _measure(
        self, runner: Runner, work: list[tuple[_Search, Candidate]], default: bool = False, label: str = ""
    ) -> None:
        """Measure candidates, storing each as soon as it is finished."""
        requests = [Request(s.task.workload.text, str(c.schedule), self.target_json, self.policy) for s, c in work]
        for (search, candidate), outcome in zip(work, runner.measure(requests), strict=True):
            self.trials += 1
            search.measured += 1
            self._record(search, candidate, outcome, default, label)
            if not default and (self._left(0.95) <= 0 or self._trials_left() <= 0):
                break

    def _record(self, search: _Search, candidate: Candidate, outcome: Outcome, default: bool, label: str) -> None:
        time_ns = outcome.median_ns if outcome.median_ns is not None else float("inf")
        row = np.asarray([candidate.values], dtype=np.int64).reshape(1, len(candidate.values))
        predicted = float(self.learner.predict_ns(candidate.sketch, row)[0])
        w = search.task.workload
        record = Record(
            workload_hash=w.hash,
            workload=w.text,
            family=w.family,
            target=self.fingerprint,
            policy=self.policy_text,
            sketch=candidate.sketch.name,
            schedule=str(candidate.schedule),
            params=candidate.params,
            is_default=default,
            status=outcome.status,
            run_id=self.run_id,
            trial=self.trials,
            elapsed_s=time.monotonic() - self.start,
            median_ns=outcome.median_ns,
            samples_ns=outcome.samples_ns,
            noise=outcome.noise,
            stop_reason=outcome.stop_reason,
            error=outcome.error,
            max_error=outcome.max_error,
            build_s=outcome.build_s,
            run_s=outcome.run_s,
            predicted_ns=predicted,
            strategy=label or ("default" if default else self.strategy),
            seed=self.config.seed,
            versions=self.versions,
            load=outcome.load,
        )
        self.store.add(record)
        search.known[record.candidate] = record
        if outcome.status not in NO_VERDICT:
            self.learner.add(candidate, w.hash, time_ns)
        if not outcome.ok and outcome.status not in NO_VERDICT:
            search.failures[outcome.status] = search.failures.get(outcome.status, 0) + 1
            search.first_error = search.first_error or f"{outcome.status}: {outcome.error}"
        if default and outcome.ok:
            search.progress.default_ns = time_ns
        improved = search.progress.told(time_ns, record.schedule)
        search.top.append((time_ns, candidate))
        if search.strategy is not None:
            search.strategy.tell(candidate, time_ns)
        if self.listener is not None:
            self.listener(
                Event(
                    time.monotonic() - self.start, self.trials, search.task, outcome, search.progress.best_ns, improved
                )
            )

    def _confirm(self, runner: Runner) -> None:
        """Measure the leaders and the default of each task again, in one sitting; the store's winner then rests on medians of
        several measurements. The tasks that gained most come first, as far as the time allows."""
        gained = sorted(
            (s for s in self.searches if s.measured and s.progress.best_ns < s.progress.default_ns),
            key=lambda s: s.task.weight * (s.progress.best_ns - s.progress.default_ns),
        )
        for search in gained:
            if self._left() <= 0 or self._trials_left() <= 0:
                return
            finalists = [c for t, c in sorted(search.top, key=lambda x: x[0])[:2] if t < float("inf")]
            finalists.append(default_candidate(search.space))
            for candidate in finalists:
                request = Request(search.task.workload.text, str(candidate.schedule), self.target_json, self.policy)
                outcome = runner.measure_one(request, again=True)
                self.trials += 1
                search.measured += 1
                self._record(search, candidate, outcome, candidate.key == finalists[-1].key, "confirm")

    def _check_valid(self) -> None:
        for s in self.searches:
            if s.progress.best_ns == float("inf"):
                causes = ", ".join(f"{n} {k}" for k, n in s.failures.items()) or "nothing was measured"
                raise TuneError(
                    f"task {s.task.origin} ({s.task.workload.describe()}): not one valid candidate ({causes}). First error:\n"
                    f"{s.first_error}"
                )
