"""The stages of a measurement: build, check, time, each asked of a worker within a time limit that adapts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from tilewright.measure.job import Job
from tilewright.measure.limits import Limit
from tilewright.measure.lock import device_lock
from tilewright.measure.messages import Message
from tilewright.measure.outcome import Outcome
from tilewright.measure.pool import Pool, Slot, ask_all
from tilewright.measure.process import WorkerCrash, WorkerTimeout

REFERENCE_S: Final = 1800.0
"""Most seconds to compute the expected results of one workload."""
BUILD_FLOOR_S: Final = 5.0
RUN_FLOOR_S: Final = 2.0
"""Limits that adapt do not go below these."""


@final
class Stages:
    """What a runner does with one job, and with several that are to be in one worker at the same time.

    ``known`` are digests of code that was measured (workers are told of them), ``best`` the shortest median of
    each workload in nanoseconds, for the cut-off.
    """

    def __init__(self, pool: Pool, lock_file: Path | None) -> None:
        self.pool = pool
        self.lock_file = lock_file
        self.known: list[str] = []
        self.best: dict[str, float] = {}
        self._build_limit = Limit(BUILD_FLOOR_S)
        self._check_limits: dict[str, Limit] = defaultdict(lambda: Limit(RUN_FLOOR_S))
        self._time_limits: dict[str, Limit] = defaultdict(lambda: Limit(RUN_FLOOR_S))

    def build_message(self, slot: Slot, job: Job, force: bool) -> Message:
        """What a worker is told to build; with ``force`` also code that is known. It notes who builds the job."""
        job.generation, job.fresh = slot.generation, slot.used == 0
        known, slot.told = self.known[slot.told :], len(self.known)
        return {
            "op": "build",
            "id": job.number,
            "oldest": job.oldest,
            "workload": job.request.workload,
            "schedule": job.request.schedule,
            "known": known,
            "force": force,
        }

    def build(self, jobs: Sequence[Job]) -> None:
        """Build all jobs, side by side on the slots they are assigned to."""
        queues = [[j for j in jobs if j.slot == s] for s in range(len(self.pool.slots))]
        seconds = self._build_limit.seconds(min(j.request.policy.build_timeout_s for j in jobs))

        def message(index: int, job: Job) -> Message:
            return self.build_message(self.pool.worker(index), job, job.force)

        answers = ask_all(self.pool, queues, message, seconds)
        for job in jobs:
            answer = answers[job.number]
            if isinstance(answer, WorkerTimeout):
                job.build_s = seconds
                job.outcome = job.failed("compile_timeout", str(answer))
            elif isinstance(answer, WorkerCrash):
                if job.fresh:
                    job.outcome = job.failed("crash", f"while building: {answer}")
                else:  # an earlier candidate may have damaged that worker
                    self.pool.retire(job.slot)
                    self.build([job])
            elif job.built(answer):
                self._build_limit.add(job.build_s)

    def run(self, job: Job) -> Outcome:
        """Check and time; after a crash once more in a fresh worker, if an earlier candidate may be to
        blame."""
        stage = "checking"
        try:
            if not self.check(job):
                assert job.outcome is not None
                return job.outcome
            stage = "timing"
            return self.time(job)
        except WorkerTimeout as error:
            return job.failed("run_timeout", f"while {stage}: {error}")
        except WorkerCrash as error:
            if job.fresh:
                return job.failed("crash", f"while {stage}: {error}")
        return self.run(job)

    def check(self, job: Job) -> bool:
        """Check a job; whether it passed. Its outcome is set if not."""
        policy = job.request.policy
        if not self.hold(job):
            return False
        limit = self._check_limits[job.request.workload_hash]
        question = {"op": "check", "id": job.number, "policy": policy.to_dict()}
        answer = self.pool.ask(job.slot, question, limit.seconds(policy.run_timeout_s))
        if answer["damaged"]:
            self.pool.retire(job.slot)
        if not job.checked(answer):
            return False
        limit.add(float(answer["run_s"]))
        return True

    def hold(self, job: Job) -> bool:
        """Make sure that the slot's worker has the built kernel and its reference. The outcome is set if it
        cannot."""
        slot = self.pool.worker(job.slot)
        policy = job.request.policy
        if job.generation != slot.generation:
            question = self.build_message(slot, job, force=True)
            answer = self.pool.ask(job.slot, question, self._build_limit.seconds(policy.build_timeout_s))
            if not job.built(answer):
                return False
        key = job.request.workload_hash, policy.seed
        if slot.reference != key:
            question = {"op": "reference", "workload": job.request.workload, "seed": policy.seed}
            try:
                self.pool.ask(job.slot, question, REFERENCE_S)
            except (WorkerTimeout, WorkerCrash) as error:
                job.outcome = job.failed("run_error", f"the reference of the workload: {error}")
                return False
            slot.learnt(key)
        return True

    def time(self, job: Job) -> Outcome:
        """Time a checked job, alone on the device; killed when its limit has passed."""
        policy = job.request.policy
        name = job.request.workload_hash
        limit = self._time_limits[name]
        with device_lock(self.lock_file) as waited:
            question = {
                "op": "time",
                "id": job.number,
                "policy": policy.to_dict(),
                "best_ns": None if job.force else self.best.get(name),
            }
            seconds = limit.seconds(policy.run_timeout_s) + 3 * policy.max_time_s
            answer = self.pool.ask(job.slot, question, seconds)
        if answer.get("damaged"):
            self.pool.retire(job.slot)
        job.load["lock_wait_s"] = waited
        limit.add(float(answer["run_s"]))
        return job.timed(answer)

    def gather(self, jobs: Sequence[Job]) -> list[Job]:
        """Build and check jobs in one worker, so that they can be timed side by side; those that passed. The
        others have their outcome. If a job ends the worker, the rest is gathered anew in a fresh one."""
        while True:
            for job in jobs:
                if job.outcome is not None:
                    continue
                try:
                    self.check(job)
                except WorkerTimeout as error:
                    job.outcome = job.failed("run_timeout", f"while checking: {error}")
                except WorkerCrash as error:
                    if job.fresh:
                        job.outcome = job.failed("crash", f"while checking: {error}")
                    break
            passed = [job for job in jobs if job.outcome is None]
            slot = self.pool.worker(jobs[0].slot)
            if all(job.generation == slot.generation for job in passed):
                return passed

    def race(self, jobs: Sequence[Job], rounds: int, seconds: float) -> bool:
        """Time gathered jobs in interleaved rounds while the device is held, and set their outcomes; False if the
        worker ended meanwhile (then none is set: whose fault it was is not known)."""
        policy = jobs[0].request.policy
        question = {
            "op": "race",
            "ids": [job.number for job in jobs],
            "rounds": rounds,
            "seconds": seconds,
            "policy": policy.to_dict(),
        }
        try:
            with device_lock(self.lock_file) as waited:
                answer = self.pool.ask(jobs[0].slot, question, REFERENCE_S + policy.run_timeout_s)
        except (WorkerTimeout, WorkerCrash):
            return False
        for job, part in zip(jobs, answer["parts"], strict=True):
            if part.get("damaged"):
                self.pool.retire(job.slot)
            job.load["lock_wait_s"] = waited
            job.outcome = job.timed(part)
        return True
