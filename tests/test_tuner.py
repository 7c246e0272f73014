"""The tuner: what it measures, stores, resumes and reports. A fake runner answers with times computed from the schedule, so nothing
here depends on a clock."""

from __future__ import annotations

import functools
import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tilewright.api import compile as compile_model
from tilewright.api import records_lookup
from tilewright.compiler import MissError
from tilewright.confirm import LARGEST_MARGIN, confirm, expected_margin
from tilewright.graph import ops
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.measure import LocalRunner, Outcome, Policy, Request
from tilewright.schedules.target import Target
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.space import space
from tilewright.search_space.strategies import STRATEGIES, make_strategy
from tilewright.search_space.strategy import SearchConfig
from tilewright.session import Session
from tilewright.tasks import Task, default_for, extract
from tilewright.tuner import Budget, TuneError, tune
from tilewright.tuning_logs import Hit, Store

TARGET = Target.host(threads=1)
FloatArray = npt.NDArray[np.float64]


def model() -> Graph:
    """Two equal matmuls (one task of weight two) and a softmax."""
    rng = np.random.default_rng(0)
    g = Graph()
    x = g.input("x", (12, 24))
    for k in range(2):
        x = ops.matmul(x, g.constant(rng.standard_normal((24, 24)).astype(np.float32) / 5, f"w{k}"))
    g.output(ops.softmax(x, -1))
    return g


class FakeRunner:
    """A device whose times are a hash of the schedule; some schedules fail in each way there is."""

    def __init__(self, fail: float = 0.0, stop_after: int | None = None) -> None:
        self.fail = fail
        self.stop_after = stop_after
        self.seen: list[Request] = []

    def measure(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        for r in requests:
            yield self.measure_one(r)

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        if self.stop_after is not None and len(self.seen) >= self.stop_after:
            raise KeyboardInterrupt
        self.seen.append(request)
        digest = hashlib.sha256((request.workload + request.schedule).encode()).digest()
        if digest[0] < 256 * self.fail:
            kind = ("crash", "wrong_result", "run_timeout", "compile_error")[digest[1] % 4]
            return Outcome(kind, error=f"injected {kind}")
        ns = 1000.0 + 10 * digest[2]
        return Outcome("ok", ns, (ns,) * 8, 0.01, "target_noise", build_s=0.01, run_s=0.01)

    def contest(self, requests: Sequence[Request], *, seconds: float = 1.0) -> list[Outcome]:
        outcomes = [self.measure_one(r, again=True) for r in requests]
        return [replace(o, stop_reason="rounds") if o.ok else o for o in outcomes]

    def close(self) -> None:
        """Nothing to free."""


class NoisyRunner(FakeRunner):
    """A device with known noise. Times of different sittings differ by ``drift`` (standard deviation of the logarithm), builds
    of one kernel by ``placement`` for as long as they exist, rounds by ``noise``. ``true`` gives the time of a schedule."""

    def __init__(self, true: Callable[[Request], float], seed: int, drift: float, placement: float) -> None:
        super().__init__()
        self.true = true
        self.rng = np.random.default_rng(seed)
        self.drift, self.placement = drift, placement

    def sample(self, request: Request, rounds: FloatArray) -> Outcome:
        self.seen.append(request)
        ns = self.true(request) * np.exp(self.rng.normal(0, self.placement)) * rounds
        ns = ns * np.exp(self.rng.normal(0, 0.02, len(rounds)))
        return Outcome("ok", float(np.median(ns)), tuple(float(x) for x in ns), 0.01, "rounds")

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        outcome = self.sample(request, np.full(12, np.exp(self.rng.normal(0, self.drift))))
        return replace(outcome, stop_reason="target_noise")

    def contest(self, requests: Sequence[Request], *, seconds: float = 1.0) -> list[Outcome]:
        rounds = np.exp(self.rng.normal(0, self.drift, 20))  # each round at another speed, the same for all
        return [self.sample(r, rounds) for r in requests]


@functools.cache
def some_candidates() -> tuple[Task, list[Candidate]]:
    """A task and 30 candidates besides its default."""
    (task,) = [t for t in extract(model(), TARGET) if t.weight == 2]
    strategy = make_strategy("random", space(task.workload, TARGET), lambda s, rows: np.ones(len(rows)))
    default = default_for(task.workload, TARGET)
    return task, [c for c in strategy.ask(31) if c.key != default.key][:30]


def winners(
    true: Callable[[Request], float], runs: int, drift: float, placement: float, noise: float = 0.0
) -> list[float]:
    """True times of what the look-up answers after each of some runs with a noisy device, the default's being 1000. Each run
    measures the default and 30 candidates once, and confirms."""
    task, candidates = some_candidates()
    found = []
    for seed in range(runs):
        runner = NoisyRunner(true, seed, drift, placement)
        with Store(":memory:") as store:
            session = Session([task], TARGET, store, Budget(None, 60), "random", seed, Policy(), None)
            session.noise = noise
            (search,) = session.searches
            session.measure(runner, [(search, search.default)], default=True)
            session.measure(runner, [(search, c) for c in candidates])
            confirm(session, runner)
            best = store.best(task.workload.hash, TARGET.fingerprint(), Policy().identity())
            assert isinstance(best, Hit)
            found.append(true(Request(task.workload.text, best.record.schedule, "")))
    return found


def share(request: Request) -> float:
    """A number in [0, 1) that belongs to a schedule."""
    return int.from_bytes(hashlib.sha256(request.schedule.encode()).digest()[:4], "big") / 2**32


def default_text() -> str:
    return str(default_for(extract(model(), TARGET)[0].workload, TARGET).schedule)


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "noise"), [(0.01, 0.0), (0.03, 0.08)])
def test_a_lucky_sample_does_not_beat_the_default(placement: float, noise: float) -> None:
    """All others are slower by 1 to 6 %, and sittings differ by 4 % (so that some look faster): the default stays in 19 of 20
    runs, also if builds of one kernel differ by 3 % and the A/A test says so."""
    default = default_text()
    found = winners(lambda r: 1000.0 if r.schedule == default else 1010.0 + 50 * share(r), 30, 0.03, placement, noise)
    assert sum(ns > 1000 for ns in found) <= 2


