"""Runners: the contract of every one of them, and what the local one promises besides."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload, canonical
from tilewright.measure import (
    STATUSES,
    DeviceError,
    LocalRunner,
    Outcome,
    Policy,
    ReplayError,
    ReplayRunner,
    Request,
    Runner,
    device_lock,
    paired,
)
from tilewright.measure import pool as pools
from tilewright.measure.messages import LARGEST, Decoder, MessageError, encode
from tilewright.schedules.target import Target

pytestmark = [pytest.mark.workers, pytest.mark.timing]

TARGET = Target.host(threads=1)
QUICK = Policy(min_time_s=0.0, max_time_s=0.02, min_samples=6, max_samples=20, cutoff=None)


def matmul(m: int, n: int, k: int) -> Workload:
    g = Graph()
    a, b = g.input("a", (m, k)), g.input("b", (k, n))
    c = g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], reduce=(k,), reducer="sum")
    return canonical(g.nodes, c.name, g.types, ())[0]


W = matmul(24, 32, 16)
DEFAULT = ""
TILED = "split t0 i0 6\norder t0 i0.0 i1.0 i0.1\n"
TILED_4 = "split t0 i0 4\norder t0 i0.0 i1.0 i0.1\n"
ILLEGAL = "split t0 i9 4\n"
CANDIDATES = (DEFAULT, TILED, TILED_4, ILLEGAL)


def requests(schedules: Iterable[str], policy: Policy = QUICK, w: Workload = W) -> list[Request]:
    return [Request(w.text, s, TARGET.to_json(), policy) for s in schedules]


def fresh(folder: Path, workers: int = 1, policy: Policy = QUICK, memory_bytes: int | None = None) -> LocalRunner:
    return LocalRunner(TARGET, policy, workers, lock_file=folder / "lock", memory_bytes=memory_bytes)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The candidates' outcomes, measured once."""
    with fresh(tmp_path_factory.mktemp("measured")) as runner:
        return list(runner.measure(requests(CANDIDATES)))


class RunnerContract:
    """What every runner promises; a subclass gives a ``runner`` that knows the candidates."""

    def test_outcomes_come_in_order(self, runner: Runner) -> None:
        outcomes = list(runner.measure(requests(CANDIDATES)))
        assert [o.status for o in outcomes] == ["ok", "ok", "ok", "rejected"]

    def test_requests_are_taken_as_they_are_needed(self, runner: Runner) -> None:
        taken: list[str] = []

        def source() -> Iterator[Request]:
            for schedule, request in zip(CANDIDATES, requests(CANDIDATES), strict=True):
                taken.append(schedule)
                yield request

        outcomes = runner.measure(source())
        assert taken == []
        next(outcomes)
        assert taken[0] == DEFAULT
        assert len(list(outcomes)) == len(CANDIDATES) - 1
        assert taken == list(CANDIDATES)

    def test_an_outcome_is_complete(self, runner: Runner) -> None:
        good = runner.measure_one(requests([DEFAULT])[0])
        assert good.ok
        assert good.median_ns is not None
        assert good.median_ns > 0
        assert min(good.samples_ns) <= good.median_ns <= max(good.samples_ns)
        assert good.stop_reason in ("target_noise", "max_time", "max_samples")
        assert good.error is None
        assert good.max_error is not None
        assert good.max_error < 1e-4
        assert good.build_s > 0
        assert good.run_s > 0

    def test_a_failure_has_its_cause_and_no_time(self, runner: Runner) -> None:
        bad = runner.measure_one(requests([ILLEGAL])[0])
        assert bad.status == "rejected"
        assert bad.median_ns is None
        assert bad.samples_ns == ()
        assert bad.error is not None
        assert "i9" in bad.error

    def test_a_contest_has_an_outcome_for_each(self, runner: Runner) -> None:
        outcomes = runner.contest(requests([DEFAULT, ILLEGAL, TILED]))
        assert [o.ok for o in outcomes] == [True, False, True]
        aligned = [o for o in outcomes if o.stop_reason == "rounds"]
        assert len({len(o.samples_ns) for o in aligned}) <= 1

    def test_closing_twice_is_allowed(self, runner: Runner) -> None:
        runner.close()
        runner.close()

    def test_nothing_to_measure_is_nothing(self, runner: Runner) -> None:
        assert list(runner.measure([])) == []


