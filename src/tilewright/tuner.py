"""Tune a model: measure the best candidates of every task within a budget, and keep everything in the store.

Each finished measurement is committed to the store before the next starts, so an interrupt or a kill loses nothing and the same
call resumes: what was measured is told to the search again and costs no trial. The default schedule is candidate 0 of every
task. The run ends by comparing the leaders of each task with its default in one sitting, as far as the budget allows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from tilewright.budget import Budget as Budget
from tilewright.budget import choose
from tilewright.confirm import confirm
from tilewright.graph.graph import Graph
from tilewright.measure import DeviceError, LocalRunner, Policy
from tilewright.measure.request import Runner
from tilewright.oversize import refuse_large_kernels, refuse_oversize
from tilewright.results import Event as Event
from tilewright.results import Listener, TaskResult
from tilewright.results import TuneError as TuneError
from tilewright.results import TuneResult as TuneResult
from tilewright.runtime import missing_features
from tilewright.schedules.target import Target
from tilewright.searches import Search
from tilewright.session import Session
from tilewright.tasks import Task, extract
from tilewright.tuning_logs import Hit, Miss, Store

BUILDERS = min(2, os.cpu_count() or 1)
"""Candidates built side by side (timing always has the machine to itself)."""


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
    """Search for fast schedules of a graph (or of tasks) on ``target``, and keep every measurement in ``store``.

    - ``budget``: when to stop (two minutes if none is given).
    - ``strategy``: ``ranked``, ``random``, ``exhaustive`` or ``optuna``; ``seed`` makes its choices repeatable as far as the times are.
    - ``policy``: how candidates are measured, and which algorithms are allowed.
    - ``batch``: measurements between two looks at which task is worth the next ones.
    - ``listener``: is called with an :class:`Event` after each measurement.
    - ``runner``: measures instead of this machine's own workers (a replay in tests).
    - ``max_noise``: the largest difference of a kernel from itself that is accepted before the run, as a share (1.0 is 100 %).

    Raises TuneError if some task had no valid candidate at all; DeviceError if the device cannot measure, is another one than the
    target, or is noisier than ``max_noise``; ModelError for a graph larger than the memory; ValueError for an unknown strategy, or a
    number out of range; StoreError if the store cannot be written.
    A KeyboardInterrupt ends the run early; the result then says ``interrupted``.
    """
    if not max_noise > 0:
        raise ValueError(f"max_noise: expected a share above 0; got {max_noise}")
    if runner is None:
        missing = missing_features(target, Target.host())
        if missing:
            raise DeviceError(
                f"target {target.name}: this machine lacks {', '.join(missing)}; tune on a machine that has them"
            )
        if isinstance(model, Graph):
            refuse_oversize(model, target)
    policy = policy or Policy()
    tasks = extract(model, target) if isinstance(model, Graph) else list(model)
    if runner is None:
        refuse_large_kernels(((t.origin, t.workload) for t in tasks), target)
    session = Session(tasks, target, store, budget or Budget(), strategy, seed, policy, listener)
    run = _Run(session, batch)
    if runner is not None:
        return run.go(runner)
    with LocalRunner(target, policy, workers_for_build=BUILDERS) as own:
        own.preflight()
        session.noise = own.noise_floor()
        if session.noise > max_noise:
            raise DeviceError(
                f"too noisy: a kernel differs from itself by {session.noise:.0%}, allowed are {max_noise:.0%}; stop other programs, "
                "or allow more"
            )
        return run.go(own)


class _Run:
    """The order of things: defaults, batches, contests."""

    def __init__(self, session: Session, batch: int) -> None:
        self.session = session
        self.batch = batch

    def go(self, runner: Runner) -> TuneResult:
        """Search until the budget is used up, then confirm the winners."""
        session = self.session
        stopped, interrupted = "budget", False
        try:
            session.recall()
            self._defaults(runner)
            session.learner.refit(force=True)
            stopped = self._search_all(runner)
            confirm(session, runner)
        except KeyboardInterrupt:
            stopped, interrupted = "interrupted", True
        if not interrupted:
            self._check_valid()
        results = tuple(self._result(s) for s in session.searches)
        seconds = time.monotonic() - session.start
        return TuneResult(session.run_id, results, session.trials, seconds, interrupted, stopped, session.noise)

    def _defaults(self, runner: Runner) -> None:
        """Candidate 0 of every task. This is done even where the budget is short: a task without a time cannot be ranked."""
        session = self.session
        missing = [(s, s.default) for s in session.searches if not s.default_measured]
        session.measure(runner, missing, default=True)

    def _search_all(self, runner: Runner) -> str:
        session = self.session
        while True:
            state = choose([s.progress for s in session.searches])
            if state is None:
                return "every task is flat or used up"
            search = next(s for s in session.searches if s.progress is state)
            room = session.room(search)
            if room <= 0:
                return "budget"
            chosen = session.strategy(search).ask(min(self.batch, room))
            if not chosen:
                state.exhausted = True
                continue
            before = state.best_ns
            session.measure(runner, [(search, c) for c in chosen if not session.told_again(search, c)])
            state.stale = 0 if state.best_ns < 0.985 * before else state.stale + 1
            session.learner.refit()

    def _result(self, search: Search) -> TaskResult:
        """Winner and times as the store sees them."""
        best = self.session.answer(search)
        default_ns = float("inf") if best.default_ns is None else best.default_ns
        if isinstance(best, Hit):
            best_ns, schedule = best.time_ns, best.record.schedule
        else:  # the default stays, if there is one
            best_ns, schedule = default_ns, search.default_schedule if best.default_ns is not None else ""
        return TaskResult(
            search.task,
            default_ns,
            best_ns,
            schedule,
            search.measured,
            search.known_before,
            dict(search.failures),
            search.first_error,
            search.others,
            str(best) if isinstance(best, Miss) else "",
        )

    def _check_valid(self) -> None:
        for s in self.session.searches:
            if s.progress.best_ns == float("inf"):
                causes = ", ".join(f"{n} {k}" for k, n in s.failures.items()) or "nothing was measured"
                raise TuneError(
                    f"task {s.task.origin} ({s.task.workload.describe()}): not one valid candidate ({causes}). First error:\n"
                    f"{s.first_error}"
                )