def test_the_margin_follows_the_contests_of_a_run() -> None:
    """At first the A/A test says how far the default may be from itself, up to a limit; with more contests, these do."""
    assert expected_margin(0.0, [0.02]) == 0.0
    assert expected_margin(0.04, []) == pytest.approx(0.04)
    assert expected_margin(0.5, []) == pytest.approx(LARGEST_MARGIN)
    calm = [expected_margin(0.5, [0.005] * n) for n in (0, 1, 3, 30)]
    assert calm == sorted(calm, reverse=True)
    assert calm[-1] < 0.02
    assert expected_margin(0.04, [0.2] * 9) == pytest.approx(0.04)


@pytest.mark.slow
def test_what_is_really_faster_wins() -> None:
    """A tenth of the candidates is 10 % faster than the default, the others are slower: one of the fast ones wins."""
    default = default_text()

    fast = {str(c.schedule) for c in some_candidates()[1][::10]}
    found = winners(
        lambda r: 1000.0 if r.schedule == default else 900.0 if r.schedule in fast else 1100.0, 40, 0.03, 0.01
    )
    assert sum(ns == 900 for ns in found) >= 38


class Unsteady(NoisyRunner):
    """A device whose cores change their speed by 1.4 from one sitting to the next, and keep it within one."""

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        slow = 1.4 if self.rng.random() < 0.5 else 1.0
        return replace(self.sample(request, np.full(12, slow)), stop_reason="target_noise")


@pytest.mark.parametrize("faster", [False, True])
def test_cores_that_change_their_speed_choose_no_winner(faster: bool) -> None:
    """Sittings differ by far more than candidates do, and no A/A test says so. What is slower side by side never wins, and
    what is faster is found, although it may look slower than the default."""
    default = default_text()
    task, candidates = some_candidates()
    fast = {str(c.schedule) for c in candidates[:3]} if faster else set()

    def true(request: Request) -> float:
        return 1000.0 if request.schedule == default else 800.0 if request.schedule in fast else 1250.0

    found = []
    for seed in range(20):
        runner = Unsteady(true, seed, 0.0, 0.005)
        with Store(":memory:") as store:
            session = Session([task], TARGET, store, Budget(None, 60), "random", seed, Policy(), None)
            (search,) = session.searches
            session.measure(runner, [(search, search.default)], default=True)
            session.measure(runner, [(search, c) for c in candidates[:8]])
            confirm(session, runner)
            best = store.best(task.workload.hash, TARGET.fingerprint(), Policy().identity())
            assert isinstance(best, Hit)
            assert best.contested
            found.append(true(Request(task.workload.text, best.record.schedule, "")))
    assert found == [800.0 if faster else 1000.0] * 20