class TestLocal(RunnerContract):
    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[LocalRunner]:
        with fresh(tmp_path) as runner:
            yield runner


class TestLocalWithBuilders(RunnerContract):
    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[LocalRunner]:
        with fresh(tmp_path, 2) as runner:
            yield runner


class TestReplay(RunnerContract):
    @pytest.fixture
    def runner(self, measured: list[Outcome]) -> ReplayRunner:
        return ReplayRunner({(W.hash, s): o for s, o in zip(CANDIDATES, measured, strict=True)})


# ---------------------------------------------------------------- replay


@dataclasses.dataclass(frozen=True)
class Stored:
    """A stored measurement, as a log has it."""

    workload_hash: str
    schedule: str
    status: str
    median_ns: float | None
    samples_ns: tuple[float, ...] = ()
    noise: float | None = 0.01
    stop_reason: str = ""
    error: str | None = None
    max_error: float | None = None
    build_s: float = 0.5
    run_s: float = 0.25


def test_replay_refuses_what_was_never_measured() -> None:
    runner = ReplayRunner.of([Stored(W.hash, DEFAULT, "ok", 5.0)])
    with pytest.raises(ReplayError, match=rf"1 candidates measured of workload {W.hash}; got\nsplit t0 i0 6"):
        runner.measure_one(requests([TILED])[0])


def test_replay_ignores_layout_and_adds_up_what_measuring_took() -> None:
    runner = ReplayRunner.of([Stored(W.hash, TILED, "ok", 7.0)])
    assert len(runner) == 1
    assert runner.measure_one(requests(["# a comment\n\n" + TILED.replace(" ", "  ")])[0]).median_ns == 7.0
    assert runner.spent_s == 0.75
    assert runner.candidates(W.hash) == [TILED.strip()]


def test_replay_takes_the_last_success_of_a_candidate() -> None:
    stored = [
        Stored(W.hash, TILED, "crash", None, error="x"),
        Stored(W.hash, TILED, "ok", 7.0),
        Stored(W.hash, TILED, "ok", 6.0),
        Stored(W.hash, TILED, "run_timeout", None, error="y"),
    ]
    assert ReplayRunner.of(stored).measure_one(requests([TILED])[0]).median_ns == 6.0


# ---------------------------------------------------------------- local


def test_the_same_code_is_a_duplicate_and_says_of_what(tmp_path: Path) -> None:
    same = "# another text\n" + DEFAULT
    with fresh(tmp_path) as runner:
        first, second = runner.measure(requests([DEFAULT, same]))
        assert first.ok
        assert second.status == "duplicate"
        assert f"a median of {first.median_ns:.0f} ns" in str(second.error)
        again = runner.measure_one(requests([same])[0], again=True)
        assert again.ok
        # code that was built for something else is no duplicate
        runner.compare(requests([TILED])[0], requests([TILED_4])[0], 6)
        assert runner.measure_one(requests([TILED])[0]).ok


def test_duplicates_among_candidates_built_side_by_side(tmp_path: Path) -> None:
    with fresh(tmp_path, 2) as runner:
        outcomes = list(runner.measure(requests([DEFAULT, "#\n", TILED, "#\n" + TILED, "# 2\n"])))
    assert [o.status for o in outcomes] == ["ok", "duplicate", "ok", "duplicate", "duplicate"]


def test_another_workload_is_no_duplicate(tmp_path: Path) -> None:
    other = matmul(24, 32, 17)
    with fresh(tmp_path) as runner:
        first = runner.measure_one(requests([DEFAULT])[0])
        second = runner.measure_one(requests([DEFAULT], w=other)[0])
        assert first.ok
        assert second.ok
        assert runner.best(W.hash) == first.median_ns
        assert runner.best(other.hash) == second.median_ns


