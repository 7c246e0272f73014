"""Timing: statistics of samples, the loops, when sampling stops, the cut-off, pairs, the flush."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload, canonical
from tilewright.measure.ceilings import Bandwidth, Ceilings, levels, measure_ceilings
from tilewright.measure.harness import Harness
from tilewright.measure.inputs import NORMAL, generate
from tilewright.measure.limits import Limit
from tilewright.measure.policy import Policy
from tilewright.measure.stats import median, rank
from tilewright.measure.timing import Clock, Subject, aa_noise_floor, calls_for, pair, subject_of, time_kernel
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.lower import module
from tilewright.schedules.steps import Schedule
from tilewright.schedules.target import Target

pytestmark = [pytest.mark.timing, pytest.mark.workers]

TARGET = Target.host(threads=1)
QUICK = Policy(min_time_s=0.0, max_time_s=0.05, min_samples=6, max_samples=12)


def scaled(n: int) -> Workload:
    g = Graph()
    x = g.input("x", (n,))
    y = g.compute((n,), lambda i: x[i] * 2.0)
    return canonical(g.nodes, y.name, g.types, ())[0]


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock(TARGET)


class Kernels:
    """Kernels of known relative size, kept alive."""

    def __init__(self) -> None:
        self._keep: list[object] = []

    def subject(self, n: int, copies: int = 1) -> Subject:
        built = build(scaled(n), Schedule(), TARGET)
        harness = Harness(built, module([built.lowered]))
        inputs = generate(built.workload, NORMAL, 0)
        self._keep.append((harness, inputs))
        if copies > 1:
            subject, sets = harness.rotating(inputs, copies)
            self._keep.append(sets)
            return subject
        bound = harness.bind(inputs)
        self._keep.append(bound)
        return harness.subject(bound)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels()


# ---------------------------------------------------------------- statistics


def test_rank_is_that_of_the_sign_test() -> None:
    # for 10 samples the 2nd smallest and 2nd largest cover the median with 97.9 %, the 3rd with only 89.1 %
    assert rank(10) == 2
    assert rank(6) == 1
    assert rank(3) == 1
    assert all(rank(n) <= rank(n + 1) for n in range(6, 300))


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        m = median(rng.exponential(1.0, 25).tolist())  # skewed, as times are
        covered += m.low <= math.log(2) <= m.high
    assert covered >= 940


def test_the_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample; got none"):
        median([])


def test_one_outlier_does_not_move_the_median() -> None:
    quiet = [10.0, 10.1, 10.2, 10.1, 10.0, 10.2, 10.1, 10.0, 10.1]
    assert median([*quiet, 1e6]).value == pytest.approx(median(quiet).value, rel=0.01)


def test_a_limit_adapts_between_floor_and_cap() -> None:
    limit = Limit(floor_s=1.0)
    assert limit.seconds(60) == 60
    for _ in range(5):
        limit.add(0.001)
    assert limit.seconds(60) == 1.0
    for _ in range(50):
        limit.add(1.0)
    assert limit.seconds(60) == 20.0
    assert limit.seconds(5) == 5


# ---------------------------------------------------------------- loops


def test_the_clock_is_cheap_and_counts_calls(clock: Clock, kernels: Kernels) -> None:
    assert 0 < clock.overhead_ns < 1e6
    subject = kernels.subject(4096)
    one = min(clock.sample(subject, "hot", 1) for _ in range(50))
    many = min(clock.sample(subject, "hot", 64) for _ in range(10))
    assert many < 2 * one  # a mean of one call, not a sum


def test_a_larger_kernel_takes_longer(clock: Clock, kernels: Kernels) -> None:
    small = time_kernel(clock, kernels.subject(1 << 12), QUICK)
    large = time_kernel(clock, kernels.subject(1 << 18), QUICK)
    assert min(large.samples_ns) > 4 * min(small.samples_ns)
    assert small.calls > large.calls
    assert small.median.value == pytest.approx(statistics.median(small.samples_ns))


def test_calls_fill_a_sample() -> None:
    assert calls_for(100.0, 50_000) == 500
    assert calls_for(1e9) == 1
    assert calls_for(0.0) >= 1


def test_sampling_stops_at_the_noise_asked_for(clock: Clock, kernels: Kernels) -> None:
    policy = Policy(min_time_s=0, max_time_s=5, min_samples=6, target_noise=0.9)
    found = time_kernel(clock, kernels.subject(1 << 14), policy)
    assert found.stop_reason == "target_noise"
    assert found.median.noise <= 0.9


def test_sampling_stops_at_its_limits(clock: Clock, kernels: Kernels) -> None:
    subject = kernels.subject(1 << 14)
    never = 1e-12
    most = time_kernel(clock, subject, Policy(max_time_s=60, max_samples=9, target_noise=never))
    assert (most.stop_reason, len(most.samples_ns)) == ("max_samples", 9)
    short = time_kernel(clock, subject, Policy(min_time_s=0, max_time_s=1e-6, max_samples=10**6, target_noise=never))
    assert short.stop_reason == "max_time"
    assert len(short.samples_ns) <= 3


def test_a_slow_kernel_is_cut_off_and_a_fast_one_is_not(clock: Clock, kernels: Kernels) -> None:
    subject = kernels.subject(1 << 16)
    policy = Policy(cutoff=2.0, target_noise=0.9)
    assert time_kernel(clock, subject, policy, best_ns=1.0).stop_reason == "cutoff"
    assert time_kernel(clock, subject, policy, best_ns=1e12).stop_reason != "cutoff"
    assert time_kernel(clock, subject, Policy(cutoff=None), best_ns=1.0).stop_reason != "cutoff"


def test_what_is_beaten_needs_no_precise_time(clock: Clock, kernels: Kernels) -> None:
    subject = kernels.subject(1 << 14)
    precise = Policy(min_time_s=0, max_time_s=20, max_samples=10**6, target_noise=1e-12)
    ns = time_kernel(clock, subject, Policy()).median.value
    found = time_kernel(clock, subject, precise, best_ns=ns / 1.8)
    assert found.stop_reason == "beaten"
    assert len(found.samples_ns) < 10**5


def test_rotating_walks_through_all_copies_even_in_single_calls(clock: Clock) -> None:
    workload = scaled(64)
    built = build(workload, Schedule(), TARGET)
    harness = Harness(built, module([built.lowered]))
    inputs = generate(workload, NORMAL, 0)
    subject, sets = harness.rotating(inputs, 3)
    assert len({b.inputs["x0"].ctypes.data for b in sets}) == 3
    for bound in sets:
        bound.poison(0xAB)
    for _ in range(3):
        clock.sample(subject, "rotating", 1)
    for bound in sets:
        np.testing.assert_array_equal(bound.output, 2 * inputs["x0"])


def test_a_kernel_of_this_process_is_a_subject(clock: Clock) -> None:
    kernel = Kernel(build(scaled(64), Schedule(), TARGET))
    x = np.arange(64, dtype=np.float32)
    out = np.zeros(64, dtype=np.float32)
    kernel.bind({"x0": x, "t0": out})
    assert clock.sample(subject_of(kernel), "hot", 3) > 0
    np.testing.assert_array_equal(out, 2 * x)


# ---------------------------------------------------------------- pairs and noise


def test_a_pair_of_one_kernel_has_a_ratio_near_one(clock: Clock, kernels: Kernels) -> None:
    subject = kernels.subject(1 << 14)
    found = pair(clock, subject, subject, 12, QUICK)
    assert found.low <= found.ratio <= found.high
    assert 0.2 < found.ratio < 5


def test_a_pair_says_which_is_slower(clock: Clock, kernels: Kernels) -> None:
    found = pair(clock, kernels.subject(1 << 12), kernels.subject(1 << 16), 12, QUICK)
    assert found.ratio > 3
    assert found.b_ns > found.a_ns


def test_a_pair_of_too_few_rounds_is_refused(clock: Clock, kernels: Kernels) -> None:
    subject = kernels.subject(64)
    with pytest.raises(ValueError, match="at least 6; got 2"):
        pair(clock, subject, subject, 2, QUICK)


def test_the_noise_floor_is_a_share(clock: Clock, kernels: Kernels) -> None:
    assert 0 <= aa_noise_floor(clock, kernels.subject(1 << 12), QUICK, rounds=6) < 100


# ---------------------------------------------------------------- cold


def test_the_flush_is_larger_than_the_caches_and_a_cold_call_is_slower(clock: Clock, kernels: Kernels) -> None:
    flush = clock.flush_buffer()
    assert flush.data.nbytes >= 2 * TARGET.l3_bytes
    assert clock.flush_buffer() is flush  # tested once
    subject = kernels.subject(1 << 12)  # short, so that fetching its data shows
    hot = statistics.median(clock.sample(subject, "hot", 1) for _ in range(15))
    cold = statistics.median(clock.sample(subject, "cold", 1) for _ in range(15))
    assert cold > hot


# ---------------------------------------------------------------- ceilings


def test_ceilings_of_all_levels(tmp_path: Path) -> None:
    found = measure_ceilings(TARGET, 0.5, tmp_path / "lock")
    assert found.gflops("float32", 1) > found.gflops("float64", 1) > 0
    assert {b.level for b in found.bandwidth} == set(levels(TARGET, 1))
    assert {b.kind for b in found.bandwidth} == {"read", "copy", "nt_copy"}
    assert found.gb_per_s("l1", "read", 1) > found.gb_per_s("dram", "read", 1) > 0
    rows = dict(found.rows())
    assert rows["float32 multiply-add, 1 thread"].endswith(" GFLOP/s")
    assert rows["DRAM non-temporal copy, 1 thread"].endswith(" GB/s")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["fma_gflops"]["float32"]["1"] == found.gflops("float32", 1)
    assert len(data["bandwidth"]) == len(found.bandwidth)
    with pytest.raises(KeyError, match="got l9, read, 1"):
        found.gb_per_s("l9", "read", 1)


def test_ceilings_on_several_threads(tmp_path: Path) -> None:
    found = measure_ceilings(TARGET.with_threads(2), 0.2, tmp_path / "lock")
    assert set(found.fma_gflops["float32"]) == {1, 2}
    assert {b.threads for b in found.bandwidth} == {1, 2}
    assert all(b.gb_per_s > 0 for b in found.bandwidth)


def test_ceilings_say_what_another_program_disturbed() -> None:
    """Several threads that are slower together than one are no ceiling."""
    rates = {"float32": {1: 100.0, 2: 196.0}, "float64": {1: 50.0, 2: 49.0}}

    def found(*gb: tuple[str, int, float]) -> Ceilings:
        return Ceilings(rates, tuple(Bandwidth(level, "nt_copy", n, 1 << 20, x) for level, n, x in gb), 1.0)

    assert found(("l1", 1, 200.0), ("l1", 2, 5.0), ("l2", 1, 100.0), ("l2", 2, 150.0)).disturbed() == [
        "float64 multiply-add",
        "L1 non-temporal copy",
    ]
    assert found(("l1", 1, 200.0)).to_dict()["disturbed"] == ["float64 multiply-add"]