@pytest.mark.parametrize("trials", [2, 3, 4, 5, 6, 7, 9, 12, 16, 25, 40])
def test_a_budget_of_any_size_holds_the_contests_it_owes(trials: int) -> None:
    """However few the measurements, no more are taken, and no task is left with a candidate that looks faster and was not
    compared."""
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, trials), runner=FakeRunner())
        assert result.trials <= trials
        for t in result.tasks:
            best = store.best(t.task.workload.hash, TARGET.fingerprint(), Policy().identity())
            assert isinstance(best, Hit), best
            assert best.settled or best.is_default
            assert t.kept == ""
        assert trials < 25 or result.best_ns < result.default_ns


@pytest.mark.timing
def test_a_budget_of_seconds_keeps_time_for_contests() -> None:
    """A search that took all its time would be for nothing."""

    class Slow(FakeRunner):
        def measure_one(self, request: Request, again: bool = False) -> Outcome:
            time.sleep(0.01)
            return super().measure_one(request, again)

    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(0.6), runner=Slow())
        assert result.trials > 8
        compared = {r.workload_hash for r in store.records() if r.compared}
        assert compared == {t.task.workload.hash for t in result.tasks if t.measured > 2}
        assert all(t.kept == "" for t in result.tasks)


def test_an_interrupted_run_leaves_the_default(tmp_path: Path) -> None:
    """What was measured until then is kept, but nothing was compared with the default: it stays, and both ends say so."""
    g = model()
    with Store(":memory:") as store:
        result = tune(g, TARGET, store, Budget(None, 60), runner=FakeRunner(stop_after=30))
        assert result.interrupted
        assert [t.best_ns for t in result.tasks] == [t.default_ns for t in result.tasks]
        assert any("no contest was held" in t.kept for t in result.tasks)
        with pytest.raises(MissError, match=r"no contest was held.*tune again for a contest"):
            compile_model(g, TARGET, store, on_miss="error")
        again = tune(g, TARGET, store, Budget(None, 12), runner=FakeRunner())
        assert again.best_ns < again.default_ns
        assert all(t.kept == "" for t in again.tasks)
        compile_model(g, TARGET, store, on_miss="error")


def test_default_is_candidate_zero_and_result_is_no_worse() -> None:
    """Every task gets its default measured first; the best is never slower than it."""
    runner = FakeRunner()
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 40), runner=runner)
        tasks = extract(model(), TARGET)
        assert [t.weight for t in tasks] == [2, 1]
        assert [r.schedule for r in runner.seen[:2]] == [str(default_for(t.workload, TARGET).schedule) for t in tasks]
        assert all(t.best_ns <= t.default_ns for t in result.tasks)
        assert result.trials == len(runner.seen) == store.count()
        defaults = [r for r in store.records() if r.is_default]
        assert {r.workload_hash for r in defaults} == {t.workload.hash for t in tasks}


def test_failures_never_win_and_never_stop_a_run() -> None:
    """Candidates that fail in any way are counted outcomes; what wins was measured ok."""
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 80), runner=FakeRunner(fail=0.3))
        assert sum(sum(t.failures.values()) for t in result.tasks) >= 8
        for t in result.tasks:
            best = store.best(t.task.workload.hash, TARGET.fingerprint(), Policy().identity())
            assert isinstance(best, Hit)
            assert best.record.status == "ok"
            assert np.isfinite(t.best_ns)


def test_nothing_valid_is_an_error_with_its_cause() -> None:
    """Zero valid candidates: the first error is shown in full."""
    with Store(":memory:") as store, pytest.raises(TuneError, match="injected"):
        tune(model(), TARGET, store, Budget(None, 30), runner=FakeRunner(fail=1.1))


