"""The runner of this machine: candidates in, outcomes out, whatever the candidates do."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from tilewright.measure.limits import Limit
from tilewright.measure.lock import device_lock
from tilewright.measure.messages import Message
from tilewright.measure.outcome import Outcome
from tilewright.measure.policy import Policy
from tilewright.measure.pool import Pool, Slot, ask_all
from tilewright.measure.preflight import tiny_workload
from tilewright.measure.process import COMMAND, WorkerCrash, WorkerTimeout
from tilewright.measure.request import DeviceError, Request
from tilewright.measure.timing import Pair
from tilewright.schedules.target import Target

REFERENCE_S: Final = 1800.0
"""Most seconds to compute the expected results of one workload."""
BUILD_FLOOR_S: Final = 5.0
RUN_FLOOR_S: Final = 2.0
AHEAD: Final = 2
"""Candidates built ahead for each worker, when there are several."""


@final
@dataclass
class _Job:
    """A request on its way."""

    number: int
    request: Request
    slot: int
    generation: int = 0
    """Of the worker that holds the built kernel; 0: none."""
    digest: str = ""
    build_s: float = 0.0
    outcome: Outcome | None = None
    force: bool = False
    load: dict[str, float] = field(default_factory=dict)


@final
class LocalRunner:
    """Measures on this machine, in worker processes.

    ``workers_for_build`` candidates are built side by side; checks and timings always run one at a time, and timings only
    while the lock of the machine is held. ``memory_bytes`` limits a worker's address space (default: 80 % of the memory of the
    machine), ``cpus`` pins workers, ``lock_file`` replaces the machine's, ``worker_command`` starts another worker program.
    Use it in a ``with`` statement, or call :meth:`close`. Not thread-safe.
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
        worker_command: Sequence[str] = COMMAND,
    ) -> None:
        if workers_for_build < 1:
            raise ValueError(f"workers_for_build: expected at least 1; got {workers_for_build}")
        self.target = target
        self.policy = policy or Policy()
        self._target_json = target.to_json()
        self._lock_file = lock_file
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        limit = memory_bytes if memory_bytes is not None else int(0.8 * _physical_bytes())
        greeting: Message = {
            "target": self._target_json,
            "memory": limit,
            "cpus": list(cpus),
            "folder": self._folder.name,
        }
        self._pool = Pool(workers_for_build, worker_command, target.threads, greeting)
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
        """End the workers and remove the temporary files. May be called twice; a runner starts new workers when used again,
        but keeps no references of workloads then."""
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

    # ------------------------------------------------------------ public

    def request(self, workload: str, schedule: str) -> Request:
        """A request for this runner's target under its policy."""
        return Request(workload, schedule, self._target_json, self.policy)

    def set_best(self, workload_hash: str, median_ns: float) -> None:
        """Tell a time that was measured earlier, for the cut-off. Nanoseconds."""
        self._best[workload_hash] = min(median_ns, self._best.get(workload_hash, median_ns))

    def best(self, workload_hash: str) -> float | None:
        """The shortest median of a workload so far, in nanoseconds."""
        return self._best.get(workload_hash)

    def measure(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """One outcome for each request, in order. Requests are taken as they are needed: one at a time, or a few for each
        build worker. Raises ValueError for a request of another target and DeviceError if no worker can be started."""
        count = len(self._pool.slots)
        size = 1 if count == 1 else AHEAD * count
        source = iter(requests)
        while chunk := list(itertools.islice(source, size)):
            jobs = [self._job(r, k % count) for k, r in enumerate(chunk)]
            with self._guarded():
                self._build(jobs)
            for job in jobs:
                with self._guarded():
                    outcome = self._finish(job)
                yield outcome

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        """The outcome of one request. ``again`` measures code that was measured before once more instead of calling it a
        duplicate, and without a cut-off."""
        job = self._job(request, 0)
        job.force = again
        with self._guarded():
            self._build([job])
            return self._finish(job)

    def compare(self, a: Request, b: Request, rounds: int = 20) -> Pair:
        """Paired re-measurement of two candidates of one policy in interleaved rounds: the time of b over that of a.

        Raises DeviceError if either cannot be built, checked and timed any more.
        """
        jobs = [self._job(r, 0) for r in (a, b)]
        with self._guarded():
            for job in jobs:
                job.force = True
            for job in jobs:
                self._ready(job)
            return Pair(**self._held(jobs, {"op": "pair", "a": jobs[0].number, "b": jobs[1].number, "rounds": rounds}))

    def noise_floor(self, request: Request | None = None) -> float:
        """A/A test: the relative difference that a candidate (default: a tiny one) shows against itself."""
        job = self._job(request or self.request(tiny_workload().text, ""), 0)
        job.force = True
        with self._guarded():
            self._ready(job)
            return float(self._held([job], {"op": "noise", "id": job.number})["noise"])

    def preflight(self) -> Outcome:
        """Measure a kernel that is known to be good. Raises DeviceError with the cause if that fails."""
        outcome = self.measure_one(self.request(tiny_workload().text, ""), again=True)
        if not outcome.ok:
            raise DeviceError(
                f"device {self.target.model}: expected a known-good kernel to be measured; got {outcome.status}: "
                f"{outcome.error}"
            )
        return outcome

    # ------------------------------------------------------------ stages

    def _job(self, request: Request, slot: int) -> _Job:
        if request.target != self._target_json and Target.from_json(request.target) != self.target:
            raise ValueError(f"target of a request: expected {self._target_json}; got {request.target}")
        return _Job(next(self._numbers), request, slot)

    def _build_message(self, slot: Slot, job: _Job) -> Message:
        known, slot.told = self._known[slot.told :], len(self._known)
        return {
            "op": "build",
            "id": job.number,
            "workload": job.request.workload,
            "schedule": job.request.schedule,
            "known": known,
            "force": job.force,
        }

    def _build(self, jobs: Sequence[_Job]) -> None:
        """Build all jobs, side by side on the slots they are assigned to."""
        queues: list[list[_Job]] = [[j for j in jobs if j.slot == s] for s in range(len(self._pool.slots))]
        cap = min((j.request.policy.build_timeout_s for j in jobs), default=1.0)

        def message(index: int, job: Any) -> Message:
            slot = self._pool.worker(index)
            job.generation = slot.generation
            return self._build_message(slot, job)

        answers = ask_all(self._pool, queues, message, self._build_limit.seconds(cap))
        for job in jobs:
            answer = answers[job.number]
            if isinstance(answer, WorkerTimeout):
                job.outcome = Outcome("compile_timeout", error=str(answer), build_s=self._build_limit.seconds(cap))
            elif isinstance(answer, WorkerCrash):
                if not self._retry(job):
                    job.outcome = Outcome("crash", error=f"while building: {answer}")
            else:
                self._built(job, answer)

    def _built(self, job: _Job, answer: Message) -> None:
        job.build_s = float(answer["build_s"])
        job.digest = str(answer["digest"])
        if answer["status"] == "ok":
            self._build_limit.add(job.build_s)
        else:
            job.outcome = Outcome(str(answer["status"]), error=str(answer["error"]), build_s=job.build_s)

    def _retry(self, job: _Job) -> bool:
        """A worker that had run other candidates may have been damaged by them: have a fresh one build the job. True if the
        job is decided or built by that."""
        slot = self._pool.slots[job.slot]
        if slot.used == 0:
            return False
        self._pool.retire(job.slot)
        slot.used = 0
        self._build([job])
        return True

    def _finish(self, job: _Job) -> Outcome:
        """Check and time a built job."""
        if job.outcome is None and not job.force and job.digest in self._seen:
            job.outcome = _duplicate(self._seen[job.digest], job)
        if job.outcome is None:
            job.outcome = self._run(job)
            self._after(job, job.outcome)
        if job.generation == self._pool.slots[job.slot].generation and self._pool.slots[job.slot].process is not None:
            self._pool.recycle(job.slot)
        return job.outcome

    def _after(self, job: _Job, outcome: Outcome) -> None:
        """Note what an outcome says about its code and its workload."""
        if job.digest and job.digest not in self._seen:
            self._known.append(job.digest)
        if job.digest:
            self._seen[job.digest] = outcome
        if outcome.median_ns is not None:
            self.set_best(job.request.workload_hash, outcome.median_ns)
        self._pool.slots[job.slot].used += 1

    def _run(self, job: _Job) -> Outcome:
        """Check and time; a crash in a worker that had run other candidates is tried once more in a fresh one."""
        stage = "checking"
        run_s = 0.0
        max_error: float | None = None
        used = self._pool.slots[job.slot].used
        try:
            failed = self._checked(job)
            if isinstance(failed, Outcome):
                return failed
            run_s, max_error = failed["run_s"], failed["max_error"]
            stage = "timing"
            answer = self._timed(job)
        except WorkerTimeout as error:
            return Outcome("run_timeout", error=f"while {stage}: {error}", build_s=job.build_s, run_s=run_s)
        except WorkerCrash as error:
            if used > 0:
                self._pool.slots[job.slot].used = 0
                return self._run(job)
            return Outcome("crash", error=f"while {stage}: {error}", build_s=job.build_s, run_s=run_s)
        return _timed_outcome(job, answer, run_s, max_error)

    def _checked(self, job: _Job) -> Outcome | Message:
        """The answer of a check that passed, or the outcome."""
        policy = job.request.policy
        failed = self._hold_kernel(job)
        if failed is not None:
            return failed
        limit = self._check_limits[job.request.workload_hash]
        answer = self._pool.ask(
            job.slot,
            {"op": "check", "id": job.number, "policy": policy.to_dict()},
            limit.seconds(policy.run_timeout_s),
        )
        if answer["status"] != "ok":
            self._drop(job)
            return Outcome(
                str(answer["status"]),
                error=str(answer["error"]),
                max_error=answer.get("max_error"),
                build_s=job.build_s,
                run_s=float(answer.get("run_s", 0.0)),
            )
        limit.add(float(answer["run_s"]))
        return answer

    def _hold_kernel(self, job: _Job) -> Outcome | None:
        """Make sure that the slot's worker has the built kernel and its reference; the outcome if it cannot."""
        slot = self._pool.worker(job.slot)
        if job.generation != slot.generation:
            job.generation = slot.generation
            cap = job.request.policy.build_timeout_s
            message = {**self._build_message(slot, job), "force": True}
            answer = self._pool.ask(job.slot, message, self._build_limit.seconds(cap))
            self._built(job, answer)
            if job.outcome is not None:
                return job.outcome
        key = job.request.workload_hash, job.request.policy.seed
        if key not in slot.references:
            message = {"op": "reference", "workload": job.request.workload, "seed": job.request.policy.seed}
            try:
                self._pool.ask(job.slot, message, REFERENCE_S)
            except (WorkerTimeout, WorkerCrash) as error:
                return Outcome("run_error", error=f"the reference of the workload: {error}", build_s=job.build_s)
            slot.references = {key}  # a worker keeps one
            assert slot.process is not None
            slot.baseline = slot.process.resident
        return None

    def _timed(self, job: _Job) -> Message:
        policy = job.request.policy
        best = None if job.force else self._best.get(job.request.workload_hash)
        limit = self._time_limits[job.request.workload_hash]
        with device_lock(self._lock_file) as waited:
            message = {"op": "time", "id": job.number, "policy": policy.to_dict(), "best_ns": best}
            seconds = limit.seconds(policy.run_timeout_s) + 3 * policy.max_time_s
            answer = self._pool.ask(job.slot, message, seconds)
        job.load["lock_wait_s"] = waited
        limit.add(float(answer["run_s"]))
        self._drop(job)
        return answer

    def _drop(self, job: _Job) -> None:
        self._pool.ask(job.slot, {"op": "drop", "ids": [job.number]}, RUN_FLOOR_S * 5)

    def _ready(self, job: _Job) -> None:
        """Build and check a job for a comparison."""
        try:
            checked = self._checked(job)
        except (WorkerTimeout, WorkerCrash) as error:
            raise DeviceError(f"re-measurement: expected a candidate that runs; got: {error}") from error
        if isinstance(checked, Outcome):
            raise DeviceError(f"re-measurement: expected a candidate that is correct; got {checked.status}: {checked.error}")

    def _held(self, jobs: Sequence[_Job], message: Message) -> dict[str, Any]:
        """Ask a question that times, while the device is held."""
        policy = jobs[0].request.policy
        try:
            with device_lock(self._lock_file):
                answer = self._pool.ask(
                    jobs[0].slot, {**message, "policy": policy.to_dict()}, REFERENCE_S + policy.run_timeout_s
                )
            for job in jobs:
                self._drop(job)
        except (WorkerTimeout, WorkerCrash) as error:
            raise DeviceError(f"re-measurement: expected an answer; got: {error}") from error
        return {k: v for k, v in answer.items() if k not in ("status", "error", "resident")}


def _duplicate(earlier: Outcome, job: _Job) -> Outcome:
    said = f"{earlier.median_ns:.0f} ns" if earlier.median_ns is not None else f"{earlier.status}: {earlier.error}"
    return Outcome("duplicate", error=f"the same code as an earlier candidate, which gave {said}", build_s=job.build_s)


def _timed_outcome(job: _Job, answer: Message, run_s: float, max_error: float | None) -> Outcome:
    status = str(answer["status"])
    reason = str(answer.get("stop_reason", ""))
    error = answer["error"]
    if status == "ok" and reason == "cutoff":
        status = "pruned_slow"
        error = f"about {answer['median_ns']:.0f} ns: more than {job.request.policy.cutoff} times the best"
    return Outcome(
        status,
        answer["median_ns"] if status == "ok" else None,
        tuple(answer.get("samples_ns", ())),
        answer.get("noise"),
        reason,
        error,
        max_error,
        job.build_s,
        run_s + float(answer["run_s"]),
        {**answer.get("load", {}), **job.load},
    )


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
