"""Timing: adaptive samples of a machine-code loop, until the median is known well enough.

A sample is the mean time of enough calls to dwarf the clock's resolution. Nothing here trusts a kernel: a
worker process calls it after the check.
"""

from __future__ import annotations

import ctypes
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from tilewright.measure.policy import Policy
from tilewright.measure.stats import Median, median
from tilewright.measure.timing_ir import loops
from tilewright.schedules import jit
from tilewright.schedules.kernel import NAME, Kernel
from tilewright.schedules.target import Target

SAMPLE_NS: Final = 50_000
"""Least length of a sample: some thousand times the resolution of the clock."""
WARM_NS: Final = 1_000_000
"""Calls before the first sample take this long in total, so that caches, pages and clocks have settled."""
LEAST_SAMPLES: Final = 3
BEATEN: Final = 1.1
BEATEN_NOISE: Final = 0.03
"""A candidate whose interval lies above this multiple of the best one's time needs no narrower interval than this."""
LEAST_ROUNDS: Final = 6
"""From fewer no 95 % interval of a median follows."""
FLUSH_TRIES: Final = 4
MIN_FLUSH: Final = 8 << 20


class FlushError(RuntimeError):
    """The cache flush does not empty the caches."""


@final
@dataclass(frozen=True, slots=True)
class Subject:
    """Something to time: the addresses of a ``void fn(ptr args)`` and of its ``args`` (several: rotating
    copies)."""

    function: int
    args: tuple[int, ...]


def subject_of(kernel: Kernel) -> Subject:
    """A kernel of this process with the arrays bound to it; keep the kernel while the subject is used."""
    return Subject(kernel.code.address(NAME), (kernel.args_address,))