def test_a_slow_candidate_is_abandoned(tmp_path: Path) -> None:
    policy = dataclasses.replace(QUICK, cutoff=2.0)
    with fresh(tmp_path, policy=policy) as runner:
        runner.set_best(W.hash, 0.001)
        outcome = runner.measure_one(requests([DEFAULT], policy)[0])
        assert (outcome.status, outcome.stop_reason, outcome.median_ns) == ("pruned_slow", "cutoff", None)
        assert "more than 2.0 times the best" in str(outcome.error)
        assert outcome.samples_ns
        assert runner.measure_one(requests([DEFAULT], policy)[0], again=True).ok


@pytest.mark.parametrize("cache", ["cold", "rotating"])
def test_every_cache_policy_measures(tmp_path: Path, cache: str) -> None:
    policy = dataclasses.replace(QUICK, cache=cache)
    with fresh(tmp_path, policy=policy) as runner:
        assert runner.preflight().ok
        assert runner.measure_one(runner.request(W.text, TILED)).ok


def test_several_threads(tmp_path: Path) -> None:
    target = TARGET.with_threads(2)
    with LocalRunner(target, QUICK, lock_file=tmp_path / "lock") as runner:
        assert runner.preflight().ok
        assert runner.measure_one(runner.request(W.text, "parallel t0 1\n")).ok


def test_compare_and_noise(tmp_path: Path) -> None:
    with fresh(tmp_path) as runner:
        found = runner.compare(requests([DEFAULT])[0], requests([TILED])[0], 6)
        assert found.low <= found.ratio <= found.high
        assert runner.noise_floor() >= 0
        with pytest.raises(DeviceError, match=r"got rejected: .*i9"):
            runner.compare(requests([DEFAULT])[0], requests([ILLEGAL])[0], 6)
        assert runner.measure_one(requests([DEFAULT])[0]).ok


def test_a_contest_is_paired(tmp_path: Path) -> None:
    with fresh(tmp_path) as runner:
        first, wrong, second = runner.contest(requests([DEFAULT, ILLEGAL, TILED]), rounds=8)
        assert first.stop_reason == second.stop_reason == "rounds"
        assert len(first.samples_ns) == len(second.samples_ns) == 8
        assert wrong.status == "rejected"
        found = paired(first.samples_ns, second.samples_ns)
        assert found.low <= found.ratio <= found.high
        assert len(runner.contest(requests([DEFAULT, TILED]), rounds=50, seconds=0.0)[0].samples_ns) == 6
        (alone,) = runner.contest(requests([DEFAULT]))
        assert alone.ok
        assert alone.stop_reason != "rounds"


def test_the_time_spent_waiting_for_the_device_is_not_the_candidate_s(tmp_path: Path) -> None:
    policy = dataclasses.replace(QUICK, run_timeout_s=1.0)
    held, wait = threading.Event(), 2.0

    def other_tuner() -> None:
        with device_lock(tmp_path / "lock"):
            held.set()
            time.sleep(wait)

    with fresh(tmp_path, policy=policy) as runner:
        runner.preflight()  # the worker is up
        thread = threading.Thread(target=other_tuner)
        thread.start()
        held.wait()
        outcome = runner.measure_one(requests([DEFAULT], policy)[0])
        thread.join()
    assert outcome.ok, outcome.error
    assert 0.5 < outcome.load["lock_wait_s"] <= wait + 0.5
    assert outcome.run_s < wait


def test_workers_are_recycled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "RECYCLE_AFTER", 2)
    with fresh(tmp_path) as runner:
        outcomes = list(runner.measure(requests([DEFAULT, TILED, TILED_4])))
        assert [o.status for o in outcomes] == ["ok"] * 3
        assert runner._pool.slots[0].generation == 2


