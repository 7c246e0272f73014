"""The runner of this machine: candidates in, outcomes out, whatever the candidates do."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from tilewright.measure.job import Job
from tilewright.measure.lock import device_lock
from tilewright.measure.memory import worker_bytes
from tilewright.measure.messages import Message
from tilewright.measure.outcome import Outcome
from tilewright.measure.policy import Policy
from tilewright.measure.pool import Pool
from tilewright.measure.preflight import tiny_workload
from tilewright.measure.process import WorkerCrash, WorkerTimeout, command
from tilewright.measure.request import DeviceError, Request
from tilewright.measure.scratch import Scratch
from tilewright.measure.stages import REFERENCE_S, Stages
from tilewright.measure.timing import Pair
from tilewright.schedules.target import Target

AHEAD: Final = 2
"""Candidates built ahead for each worker, when there are several."""


@final
class LocalRunner:
    """Measures on this machine, in worker processes.

    ``workers_for_build`` candidates are built side by side; checks and timings always run one at a time, and
    timings only while the lock of the machine is held. ``memory_bytes`` limits a worker's address space
    (default: 80 % of the memory of the machine or of the control group, and never more than this process may have),
    ``cpus`` pins workers, ``lock_file`` replaces the machine's, ``worker_module`` names another module whose
    ``main()`` is the worker's program. Use it in a ``with`` statement, or call :meth:`close`. Not thread-safe.
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
        worker_module: str = "tilewright.measure.worker_process",
    ) -> None:
        if workers_for_build < 1:
            raise ValueError(f"workers_for_build: expected at least 1; got {workers_for_build}")
        self.target = target
        self.policy = policy or Policy()
        self._target_json = target.to_json()
        self._closed = False
        self._scratch = Scratch()
        greeting: Message = {
            "target": self._target_json,
            "memory": worker_bytes() if memory_bytes is None else memory_bytes,
            "cpus": list(cpus),
            "folder": str(self._scratch.path),
        }
        self._pool = Pool(workers_for_build, command(worker_module), target.threads, greeting)
        self._numbers = itertools.count(1)
        self._stages = Stages(self._pool, lock_file)
        self._seen: dict[str, Outcome] = {}

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
        self._scratch.close()

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
        best = self._stages.best
        best[workload_hash] = min(median_ns, best.get(workload_hash, median_ns))

    def best(self, workload_hash: str) -> float | None:
        """The shortest median of a workload so far, in nanoseconds."""
        return self._stages.best.get(workload_hash)

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
                self._stages.build(jobs)
            for job in jobs:
                with self._guarded():
                    outcome = self._finish(job)
                yield outcome

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        """The outcome of one request. ``again`` measures known code once more instead of calling it a
        duplicate, and without a cut-off."""
        job = self._job(request, 0, force=again)
        with self._guarded():
            self._stages.build([job])
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

    def contest(self, requests: Sequence[Request], *, rounds: int = 20, seconds: float = 1.0) -> list[Outcome]:
        """Re-measure candidates of one workload in one sitting, in interleaved rounds: one outcome for each, in
        order.

        Those that can be timed have aligned samples (the k-th samples of all were taken in the same round, see
        :func:`paired`) and stopped for the reason ``rounds``. There are at least 6 rounds and at most ``rounds``,
        and no new one after ``seconds``. If the worker does not survive, each is measured by itself.
        """
        jobs = [self._job(r, 0, force=True) for r in requests]
        for job in jobs:
            job.oldest = jobs[0].number
        with self._guarded():
            passed = self._stages.gather(jobs)
            together = len(passed) > 1 and self._stages.race(passed, rounds, seconds)
            for job in passed if not together else ():
                job.outcome = self._stages.run(job)
        return [job.outcome for job in jobs if job.outcome is not None]

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

    def _finish(self, job: Job) -> Outcome:
        """Check and time a built job."""
        if job.outcome is not None:
            return job.outcome
        if not job.force and job.digest in self._seen:
            return job.duplicate(self._seen[job.digest])
        outcome = self._stages.run(job)
        if job.digest not in self._seen:
            self._stages.known.append(job.digest)
        self._seen[job.digest] = outcome
        if outcome.median_ns is not None:
            self.set_best(job.request.workload_hash, outcome.median_ns)
        self._pool.done(job.slot)
        return outcome

    def _held(self, jobs: Sequence[Job], question: Message) -> dict[str, Any]:
        """Build and check jobs, then ask a question that times while the device is held."""
        policy = jobs[0].request.policy
        what = "re-measurement: expected a candidate that runs and is correct"
        with self._guarded():
            try:
                for job in jobs:
                    if not self._stages.check(job):
                        assert job.outcome is not None
                        raise DeviceError(f"{what}; got {job.outcome.status}: {job.outcome.error}")
                with device_lock(self._stages.lock_file):
                    answer = self._pool.ask(
                        jobs[0].slot,
                        {**question, "policy": policy.to_dict()},
                        REFERENCE_S + policy.run_timeout_s,
                    )
            except (WorkerTimeout, WorkerCrash) as error:
                raise DeviceError(f"{what}; got: {error}") from error
        return {k: v for k, v in answer.items() if k not in ("status", "error", "resident")}
