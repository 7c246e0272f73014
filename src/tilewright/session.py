"""The state of a tuning run: its tasks, what is known of each, what is left of the budget, and how a measurement is kept.

What the store holds is told to the learner and to the strategies when the run begins, so resuming is nothing special.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.budget import Budget, Progress, floor_ns
from tilewright.learning import Learner
from tilewright.measure import Outcome, Policy, Request
from tilewright.measure.request import Runner
from tilewright.results import Event, Listener
from tilewright.schedules.target import Target
from tilewright.schedules.winograd import error_bound
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Ints, Sketch
from tilewright.search_space.space import space
from tilewright.search_space.strategies import make_strategy
from tilewright.search_space.strategy import SearchConfig, Strategy
from tilewright.searches import Search, by_schedule, teaches, told_ns, why_stale
from tilewright.tasks import Task, default_candidate
from tilewright.tuning_logs import (
    AA_NOISE,
    NO_VERDICT,
    Hit,
    Miss,
    Record,
    Store,
    environment_versions,
    utc_now,
)

SEARCH_SHARE = 0.88
"""Share of the seconds after which no new batch begins; the rest is for confirming."""
BATCH_SHARE = 0.95
"""Share of the seconds after which a batch is left unfinished."""
LEAST_CONTEST, FULL_CONTEST = 2, 5
"""Measurements of a contest: the default and one other, or the default twice and three others."""
KEPT_SHARE = 6
"""One in so many measurements is kept for contests, but no fewer than they need and no more than they can use."""


class Session:
    """One run over tasks. ``noise`` is the A/A noise of the device, set before measuring begins; ``drifts`` are by how much a default
    differed from itself in each contest so far."""

    def __init__(
        self,
        tasks: Iterable[Task],
        target: Target,
        store: Store,
        budget: Budget,
        strategy: str,
        seed: int,
        policy: Policy,
        listener: Listener | None,
    ) -> None:
        self.target = target
        self.store = store
        self.budget = budget
        self.strategy_name = strategy
        self.config = SearchConfig(seed=seed)
        self.policy = policy
        self.listener = listener
        self.run_id = uuid.uuid4().hex
        self.start = time.monotonic()
        self.trials = 0
        self.noise = 0.0
        self.drifts: list[float] = []
        self.target_json = target.to_json()
        self.fingerprint = target.fingerprint()
        self.policy_text = json.dumps(policy.identity(), sort_keys=True)
        self.versions = environment_versions()
        self.learner = Learner(seed)
        self.searches = [self._search(t) for t in tasks]

    # ------------------------------------------------------------ setting up

    def _search(self, task: Task) -> Search:
        of = space(task.workload, self.target, self.policy.algorithms)
        known = by_schedule(self.store.measured(task.workload.hash, self.fingerprint, self.policy_text).values())
        progress = Progress(task, floor_ns(task, self.target))
        return Search(task, of, default_candidate(of), progress, known, known_before=len(known))

    def strategy(self, search: Search) -> Strategy:
        """Made when the task is first searched; told everything that is known."""
        if search.strategy is None:
            search.strategy = make_strategy(self.strategy_name, search.space, self._rank, self.config)
            for candidate, record in search.remembered():
                search.strategy.tell(candidate, told_ns(record.status, record.median_ns, record.samples_ns))
        return search.strategy

    def _rank(self, sketch: Sketch, rows: Ints) -> Any:
        return self.learner.predict_ns(sketch, rows)

    def recall(self) -> None:
        """Start from what earlier runs measured."""
        for search in self.searches:
            if search.known:
                self._recall_answer(search)
            for candidate, record in search.remembered():
                if teaches(record.status, record.samples_ns):
                    time_ns = told_ns(record.status, record.median_ns, record.samples_ns)
                    self.learner.add(candidate, search.task.workload.hash, time_ns)
                measured_ns = float("inf") if record.median_ns is None else record.median_ns
                search.progress.told(measured_ns, record.schedule)
                if record.schedule == search.default_schedule:
                    search.progress.default_ns = measured_ns

    def _recall_answer(self, search: Search) -> None:
        """Look at what the look-up would answer: a winner that does not apply any more is put out of the way, else nothing could
        take its place; and without a contest one is due."""
        answer = self.answer(search)
        while isinstance(answer, Hit) and (why := why_stale(search.task.workload, answer.record.schedule)):
            self.retire(search, answer.record, why)
            answer = self.answer(search)
        if isinstance(answer, Miss):
            times = [r.median_ns for r in search.known.values() if r.schedule != search.default_schedule]
            search.rival_ns = min((ns for ns in times if ns is not None), default=float("inf"))

    def retire(self, search: Search, record: Record, why: str) -> None:
        """Store that a record's schedule does not apply to this version."""
        stale = replace(
            record,
            status="rejected",
            error=why,
            median_ns=None,
            samples_ns=(),
            noise=None,
            predicted_ns=None,
            compared={},
            run_id=self.run_id,
            trial=self.trials,
            elapsed_s=time.monotonic() - self.start,
            created=utc_now(),
            versions=self.versions,
            extra={},
        )
        self.store.add(stale)
        search.known[record.schedule] = stale

    # ------------------------------------------------------------ the budget

    def left(self, share: float = 1.0) -> float:
        """Seconds left of the given share of the budget."""
        if self.budget.seconds is None:
            return float("inf")
        return self.start + self.budget.seconds * share - time.monotonic()

    def trials_left(self) -> int:
        """Measurements left."""
        return 1 << 30 if self.budget.trials is None else self.budget.trials - self.trials

    def room(self, search: Search, share: float = SEARCH_SHARE) -> int:
        """Measurements that a task may be searched with: what is left without what the contests need of all tasks in which a
        candidate may beat the default, this one among them."""
        tasks = [s for s in self.searches if s.open or s is search]
        if self.left(share) <= 0 or self.left() <= FULL_CONTEST * sum(s.contestant_s for s in tasks):
            return 0
        wanted = (self.budget.trials or 0) // (KEPT_SHARE * len(self.searches))
        return max(0, self.trials_left() - len(tasks) * min(FULL_CONTEST, max(LEAST_CONTEST, wanted)))

    def answer(self, search: Search) -> Hit | Miss:
        """What the look-up says of a task."""
        return self.store.best(search.task.workload.hash, self.fingerprint, self.policy_text)

    # ------------------------------------------------------------ measuring

    def request(self, search: Search, candidate: Candidate) -> Request:
        """What is asked of the runner."""
        return Request(search.task.workload.text, str(candidate.schedule), self.target_json, self.policy)

    def measure(self, runner: Runner, work: list[tuple[Search, Candidate]], default: bool = False) -> None:
        """Measure candidates, storing each as soon as it is finished. Defaults are measured whatever is left."""
        for (search, candidate), outcome in zip(
            work, runner.measure([self.request(s, c) for s, c in work]), strict=True
        ):
            self.keep(search, [(candidate, outcome)], "default" if default else self.strategy_name)
            if not default and self.room(search, BATCH_SHARE) <= 0:
                break

    def told_again(self, search: Search, candidate: Candidate) -> bool:
        """Whether a proposal's schedule is known already (perhaps by other names); then the strategy is told what is known."""
        record = search.known.get(str(candidate.schedule))
        if record is not None:
            self.strategy(search).tell(candidate, told_ns(record.status, record.median_ns, record.samples_ns))
        return record is not None

    def keep(
        self,
        search: Search,
        finished: list[tuple[Candidate, Outcome]],
        label: str,
        compared: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Store finished measurements (``compared`` goes with the first) and learn from them, one after the other: what was
        told is stored, and no more than one is stored that was not told."""
        for k, (candidate, outcome) in enumerate(finished):
            self.trials += 1
            search.measured += 1
            search.spent_s += outcome.build_s + outcome.run_s
            versus = {} if k or compared is None else {name: dict(entry) for name, entry in compared.items()}
            record = self._record(search, candidate, outcome, label, versus)
            self.store.add(record)
            self._learn(search, candidate, outcome, record)

    def _record(
        self,
        search: Search,
        candidate: Candidate,
        outcome: Outcome,
        label: str,
        compared: dict[str, dict[str, float]],
    ) -> Record:
        w = search.task.workload
        return Record(
            workload_hash=w.hash,
            workload=w.text,
            family=w.family,
            target=self.fingerprint,
            policy=self.policy_text,
            sketch=candidate.sketch.name,
            schedule=str(candidate.schedule),
            params=candidate.params,
            is_default=candidate.key == search.default.key,
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
            error_bound=error_bound(w, candidate.schedule),
            build_s=outcome.build_s,
            run_s=outcome.run_s,
            predicted_ns=self.learner.predict_one_ns(candidate) if search.has(candidate) else None,
            strategy=label,
            seed=self.config.seed,
            versions=self.versions,
            load={**outcome.load, **({AA_NOISE: self.noise} if self.noise else {})},
            compared=compared,
        )

    def _learn(self, search: Search, candidate: Candidate, outcome: Outcome, record: Record) -> None:
        search.known[record.schedule] = record
        time_ns = float("inf") if outcome.median_ns is None else outcome.median_ns
        seen_ns = told_ns(outcome.status, outcome.median_ns, outcome.samples_ns)
        known_here = search.has(candidate)
        if known_here and teaches(outcome.status, outcome.samples_ns):
            self.learner.add(candidate, search.task.workload.hash, seen_ns)
        if not outcome.ok and outcome.status not in NO_VERDICT:
            search.failures[outcome.status] = search.failures.get(outcome.status, 0) + 1
            search.first_error = search.first_error or f"{outcome.status}: {outcome.error}"
        search.abandoned += outcome.status == "pruned_slow"
        if record.is_default and outcome.ok:
            search.progress.default_ns = time_ns
        elif not record.is_default:
            search.searched += 1
            search.rival_ns = min(search.rival_ns, time_ns)
        improved = search.progress.told(time_ns, record.schedule)
        if known_here and search.strategy is not None:
            search.strategy.tell(candidate, seen_ns)
        if self.listener is not None:
            best_ns, elapsed = search.progress.best_ns, time.monotonic() - self.start
            self.listener(Event(elapsed, self.trials, search.task, outcome, best_ns, improved))
