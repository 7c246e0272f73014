"""The runner of this machine: candidates in, outcomes out, whatever the candidates do."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from tilewright.measure.job import Job
from tilewright.measure.limits import Limit
from tilewright.measure.lock import device_lock
from tilewright.measure.messages import Message
from tilewright.measure.outcome import Outcome
from tilewright.measure.policy import Policy
from tilewright.measure.pool import Pool, Slot, ask_all
from tilewright.measure.preflight import tiny_workload
from tilewright.measure.process import WorkerCrash, WorkerTimeout, command
from tilewright.measure.request import DeviceError, Request
from tilewright.measure.timing import Pair
from tilewright.schedules.target import Target

REFERENCE_S: Final = 1800.0
"""Most seconds to compute the expected results of one workload."""
BUILD_FLOOR_S: Final = 5.0
RUN_FLOOR_S: Final = 2.0
"""Limits that adapt do not go below these."""
AHEAD: Final = 2
"""Candidates built ahead for each worker, when there are several."""


@final
class LocalRunner:
    """Measures on this machine, in worker processes.

    ``workers_for_build`` candidates are built side by side; checks and timings always run one at a time, and
    timings only while the lock of the machine is held. ``memory_bytes`` limits a worker's address space
    (default: 80 % of the memory of the machine), ``cpus`` pins workers, ``lock_file`` replaces the machine's,
    ``worker_module`` names another module whose ``main()`` is the worker's program. Use it in a ``with``
    statement, or call :meth:`close`. Not thread-safe.
    """

    def __init__(
        self,
        target: Target,
        policy: Policy | None = None,
        workers_for_build: int = 1,
        *,
        memory_bytes: int | None = None,
        cpus: Sequence[int] = (),
        lock_file: Path | None = None,
        worker_module: str = "tilewright.measure.worker",
    ) -> None:
        if workers_for_build < 1:
            raise ValueError(f"workers_for_build: expected at least 1; got {workers_for_build}")
        self.target = target
        self.policy = policy or Policy()
        self._target_json = target.to_json()
        self._lock_file = lock_file
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        greeting: Message = {
            "target": self._target_json,
            "memory": memory_bytes if memory_bytes is not None else int(0.8 * _physical_bytes()),
            "cpus": list(cpus),
            "folder": self._folder.name,
        }
        self._pool = Pool(workers_for_build, command(worker_module), target.threads, greeting)
        self._numbers = itertools.count(1)
        self._build_limit = Limit(BUILD_FLOOR_S)
        self._check_limits: dict[str, Limit] = defaultdict(lambda: Limit(RUN_FLOOR_S))
        self._time_limits: dict[str, Limit] = defaultdict(lambda: Limit(RUN_FLOOR_S))
        self._best: dict[str, float] = {}
        self._seen: dict[str, Outcome] = {}
        self._known: list[str] = []

    # ------------------------------------------------------------ life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and remove the temporary files. May be called twice; nothing can be measured
        afterwards."""
        self._closed = True
        self._pool.close()
        self._folder.cleanup()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """An interrupt (or a bug) leaves no worker busy with a question whose answer nobody reads."""
        try:
            yield
        except BaseException:
            self._pool.close()
            raise

    # ------------------------------------------------------------ measuring

    def request(self, workload: str, schedule: str) -> Request:
        """A request for this runner's target under its policy."""
        return Request(workload, schedule, self._target_json, self.policy)

    def set_best(self, workload_hash: str, median_ns: float) -> None:
        """Tell a time that was measured earlier, in nanoseconds, for the cut-off."""
        self._best[workload_hash] = min(median_ns, self._best.get(workload_hash, median_ns))

    def best(self, workload_hash: str) -> float | None:
        """The shortest median of a workload so far, in nanoseconds."""
        return self._best.get(workload_hash)

    def measure(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """One outcome for each request, in order.

        Requests are taken as they are needed: one at a time, or a few for each build worker. Raises
        ValueError for a request of another target and DeviceError if no worker can be started.
        """
        count = len(self._pool.slots)
        size = 1 if count == 1 else AHEAD * count
        source = iter(requests)
        while chunk := list(itertools.islice(source, size)):
            jobs = [self._job(r, k % count) for k, r in enumerate(chunk)]
            for job in jobs:
                job.oldest = jobs[0].number
            with self._guarded():
                self._build(jobs)
            for job in jobs:
                with self._guarded():
                    outcome = self._finish(job)
                yield outcome

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        """The outcome of one request. ``again`` measures known code once more instead of calling it a
        duplicate, and without a cut-off."""
        job = self._job(request, 0, force=again)
        with self._guarded():
            self._build([job])
            return self._finish(job)

    def compare(self, a: Request, b: Request, rounds: int = 20) -> Pair:
        """Paired re-measurement of two candidates in interleaved rounds under a's policy: the time of b over
        that of a.

        Raises DeviceError if either cannot be built, checked and timed.
        """
        jobs = [self._job(r, 0, force=True) for r in (a, b)]
        jobs[1].oldest = jobs[0].number
        question = {"op": "pair", "a": jobs[0].number, "b": jobs[1].number, "rounds": rounds}
        return Pair(**self._held(jobs, question))

    def noise_floor(self, request: Request | None = None) -> float:
        """A/A test: the relative difference that a candidate (default: a tiny one) shows against itself.

        Raises DeviceError if it cannot be built, checked and timed.
        """
        job = self._job(request or self.request(tiny_workload().text, ""), 0, force=True)
        return float(self._held([job], {"op": "noise", "id": job.number})["noise"])

    def preflight(self) -> Outcome:
        """Measure a kernel that is known to be good. Raises DeviceError with the cause if that fails."""
        outcome = self.measure_one(self.request(tiny_workload().text, ""), again=True)
        if not outcome.ok:
            raise DeviceError(
                f"device {self.target.model}: expected a known-good kernel to be measured; "
                f"got {outcome.status}: {outcome.error}"
            )
        return outcome

    # ------------------------------------------------------------ stages

    def _job(self, request: Request, slot: int, force: bool = False) -> Job:
        if self._closed:
            raise ValueError("runner: expected one that is open; got one that was closed")
        if request.target != self._target_json and Target.from_json(request.target) != self.target:
            raise ValueError(f"target of a request: expected {self._target_json}; got {request.target}")
        return Job(next(self._numbers), request, slot, force)

    def _build_message(self, slot: Slot, job: Job, force: bool) -> Message:
        job.generation, job.fresh = slot.generation, slot.used == 0
        known, slot.told = self._known[slot.told :], len(self._known)
        return {
            "op": "build",
            "id": job.number,
            "oldest": job.oldest,
            "workload": job.request.workload,
            "schedule": job.request.schedule,
            "known": known,
            "force": force,
        }

    def _build(self, jobs: Sequence[Job]) -> None:
        """Build all jobs, side by side on the slots they are assigned to."""
        queues = [[j for j in jobs if j.slot == s] for s in range(len(self._pool.slots))]
        seconds = self._build_limit.seconds(min(j.request.policy.build_timeout_s for j in jobs))

        def message(index: int, job: Job) -> Message:
            return self._build_message(self._pool.worker(index), job, job.force)

        answers = ask_all(self._pool, queues, message, seconds)
        for job in jobs:
            answer = answers[job.number]
            if isinstance(answer, WorkerTimeout):
                job.build_s = seconds
                job.outcome = job.failed("compile_timeout", str(answer))
            elif isinstance(answer, WorkerCrash):
                if job.fresh:
                    job.outcome = job.failed("crash", f"while building: {answer}")
                else:  # an earlier candidate may have damaged that worker
                    self._pool.retire(job.slot)
                    self._build([job])
            elif job.built(answer):
                self._build_limit.add(job.build_s)

    def _finish(self, job: Job) -> Outcome:
        """Check and time a built job."""
        if job.outcome is not None:
            return job.outcome
        if not job.force and job.digest in self._seen:
            return job.duplicate(self._seen[job.digest])
        outcome = self._run(job)
        if job.digest not in self._seen:
            self._known.append(job.digest)
        self._seen[job.digest] = outcome
        if outcome.median_ns is not None:
            self.set_best(job.request.workload_hash, outcome.median_ns)
        self._pool.done(job.slot)
        return outcome

    def _run(self, job: Job) -> Outcome:
        """Check and time; after a crash once more in a fresh worker, if an earlier candidate may be to
        blame."""
        stage = "checking"
        try:
            if not self._check(job):
                assert job.outcome is not None
                return job.outcome
            stage = "timing"
            return self._time(job)
        except WorkerTimeout as error:
            return job.failed("run_timeout", f"while {stage}: {error}")
        except WorkerCrash as error:
            if job.fresh:
                return job.failed("crash", f"while {stage}: {error}")
        return self._run(job)

    def _check(self, job: Job) -> bool:
        """Check a job; whether it passed. Its outcome is set if not."""
        policy = job.request.policy
        if not self._hold(job):
            return False
        limit = self._check_limits[job.request.workload_hash]
        question = {"op": "check", "id": job.number, "policy": policy.to_dict()}
        answer = self._pool.ask(job.slot, question, limit.seconds(policy.run_timeout_s))
        if answer["damaged"]:
            self._pool.retire(job.slot)
        if not job.checked(answer):
            return False
        limit.add(float(answer["run_s"]))
        return True

    def _hold(self, job: Job) -> bool:
        """Make sure that the slot's worker has the built kernel and its reference. The outcome is set if it
        cannot."""
        slot = self._pool.worker(job.slot)
        policy = job.request.policy
        if job.generation != slot.generation:
            question = self._build_message(slot, job, force=True)
            answer = self._pool.ask(job.slot, question, self._build_limit.seconds(policy.build_timeout_s))
            if not job.built(answer):
                return False
        key = job.request.workload_hash, policy.seed
        if slot.reference != key:
            question = {"op": "reference", "workload": job.request.workload, "seed": policy.seed}
            try:
                self._pool.ask(job.slot, question, REFERENCE_S)
            except (WorkerTimeout, WorkerCrash) as error:
                job.outcome = job.failed("run_error", f"the reference of the workload: {error}")
                return False
            slot.learnt(key)
        return True

    def _time(self, job: Job) -> Outcome:
        policy = job.request.policy
        name = job.request.workload_hash
        limit = self._time_limits[name]
        with device_lock(self._lock_file) as waited:
            question = {
                "op": "time",
                "id": job.number,
                "policy": policy.to_dict(),
                "best_ns": None if job.force else self._best.get(name),
            }
            seconds = limit.seconds(policy.run_timeout_s) + 3 * policy.max_time_s
            answer = self._pool.ask(job.slot, question, seconds)
        if answer.get("damaged"):
            self._pool.retire(job.slot)
        job.load["lock_wait_s"] = waited
        limit.add(float(answer["run_s"]))
        return job.timed(answer)

    def _held(self, jobs: Sequence[Job], question: Message) -> dict[str, Any]:
        """Build and check jobs, then ask a question that times while the device is held."""
        policy = jobs[0].request.policy
        what = "re-measurement: expected a candidate that runs and is correct"
        with self._guarded():
            try:
                for job in jobs:
                    if not self._check(job):
                        assert job.outcome is not None
                        raise DeviceError(f"{what}; got {job.outcome.status}: {job.outcome.error}")
                with device_lock(self._lock_file):
                    answer = self._pool.ask(
                        jobs[0].slot,
                        {**question, "policy": policy.to_dict()},
                        REFERENCE_S + policy.run_timeout_s,
                    )
            except (WorkerTimeout, WorkerCrash) as error:
                raise DeviceError(f"{what}; got: {error}") from error
        return {k: v for k, v in answer.items() if k not in ("status", "error", "resident")}


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
