"""Rankers: one contract for every implementation."""

import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from made_up_data import LEARNED, NAMES, RANKERS, SCHEMA, kind_of, space
from tilewright.cost_model import (
    FAILED,
    AbstractRanker,
    Dataset,
    FeatureError,
    HistGradientRanker,
    PriorOnly,
    XGBoostRanker,
    default_ranker,
    evaluate,
    pairwise_accuracy,
)

pytestmark = pytest.mark.workers


@pytest.fixture(params=RANKERS, ids=kind_of)
def make_ranker(request: pytest.FixtureRequest) -> Callable[[], AbstractRanker]:
    make: Callable[[], AbstractRanker] = request.param
    return make


@pytest.fixture(params=LEARNED, ids=kind_of)
def make_learned(request: pytest.FixtureRequest) -> Callable[..., AbstractRanker]:
    make: Callable[..., AbstractRanker] = request.param
    return make


def test_untrained_is_the_prior(make_ranker: Callable[[], AbstractRanker]) -> None:
    data = space(0, 1, 20)
    ranker = make_ranker()
    np.testing.assert_allclose(ranker.predict_ns(data.x, data.prior_ns), data.prior_ns)
    mean, spread = ranker.predict_with_spread(data.x, data.prior_ns)
    np.testing.assert_allclose(mean, np.log(data.prior_ns))
    assert (spread > 0).all()
    assert ranker.summary() is None


def test_fit_returns_a_new_value(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(0, 3, 40)
    before = make_learned()
    after = before.fit(data)
    assert before.summary() is None
    summary = after.summary()
    assert summary is not None
    assert (summary.rows, summary.failed, summary.workloads) == (120, int((~data.ok).sum()), 3)
    assert summary.schema_digest == SCHEMA.digest


def test_answers_have_one_value_a_candidate(make_ranker: Callable[[], AbstractRanker]) -> None:
    data = space(0, 3, 40)
    ranker = make_ranker().fit(data)
    for rows in (0, 1, 7):
        x, prior = data.x[:rows], data.prior_ns[:rows]
        predicted = ranker.predict_ns(x, prior)
        mean, spread = ranker.predict_with_spread(x, prior)
        assert predicted.shape == mean.shape == spread.shape == (rows,)
        assert predicted.dtype == mean.dtype == spread.dtype == np.float64
        np.testing.assert_array_equal(predicted, np.exp(mean))
        np.testing.assert_array_equal(predicted, ranker.predict_ns(data.x, data.prior_ns)[:rows])


def test_same_seed_same_predictions(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(1, 4, 60)
    first, again, other = (make_learned(seed=seed).fit(data).predict_ns(data.x, data.prior_ns) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("seed", range(5))
def test_learned_beats_the_prior_on_held_out_workloads(seed: int, make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(seed)
    learned, prior = evaluate(data, make_learned, 4).mean, evaluate(data, PriorOnly, 4).mean
    assert learned.pairwise > 0.85 > prior.pairwise
    assert learned.top1 > max(0.85, prior.top1)
    assert learned.top5 >= max(0.95, prior.top5)
    assert learned.recall10 > prior.recall10
    assert learned.regret10 < 0.1


def test_failures_are_ranked_last(make_learned: Callable[..., AbstractRanker]) -> None:
    train, test = next(space(2, rows=150).folds(4))
    predicted = make_learned().fit(train).predict_ns(test.x, test.prior_ns)
    assert np.isfinite(predicted).all()
    for workload in test.workloads():
        rows = test.group == workload
        order = np.argsort(predicted[rows])
        ok = test.ok[rows][order]
        # The failing corner of this space is sharp, so hardly any failure may come before a success.
        assert ok[: int(ok.sum())].mean() > 0.97
        assert ok[:20].all()


def test_failures_are_last_even_if_the_prior_loves_them(make_learned: Callable[..., AbstractRanker]) -> None:
    train, test = next(space(2, rows=150).folds(4))
    flattered = np.where(test.ok, test.prior_ns, 1e-5 * test.prior_ns)
    predicted = make_learned().fit(train).predict_ns(test.x, flattered)
    accuracy = [
        pairwise_accuracy(predicted[rows], np.where(test.ok[rows], 1.0, FAILED))
        for rows in (test.group == workload for workload in test.workloads())
    ]
    assert min(accuracy) > 0.97


def test_failures_bend_no_time(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(2, rows=150)
    everything, only_ok = make_learned().fit(data), make_learned().fit(data.take(data.ok))
    likely = data.take(data.ok)
    ratio = everything.predict_ns(likely.x, likely.prior_ns) / only_ok.predict_ns(likely.x, likely.prior_ns)
    assert float(np.median(ratio)) == pytest.approx(1.0, abs=0.05)


def test_a_factor_common_to_a_workload_changes_no_order(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(4, 3, 80)
    scaled = np.where(data.group == "workload-1", 1024 * data.time_ns, data.time_ns)
    shifted = Dataset(data.x, data.prior_ns, scaled, data.group, data.schema_digest)
    plain, other = (make_learned().fit(rows).predict_ns(data.x, data.prior_ns) for rows in (data, shifted))
    assert pairwise_accuracy(other, plain) > 0.99


@pytest.mark.parametrize("ok", [0, 1, 7])
def test_few_successes_only_scale_the_prior(ok: int, make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(0, 1, 60)
    few = data.take(np.flatnonzero(data.ok)[:ok])
    predicted = make_learned().fit(few).predict_ns(data.x, data.prior_ns)
    ratio = predicted / data.prior_ns
    expected = float(np.median(few.time_ns / few.prior_ns)) if ok else 1.0
    np.testing.assert_allclose(ratio, expected)


def test_only_failures_teach_nothing_wrong(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(0, 1, 60)
    failed = data.take(~data.ok)
    ranker = make_learned().fit(failed)
    np.testing.assert_allclose(ranker.predict_ns(data.x, data.prior_ns), data.prior_ns)


def test_spread_is_larger_where_nothing_was_seen(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(5, 6, 120)
    known = data.x[:, SCHEMA.index("vector_axis")] < 4
    ranker = make_learned().fit(data.take(known))
    spread = ranker.predict_with_spread(data.x, data.prior_ns)[1]
    assert (spread >= 0).all()
    assert spread[~known].mean() > spread[known].mean()


def test_rankers_refuse_mismatched_arrays(make_learned: Callable[..., AbstractRanker]) -> None:
    data = space(0, 2, 30)
    ranker = make_learned().fit(data)
    with pytest.raises(FeatureError, match="expected 8 features as in training, got 5"):
        ranker.predict_ns(data.x[:, :5], data.prior_ns)
    with pytest.raises(FeatureError, match=r"expected features \(N, F\) and priors \(N,\), got \(60, 8\) and \(3,\)"):
        ranker.predict_ns(data.x, data.prior_ns[:3])
    with pytest.raises(FeatureError, match="mask illegal rows first"):
        ranker.predict_ns(data.x, np.full(60, np.inf))


def test_default_ranker_without_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_ranker(seed=5) == XGBoostRanker(seed=5)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert default_ranker(n_jobs=2) == HistGradientRanker(n_jobs=2)


@pytest.mark.timing
def test_a_whole_space_is_ranked_at_once() -> None:
    data = space(0, 5, 100)
    ranker = XGBoostRanker().fit(data)
    many = np.resize(data.x, (100_000, len(NAMES))), np.resize(data.prior_ns, 100_000)
    start = time.perf_counter()
    assert ranker.predict_ns(*many).shape == (100_000,)
    assert time.perf_counter() - start < 5.0  # about 0.2 s on an idle core; the margin is for busy ones