def test_interrupt_keeps_everything_and_resume_costs_no_trial_twice() -> None:
    """Ctrl-C returns what was measured; the same call goes on and measures no candidate again."""
    with Store(":memory:") as store:
        first = FakeRunner(stop_after=17)
        result = tune(model(), TARGET, store, Budget(None, 60), runner=first)
        assert result.interrupted
        assert store.count() == result.trials == 17
        second = FakeRunner()
        again = tune(model(), TARGET, store, Budget(None, 40), runner=second)
        assert sum(t.known for t in again.tasks) >= 17
        searched = [r.strategy for r in store.records()].index("ranked")
        assert searched >= 0
        before = {(r.workload, r.schedule) for r in first.seen}
        repeated = [r for r in second.seen if (r.workload, r.schedule) in before]
        confirmed = [r for r in store.records(run_id=again.run_id) if r.strategy == "confirm"]
        assert len(repeated) <= len(confirmed)


def test_a_budget_smaller_than_a_measurement() -> None:
    """The defaults are measured, whatever is left; nothing else is."""
    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(1e-9, None), runner=FakeRunner())
        assert (result.trials, result.stopped, store.count()) == (2, "budget", 2)
        assert result.best_ns == result.default_ns
    with Store(":memory:") as store:
        assert tune(model(), TARGET, store, Budget(None, 1), runner=FakeRunner()).trials == 2


def test_an_interrupt_while_confirming_loses_only_the_contest() -> None:
    """What was measured stands, and the result says that it was interrupted."""

    class Interrupted(FakeRunner):
        def contest(self, requests: Sequence[Request], *, seconds: float = 1.0) -> list[Outcome]:
            raise KeyboardInterrupt

    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 40), runner=Interrupted())
        assert result.interrupted
        assert result.trials == store.count() > 20
        assert all(r.strategy != "confirm" for r in store.records())
        assert result.best_ns <= result.default_ns
        again = tune(model(), TARGET, store, Budget(None, 12), runner=FakeRunner())
        assert not again.interrupted
        assert any(r.compared for r in store.records())


def test_a_default_that_does_not_build() -> None:
    """It is an outcome like any other: the best of the others wins, and the leaders are compared with each other."""
    defaults = {str(default_for(t.workload, TARGET).schedule) for t in extract(model(), TARGET)}

    class Failing(FakeRunner):
        def measure_one(self, request: Request, again: bool = False) -> Outcome:
            outcome = super().measure_one(request, again)
            return Outcome("compile_error", error="no") if request.schedule in defaults else outcome

    with Store(":memory:") as store:
        result = tune(model(), TARGET, store, Budget(None, 40), runner=Failing())
        assert not result.interrupted
        for t in result.tasks:
            assert t.default_ns == float("inf")
            assert np.isfinite(t.best_ns)
            assert t.best_schedule not in defaults
        assert any(r.strategy == "confirm" for r in store.records())
        assert not any(r.compared for r in store.records())


def test_records_apply() -> None:
    """A compile after tuning covers every kernel from records and computes the same."""
    g = model()
    with Store(":memory:") as store:
        tune(g, TARGET, store, Budget(None, 30), runner=FakeRunner())
        executable = compile_model(g, TARGET, store, on_miss="error")
        assert executable.compiled.coverage() == (3, 3)
        x = np.random.default_rng(3).standard_normal((12, 24)).astype(np.float32)
        np.testing.assert_allclose(executable(x)[0], evaluate(g, {"x": x})[0].astype(np.float64), rtol=1e-4, atol=1e-6)
        other = records_lookup(store, TARGET.with_threads(2))(extract(g, TARGET)[0].workload)
        assert isinstance(other, str)
        assert "threads" in other


def test_a_record_belongs_to_the_candidate_of_its_schedule() -> None:
    """After a template changed, a record of the same names says nothing of the candidate that has them now; one of other names
    is that of the candidate with its schedule."""
    task, candidates = some_candidates()
    here, other = candidates[0], next(c for c in candidates if c.sketch.name != candidates[0].sketch.name)
    with Store(":memory:") as store:
        session = Session([task], TARGET, store, Budget(None, 60), "random", 0, Policy(), None)
        (search,) = session.searches
        session.keep(search, [(c, Outcome("ok", 10.0, (10.0,) * 8, 0.01)) for c in (here, other)], "random")
        changed, renamed = list(store.records())
    changed = replace(changed, schedule=changed.schedule + "\nunroll t0 r0.0")  # what its template gave then
    renamed = replace(renamed, sketch=here.sketch.name + " of old")
    assert search.candidate(changed) is None
    found = search.candidate(renamed)
    assert found is not None
    assert found.key == other.key
    with Store(":memory:") as store:
        store.add_many([changed, renamed])
        session = Session([task], TARGET, store, Budget(None, 60), "random", 0, Policy(), None)
        session.recall()
        (search,) = session.searches
        assert session.learner.rows == 1
        assert session.told_again(search, other)
        assert not session.told_again(search, here)


