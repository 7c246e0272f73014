"""The worker process: builds, checks and times candidates where they can harm nothing but itself.

It answers one message at a time. What is a candidate's fault is answered with a status; anything else is not
caught: the process ends with a traceback, which the runner reports, and a new one takes over.

=========  =========================================  =======================================================
message    asks for                                   answer besides ``status`` and ``error``
=========  =========================================  =======================================================
build      apply, lower, compile                      ``digest`` of the code, ``build_s``
reference  inputs and expected results of a workload  ``seconds``
check      run a built kernel on them                 ``max_error``, ``run_s``
time       time a checked kernel                      ``samples_ns``, ``median_ns``, ``noise``, ``load``, …
pair       compare two checked kernels                ``ratio``, ``low``, ``high``, ``a_ns``, ``b_ns``
race       time checked kernels in common rounds      ``parts``: what ``time`` answers, for each
noise      A/A test of a checked kernel               ``noise``
=========  =========================================  =======================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from tilewright.graph.dtypes import GraphError
from tilewright.graph.read_workload import parse as parse_workload
from tilewright.graph.workload import Workload
from tilewright.measure.check import Reference
from tilewright.measure.harness import Bound, Harness
from tilewright.measure.messages import Message
from tilewright.measure.policy import Policy
from tilewright.measure.stats import median
from tilewright.measure.timing import (
    LEAST_SAMPLES,
    Clock,
    FlushError,
    Samples,
    Subject,
    aa_noise_floor,
    pair,
    race,
    time_kernel,
)
from tilewright.schedules.jit import CompileError
from tilewright.schedules.kernel import build
from tilewright.schedules.lower import module
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.steps import parse as parse_schedule
from tilewright.schedules.target import Target
from tilewright.schedules.winograd import amplification

ROTATING_COPIES = (2, 64)
"""Fewest and most copies of the tensors under the rotating policy."""


@dataclasses.dataclass
class Candidate:
    """A built kernel, and its buffers once it was checked."""

    workload: Workload
    harness: Harness
    bound: Bound | None = None

    @property
    def amplification(self) -> float:
        """By how much its algorithm may magnify rounding errors."""
        return amplification(self.harness.built.schedule)


class Worker:
    """Answers messages. Tests derive from it to inject faults."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        self.target = target
        self.folder = folder
        self.candidates: dict[int, Candidate] = {}
        self.known: set[str] = set()
        self._workloads: dict[str, Workload] = {}
        self._reference: tuple[tuple[str, int], Reference] | None = None
        self._clock: Clock | None = None

    def answer(self, message: Message) -> Message:
        """Do what a message asks for. Raises MemoryError when there is no memory for it."""
        return {"status": "ok", "error": None, **getattr(self, f"on_{message['op']}")(message)}

    @property
    def clock(self) -> Clock:
        """The timing loops, compiled when they are first needed."""
        if self._clock is None:
            self._clock = Clock(self.target)
        return self._clock

    # ------------------------------------------------------------ build

    def on_build(self, message: Message) -> Message:
        """Build one candidate, and forget those before ``oldest``. Known code is not compiled unless
        ``force`` is set."""
        start = time.perf_counter()
        self.known.update(message["known"])
        for number in [n for n in self.candidates if n < message["oldest"]]:
            del self.candidates[number]
        digest = ""
        try:
            workload = self.workload(message["workload"])
            built = build(workload, parse_schedule(message["schedule"]), self.target)
            text = module([built.lowered])
            digest = self.digest(workload, message["schedule"], text)
            if digest not in self.known or message["force"]:
                self.candidates[message["id"]] = Candidate(workload, Harness(built, text))
        except (ScheduleError, GraphError) as error:
            return _failed("rejected", error, start)
        except CompileError as error:
            return {**_failed("compile_error", error, start), "digest": digest}
        return {"digest": digest, "build_s": time.perf_counter() - start}

    def digest(self, workload: Workload, schedule: str, text: str) -> str:
        """What two candidates of one workload have in common when they are the same code."""
        return f"{workload.hash}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def workload(self, text: str) -> Workload:
        """The parsed workload; parsed once."""
        if text not in self._workloads:
            if len(self._workloads) > 64:
                self._workloads.clear()
            self._workloads[text] = parse_workload(text)
        return self._workloads[text]

    # ------------------------------------------------------------ check

    def on_reference(self, message: Message) -> Message:
        """Compute inputs and expected results of a workload, unless they are at hand."""
        start = time.perf_counter()
        self.reference(self.workload(message["workload"]), message["seed"])
        return {"seconds": time.perf_counter() - start}

    def reference(self, workload: Workload, seed: int) -> Reference:
        """The reference of a workload. One is kept: candidates come workload by workload."""
        key = workload.hash, seed
        if self._reference is None or self._reference[0] != key:
            self._reference = None
            self._reference = key, Reference(workload, seed, self.folder)
        return self._reference[1]

    def on_check(self, message: Message) -> Message:
        """Compare a built kernel with the reference."""
        policy = Policy.from_dict(message["policy"])
        candidate = self.candidates[message["id"]]
        reference = self.reference(candidate.workload, policy.seed)
        start = time.perf_counter()
        verdict, candidate.bound = reference.check(candidate.harness, policy.tolerance, candidate.amplification)
        return {
            "status": "ok" if verdict.error is None else "wrong_result",
            "error": verdict.error,
            "max_error": verdict.max_error if verdict.max_error < float("inf") else None,
            "damaged": verdict.damaged,
            "run_s": time.perf_counter() - start,
        }

    # ------------------------------------------------------------ time

    def on_time(self, message: Message) -> Message:
        """Time a checked kernel, then look at its output once more: a race may show only now and then."""
        policy = Policy.from_dict(message["policy"])
        candidate = self.candidates[message["id"]]
        start = time.perf_counter()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        try:
            subject, sets = self.subject(candidate, policy)
            samples = time_kernel(self.clock, subject, policy, message["best_ns"])
        except FlushError as error:
            return _failed("run_error", error, start)
        result: Message = {
            "samples_ns": list(samples.samples_ns),
            "median_ns": samples.median.value,
            "noise": known_noise(samples),
            "stop_reason": samples.stop_reason,
            "load": {
                **surroundings(),
                "calls_per_sample": float(samples.calls),
                "preemptions": float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches),
            },
        }
        return {**result, **self.after(candidate, sets, policy), "run_s": time.perf_counter() - start}

    def after(self, candidate: Candidate, sets: Sequence[Bound], policy: Policy) -> Message:
        """What is wrong with the output of a kernel that was timed; empty if nothing is."""
        reference = self.reference(candidate.workload, policy.seed)
        for bound in {id(b): b for b in (sets[0], sets[-1])}.values():
            verdict = reference.judge(reference.trials[-1], bound, policy.tolerance, candidate.amplification)
            if verdict.error is not None:
                return {
                    "damaged": verdict.damaged,
                    "status": "wrong_result",
                    "error": f"after it was called many times: {verdict.error}",
                }
        return {}

    def subject(self, candidate: Candidate, policy: Policy) -> tuple[Subject, list[Bound]]:
        """What to time under a policy, and the buffers it uses."""
        assert candidate.bound is not None, "timed before checked"
        if policy.cache != "rotating":
            return candidate.harness.subject(candidate.bound), [candidate.bound]
        t = self.target
        cached = t.l3_bytes + t.threads * t.l2_bytes
        fewest, most = ROTATING_COPIES
        copies = min(most, max(fewest, -(-2 * cached // candidate.workload.min_bytes)))
        return candidate.harness.rotating(candidate.bound.inputs, copies)

    def on_pair(self, message: Message) -> Message:
        """Compare two checked kernels in interleaved rounds."""
        policy = Policy.from_dict(message["policy"])
        subjects = [self.subject(self.candidates[i], policy) for i in (message["a"], message["b"])]
        found = pair(self.clock, subjects[0][0], subjects[1][0], message["rounds"], policy)
        return dataclasses.asdict(found)

    def on_race(self, message: Message) -> Message:
        """Time checked kernels in interleaved rounds."""
        policy = Policy.from_dict(message["policy"])
        start = time.perf_counter()
        candidates = [self.candidates[i] for i in message["ids"]]
        subjects = [self.subject(c, policy) for c in candidates]
        times = race(self.clock, [s for s, _ in subjects], message["rounds"], policy, message["seconds"])
        share = (time.perf_counter() - start) / len(candidates)
        parts: list[Message] = []
        for candidate, (_, sets), samples in zip(candidates, subjects, times, strict=True):
            m = median(samples)
            timed: Message = {"status": "ok", "error": None, "samples_ns": samples, "median_ns": m.value}
            timed |= {"noise": m.noise, "stop_reason": "rounds", "load": surroundings(), "run_s": share}
            parts.append(timed | self.after(candidate, sets, policy))
        return {"parts": parts}

    def on_noise(self, message: Message) -> Message:
        """A/A test of a checked kernel."""
        policy = Policy.from_dict(message["policy"])
        subject, sets = self.subject(self.candidates[message["id"]], policy)
        floor = aa_noise_floor(self.clock, subject, policy)
        del sets
        return {"noise": floor}


def _failed(status: str, error: Exception, start: float) -> Message:
    return {"status": status, "error": str(error), "digest": "", "build_s": time.perf_counter() - start}


def known_noise(samples: Samples) -> float | None:
    """The noise, where it means anything."""
    noise = samples.median.noise
    return noise if len(samples.samples_ns) >= LEAST_SAMPLES and math.isfinite(noise) else None


def surroundings() -> dict[str, float]:
    """What the machine was doing: load average of a minute, and the clock of this core in MHz where it is
    told."""
    found = {"load_1min": os.getloadavg()[0]}
    with contextlib.suppress(OSError, ValueError):
        text = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text(encoding="ascii")
        found["cpu_mhz"] = int(text) / 1000
    return found