def test_a_worker_that_ended_while_idle_is_replaced(tmp_path: Path) -> None:
    with fresh(tmp_path) as runner:
        assert runner.measure_one(requests([DEFAULT])[0]).ok
        process = runner._pool.slots[0].process
        assert process is not None
        process._process.kill()
        process._process.wait()
        assert runner.measure_one(requests([TILED])[0]).ok


def test_a_request_for_another_target_is_refused(tmp_path: Path) -> None:
    with fresh(tmp_path) as runner, pytest.raises(ValueError, match=r"target of a request: expected"):
        runner.measure_one(Request(W.text, "", TARGET.with_threads(3).to_json(), QUICK))


def test_a_closed_runner_refuses(tmp_path: Path) -> None:
    runner = fresh(tmp_path)
    runner.close()
    with pytest.raises(ValueError, match="got one that was closed"):
        runner.preflight()


def test_a_text_that_is_no_workload_is_rejected(tmp_path: Path) -> None:
    with fresh(tmp_path) as runner:
        outcome = runner.measure_one(Request("[]", "", TARGET.to_json(), QUICK))
        assert outcome.status == "rejected"
        assert "workload" in str(outcome.error)


def test_too_little_memory_is_the_candidate_s_failure(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", (1,))
    y = g.compute((1 << 30,), lambda i: x[0])  # 4 GiB, of 3
    w = canonical(g.nodes, y.name, g.types, ())[0]
    with fresh(tmp_path, memory_bytes=3 << 30) as runner:
        outcome = runner.measure_one(requests([DEFAULT], w=w)[0])
        assert outcome.status in ("crash", "run_error")
        assert "memory" in str(outcome.error).lower()
        assert runner.preflight().ok


# ---------------------------------------------------------------- plain data


def test_an_outcome_and_a_policy_survive_json(measured: list[Outcome]) -> None:
    for outcome in measured:
        assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome
    policy = Policy(cache="cold", cutoff=None, seed=7)
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_an_outcome_has_a_known_status_and_a_median_only_if_ok() -> None:
    assert len(set(STATUSES)) == 10
    with pytest.raises(ValueError, match="got 'fine'"):
        Outcome("fine")
    with pytest.raises(ValueError, match="expected a median; got None"):
        Outcome("ok")
    with pytest.raises(ValueError, match=r"expected no median; got 1\.0"):
        Outcome("crash", 1.0)
    with pytest.raises(ValueError, match="expected the fields"):
        Outcome.from_dict({"status": "crash", "colour": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [("cache", "warm"), ("max_time_s", 0), ("min_time_s", 9.0), ("min_samples", 0), ("max_samples", 1),
     ("cutoff", 1.0), ("tolerance", -1.0), ("seed", -1)],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"policy {field}: expected .* got {value!r}"):
        Policy.from_dict({field: value})


def test_only_what_changes_the_meaning_of_a_time_is_in_the_identity() -> None:
    assert (
        Policy().identity() == Policy(max_time_s=9, seed=4, cutoff=None).identity() == {"cache": "hot", "timer": "loop"}
    )
    assert Policy(tolerance=1e-3).identity() == {"cache": "hot", "timer": "loop", "tolerance": 1e-3}
    assert Policy().identity() != Policy(cache="cold").identity()
    with pytest.raises(ValueError, match="got colour"):
        Policy.from_dict({"colour": 1})


def test_messages_arrive_whole_however_they_are_cut() -> None:
    decoder = Decoder()
    sent: list[dict[str, object]] = [{"a": 1}, {"b": "x" * 1000}, {}]
    got = []
    for byte in b"".join(encode(m) for m in sent):
        decoder.feed(bytes([byte]))
        message = decoder.next()
        if message is not None:
            got.append(message)
    assert got == sent


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((LARGEST + 1).to_bytes(4, "little"), "at most"),
        (b"\x03\x00\x00\x00abc", "expected JSON; got b'abc'"),
        (b"\x02\x00\x00\x00[]", "expected a JSON object"),
    ],
)
def test_nonsense_is_no_message(data: bytes, expected: str) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(MessageError, match=expected):
        decoder.next()