def test_old_times_do_not_keep_a_candidate_from_being_proposed() -> None:
    """The same over a whole run: the records of another template's candidates, by the same names, keep none from being
    measured; their own records do."""
    task, _ = some_candidates()

    def run(store: Store) -> set[str]:
        runner = FakeRunner()
        tune([task], TARGET, store, Budget(None, 40), runner=runner, strategy="exhaustive")
        confirmed = {r.schedule for r in store.records() if r.strategy == "confirm" or r.is_default}
        return {r.schedule for r in runner.seen} - confirmed

    with Store(":memory:") as store:
        first = run(store)
        records = list(store.records())
    assert len(first) > 20
    with Store(":memory:") as store:
        store.add_many(replace(r, schedule=r.schedule + "\nunroll t0 r0.9", compared={}) for r in records)
        assert run(store) == first
    with Store(":memory:") as store:
        store.add_many(records)
        assert run(store) & first == set()


def test_a_winner_that_does_not_apply_any_more_is_put_out_of_the_way() -> None:
    """Else it would stay the best for ever: every other would have to beat it, and no compile could use it."""
    task, candidates = some_candidates()
    with Store(":memory:") as store:
        session = Session([task], TARGET, store, Budget(None, 60), "random", 0, Policy(), None)
        (search,) = session.searches
        session.keep(search, [(candidates[0], Outcome("ok", 1.0, (1.0,) * 8, 0.01))], "random")
        (record,) = list(store.records())
        old = replace(record, schedule="vectorize t0 i7", params={})
        versus = {old.candidate: {"ratio": 0.5, "low": 0.5, "high": 0.5, "margin": 0.0}}
        session.keep(search, [(search.default, Outcome("ok", 2.0, (2.0,) * 8, 0.01))], "confirm", versus)
        store.add(old)
        best = session.answer(search)
        assert isinstance(best, Hit)
        assert best.record.schedule == "vectorize t0 i7"
        result = tune([task], TARGET, store, Budget(None, 12), runner=FakeRunner())
        best = session.answer(search)
        assert isinstance(best, Hit)
        assert best.record.schedule == result.tasks[0].best_schedule != "vectorize t0 i7"
        (gone,) = store.records(status="rejected")
        assert "does not apply to this version" in (gone.error or "")


def test_a_leader_that_left_the_space_may_win_all_the_same() -> None:
    """A schedule that no sketch gives any more, but which applies: it looks faster than the default, so it is compared."""
    task, candidates = some_candidates()
    with Store(":memory:") as store:
        session = Session([task], TARGET, store, Budget(None, 60), "random", 0, Policy(), None)
        (search,) = session.searches
        session.keep(search, [(candidates[0], Outcome("ok", 1.0, (1.0,) * 8, 0.01))], "random")
        (record,) = list(store.records())
    old = replace(record, sketch="of old", params={"other": 3})
    default = default_text()
    times = NoisyRunner(
        lambda r: 1000.0 if r.schedule == default else 500.0 if r.schedule == old.schedule else 2000.0, 0, 0, 0
    )
    with Store(":memory:") as store:
        store.add(old)
        result = tune([task], TARGET, store, Budget(None, 6), runner=times)
        assert result.tasks[0].best_schedule == old.schedule
        assert result.tasks[0].default_ns / result.tasks[0].best_ns == pytest.approx(2, rel=0.05)