@final
@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one call in nanoseconds, and why sampling stopped."""

    samples_ns: tuple[float, ...]
    median: Median
    calls: int
    """Calls in each sample."""
    stop_reason: str


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """A paired comparison: ``ratio`` is the time of b over that of a, with its 95 % interval; medians in
    ns."""

    ratio: float
    low: float
    high: float
    a_ns: float
    b_ns: float
    rounds: int


@final
class Clock:
    """The timing loops, compiled for a target. Raises CompileError if they cannot be."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._code = jit.compile_text(loops(target), target)
        number, address = ctypes.c_int64, ctypes.c_void_p
        self._loop = self._function("time_loop", address, address, number)
        self._rotating = self._function("time_rotating", address, address, number, number, number)
        self._cold = self._function("time_cold", address, address, number, address)
        self._flush: _Buffer | None = None
        self._turn = 0

    def _function(self, name: str, *types: type) -> Callable[..., Any]:
        return ctypes.CFUNCTYPE(ctypes.c_int64, *types)(self._code.address(name))

    def sample(self, subject: Subject, cache: str, calls: int) -> float:
        """Nanoseconds of one call, as the mean of ``calls``."""
        if cache == "cold":
            return self.cold(subject, calls, self.flush_buffer())
        if len(subject.args) == 1:
            return int(self._loop(subject.function, subject.args[0], calls)) / calls
        table = (ctypes.c_void_p * len(subject.args))(*subject.args)
        first = self._turn % len(subject.args)  # samples of one call must walk through the copies too
        self._turn = first + calls
        return int(self._rotating(subject.function, table, len(subject.args), first, calls)) / calls

    def cold(self, subject: Subject, calls: int, flush: _Buffer) -> float:
        """Nanoseconds of one call, each after a flush with the given buffer."""
        return int(self._cold(subject.function, subject.args[0], calls, flush.args)) / calls

    def flush_buffer(self) -> _Buffer:
        """A buffer that was seen to empty the caches when it is read. Raises FlushError if none does."""
        if self._flush is None:
            self._flush = self._tested_flush()
        return self._flush

    def _tested_flush(self) -> _Buffer:
        """At least twice all caches; doubled until reading more makes nothing slower.

        The victim is as large as the caches can hold, so that a flush too small to replace all of it shows.
        """
        t = self.target
        victim = _Buffer(max(t.l3_bytes // 4, t.l2_bytes // 2, t.l1d_bytes))
        subject = Subject(self._code.address("sweep"), (victim.args,))
        self._loop(subject.function, victim.args, 2)
        hot = min(int(self._loop(subject.function, victim.args, 2)) / 2 for _ in range(7))
        size = max(2 * (t.l3_bytes + t.threads * (t.l2_bytes + t.l1d_bytes)), MIN_FLUSH)
        seen: list[str] = []
        for _ in range(FLUSH_TRIES):
            flush, double = _Buffer(size), _Buffer(2 * size)
            once = statistics.median(self.cold(subject, 1, flush) for _ in range(5))
            twice = statistics.median(self.cold(subject, 1, double) for _ in range(5))
            seen.append(f"{size >> 20} MiB: {once / hot:.2f} times hot ({twice / hot:.2f} with twice the bytes)")
            if once > 1.2 * hot and twice < 1.5 * once:
                return flush
            size *= 2
        raise FlushError(
            f"cache flush: expected a sweep to be slower after it, by the same at twice the size; got {seen}"
        )

    @functools.cached_property
    def overhead_ns(self) -> float:
        """Nanoseconds that reading the clock twice and an empty call take."""
        nothing = self._code.address("nothing")
        return min(float(self._loop(nothing, None, 1)) for _ in range(100))


@final
class _Buffer:
    """Zeroed bytes that really are in memory, and the ``{address, size}`` that the loops take."""

    def __init__(self, size: int) -> None:
        self.data = np.full(size, 1, dtype=np.uint8)
        self._args = (ctypes.c_int64 * 2)(self.data.ctypes.data, size)

    @property
    def args(self) -> int:
        """Address of the pair."""
        return ctypes.addressof(self._args)


def calls_for(call_ns: float, sample_ns: float = SAMPLE_NS) -> int:
    """Calls that make a sample at least ``sample_ns`` long."""
    return max(1, math.ceil(sample_ns / max(call_ns, 0.5)))


def warm_up(clock: Clock, subject: Subject, policy: Policy) -> float:
    """Call until times have settled; returns the shortest time of one call seen, in nanoseconds."""
    best = clock.sample(subject, policy.cache, 1)
    if policy.cache == "cold":
        return best
    spent, calls = best, 1
    while spent < WARM_NS:
        calls = calls_for(best) if calls > 1 else min(8, calls_for(best))
        now = clock.sample(subject, policy.cache, calls)
        best, spent = min(best, now), spent + now * calls
    return best


def time_kernel(clock: Clock, subject: Subject, policy: Policy, best_ns: float | None = None) -> Samples:
    """Sample a kernel as the policy says. ``best_ns`` is the time to beat, for the cut-off.

    A cut-off is decided by the *fastest* sample, which noise can only have made slower. A candidate that is slower
    than the best beyond doubt is known well enough sooner: it will not win, and a model learns no more from
    a precise time.
    """
    limit = policy.cutoff * best_ns if policy.cutoff is not None and best_ns is not None else math.inf
    beaten = BEATEN * best_ns if policy.cutoff is not None and best_ns is not None else math.inf
    fastest = warm_up(clock, subject, policy)
    calls = 1 if policy.cache == "cold" else calls_for(fastest)
    samples: list[float] = []
    start = time.perf_counter()
    while True:
        samples.append(clock.sample(subject, policy.cache, calls))
        elapsed = time.perf_counter() - start
        seen = min(fastest, *samples)
        if seen > 2 * limit or (seen > limit and (len(samples) >= LEAST_SAMPLES or elapsed >= policy.max_time_s)):
            reason = "cutoff"
            break
        if len(samples) >= policy.max_samples:
            reason = "max_samples"
            break
        enough = len(samples) >= LEAST_SAMPLES or elapsed >= 10 * policy.max_time_s
        if elapsed >= policy.max_time_s and enough:
            reason = "max_time"
            break
        settled = len(samples) >= max(policy.min_samples, 6) and elapsed >= policy.min_time_s
        if settled:
            m = median(samples)
            if m.noise <= policy.target_noise:
                reason = "target_noise"
                break
            if m.low > beaten and m.noise <= max(BEATEN_NOISE, policy.target_noise):
                reason = "beaten"
                break
        if calls > 1 and len(samples) == 1 and samples[0] < 0.7 * fastest:
            fastest = samples.pop()  # still warming up: more calls are needed for a sample of full length
            calls = calls_for(fastest)
    return Samples(tuple(samples), median(samples), calls, reason)


def race(
    clock: Clock, subjects: Sequence[Subject], rounds: int, policy: Policy, seconds: float = math.inf
) -> list[list[float]]:
    """Times of kernels in interleaved rounds of a, b, …, b, a: drift of the machine hits all alike. One list for each
    kernel, one time for each round; no new round begins after ``seconds``, but there are at least 6.

    Where buffers stay the same from call to call, each sample follows a call of its own kernel, so that it does
    not matter whose data the caches held before.
    """
    calls = [_paired_calls(clock, s, policy) for s in subjects]
    again = policy.cache == "hot"
    times: list[list[float]] = [[] for _ in subjects]
    start = time.perf_counter()

    def sample(k: int) -> float:
        if again:
            clock.sample(subjects[k], policy.cache, 1)
        return clock.sample(subjects[k], policy.cache, calls[k])

    for r in range(rounds):
        there = [sample(k) for k in range(len(subjects))]
        back = [sample(k) for k in reversed(range(len(subjects)))]
        for t, first, second in zip(times, there, reversed(back), strict=True):
            t.append((first + second) / 2)
        if r + 1 >= LEAST_ROUNDS and time.perf_counter() - start > seconds:
            break
    return times


def paired(a_ns: Sequence[float], b_ns: Sequence[float]) -> Pair:
    """Compare times of the same rounds."""
    m = median([b / a for a, b in zip(a_ns, b_ns, strict=True)])
    return Pair(m.value, m.low, m.high, statistics.median(a_ns), statistics.median(b_ns), len(a_ns))


def pair(clock: Clock, a: Subject, b: Subject, rounds: int, policy: Policy) -> Pair:
    """Compare two kernels in interleaved rounds.

    Raises ValueError for fewer than 6 rounds, from which no 95 % interval follows.
    """
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"rounds of a paired comparison: expected at least {LEAST_ROUNDS}; got {rounds}")
    return paired(*race(clock, (a, b), rounds, policy))


def _paired_calls(clock: Clock, subject: Subject, policy: Policy) -> int:
    fastest = warm_up(clock, subject, policy)
    return 1 if policy.cache == "cold" else calls_for(fastest, 2 * SAMPLE_NS)


def aa_noise_floor(clock: Clock, subject: Subject, policy: Policy, rounds: int = 12) -> float:
    """An A/A test: the relative difference that a kernel shows against itself (95th percentile of rounds).

    A difference between two candidates that is smaller than this says nothing.
    """
    calls = _paired_calls(clock, subject, policy)
    differences: list[float] = []
    for _ in range(rounds):
        first, second = (_block(clock, subject, policy, calls) for _ in range(2))
        differences.append(abs(second / first - 1))
    return sorted(differences)[math.ceil(0.95 * len(differences)) - 1]


def _block(clock: Clock, subject: Subject, policy: Policy, calls: int) -> float:
    times: Sequence[float] = [clock.sample(subject, policy.cache, calls) for _ in range(policy.min_samples)]
    return statistics.median(times)