def test_a_loosely_checked_run_answers_no_strict_compile() -> None:
    """From `tune` to `compile`: the tolerance of both policies decides. The other way round the records are used, and a looser run
    starts from them."""
    g, loose, strict = model(), Policy(tolerance=0.01), Policy(tolerance=1e-5)
    with Store(":memory:") as store:
        tune(g, TARGET, store, Budget(None, 20), runner=FakeRunner(), policy=loose)
        compile_model(g, TARGET, store, on_miss="error", policy=loose)
        for policy in (Policy(), strict):
            with pytest.raises(MissError, match=r"policy.tolerance: asked (0.0001|1e-05), stored 0.01"):
                compile_model(g, TARGET, store, on_miss="error", policy=policy)
    with Store(":memory:") as store:
        tune(g, TARGET, store, Budget(None, 20), runner=FakeRunner(), policy=strict)
        for policy in (strict, Policy(), loose):
            compile_model(g, TARGET, store, on_miss="error", policy=policy)
        again = tune(g, TARGET, store, Budget(None, 4), runner=FakeRunner(), policy=loose)
        assert sum(t.known for t in again.tasks) > 10


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_contract(name: str) -> None:
    """Proposals are legal, never repeated, and the same for the same seed; an empty answer means used up."""
    from tilewright.learning import Learner

    w = extract(model(), TARGET)[0].workload
    of = space(w, TARGET)
    learner = Learner()
    runs = []
    for _ in range(2):
        strategy = make_strategy(name, of, learner.predict_ns, SearchConfig(seed=7, points_per_space=4000))
        keys = []
        for round_ in range(3):
            for c in strategy.ask(6):
                row = np.asarray([c.values], dtype=np.int64).reshape(1, len(c.values))
                assert all(bool(k.holds(c.sketch.columns(row))[0]) for k in c.sketch.constraints)
                keys.append(c.key)
                strategy.tell(c, float("inf") if len(keys) % 5 == 0 else 100.0 + len(keys) * (round_ + 1))
        assert len(set(keys)) == len(keys) == 18
        runs.append(keys)
    assert runs[0] == runs[1]


def test_unknown_strategy() -> None:
    """An unknown strategy is refused with the known names."""
    with Store(":memory:") as store, pytest.raises(ValueError, match="expected one of ranked"):
        tune(model(), TARGET, store, Budget(None, 10), strategy="magic", runner=FakeRunner())
    with pytest.raises(ValueError, match="expected seconds or trials"):
        Budget(None, None)


@pytest.mark.workers
@pytest.mark.timing
def test_real_run() -> None:
    """The whole thing once, on this machine: measured, stored, applied, equal to the oracle."""
    g = model()
    with Store(":memory:") as store, LocalRunner(TARGET) as runner:
        result = tune(g, TARGET, store, Budget(None, 12), runner=runner)
        records = list(store.records())
        assert len(records) == result.trials <= 12
        for task in result.tasks:
            best = store.best(task.task.workload.hash, TARGET.fingerprint(), Policy().identity())
            assert isinstance(best, Hit), best
            assert best.settled or best.is_default
        x = np.random.default_rng(3).standard_normal((12, 24)).astype(np.float32)
        executable = compile_model(g, TARGET, store, on_miss="error")
        np.testing.assert_allclose(executable(x)[0], evaluate(g, {"x": x})[0].astype(np.float64), rtol=1e-4, atol=1e-6)


_CHILD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_tuner import FakeRunner, TARGET, model
from tilewright.tuner import Budget, tune
from tilewright.tuning_logs import Store

class Slow(FakeRunner):
    def measure_one(self, request, again=False):
        time.sleep(0.004)
        return super().measure_one(request, again)

def told(event):
    print(event.trials, flush=True)

with Store(sys.argv[1]) as store:
    tune(model(), TARGET, store, Budget(None, 5000), runner=Slow(), listener=told)
"""


@pytest.mark.workers
def test_kill_at_random_moments_loses_nothing(tmp_path: Path) -> None:
    """kill -9 of a tuning run, 20 times: the store opens, every finished measurement is there, the rerun resumes."""
    path = tmp_path / "records.sqlite"
    rng = np.random.default_rng(11)
    total = 0
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()  # the first finished measurement
        time.sleep(float(rng.uniform(0.0, 0.25)))
        child.send_signal(signal.SIGKILL)
        finished = 1 + len(child.stdout.read().split())
        child.wait()
        child.stdout.close()
        with Store(path) as store:
            count = store.count()
            assert count >= total + finished
            assert count <= total + finished + 1
            total = count
            ids = [
                (r.workload_hash, r.candidate) for r in store.records() if r.strategy != "confirm" and not r.is_default
            ]
            assert len(ids) == len(set(ids))
