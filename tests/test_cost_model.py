"""The learned cost model: data sets, rankers, rank metrics and model files."""

import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.cost_model import (
    FAILED,
    AbstractRanker,
    Dataset,
    DatasetError,
    Feature,
    FeatureError,
    FeatureSchema,
    HistGradientRanker,
    MetricError,
    ModelFileError,
    PriorOnly,
    XGBoostRanker,
    calibration,
    default_ranker,
    evaluate,
    load_model,
    model_info,
    pairwise_accuracy,
    recall_at_k,
    regret_after,
    save_model,
    top_k_score,
)

NAMES = (
    "register_tile",
    "vector_axis",
    "parallel_axis",
    "unroll",
    "working_set",
    "size",
    "log_prior",
    "noise",
)
SCHEMA = FeatureSchema(1, tuple(Feature(name, "log2", "made up for tests") for name in NAMES))
TARGET = {"isa": "avx2", "cores": 8}
LEARNED: tuple[type[XGBoostRanker | HistGradientRanker], ...] = (XGBoostRanker, HistGradientRanker)
Vector = NDArray[np.float64]


def space(seed: int, workloads: int = 8, rows: int = 100) -> Dataset:
    """The prior overlooks spills, vectorisation and idle cores; candidates with large tiles fail."""
    rng = np.random.default_rng(seed)
    data = Dataset.empty(SCHEMA.digest, len(NAMES))
    for number in range(workloads):
        size, bias = rng.uniform(4, 10), rng.normal(0, 0.5)
        tile, vector, parallel, unroll, cache = rng.integers(0, 6, (5, rows)).astype(float)
        prior = np.exp(10 + size + 0.3 * np.abs(cache + size - 9) + 0.2 * np.abs(parallel - 3))
        factor = 0.5 * np.maximum(tile - 3, 0) - 0.25 * vector * (unroll < 4) + 0.4 * (parallel > size - 5)
        times = prior * np.exp(bias + factor + rng.normal(0, 0.05, rows))
        times[tile + unroll > 7] = FAILED
        x = np.stack(
            [
                tile,
                vector,
                parallel,
                unroll,
                cache,
                np.full(rows, size),
                np.log(prior),
                rng.normal(size=rows),
            ],
            axis=1,
        )
        data = data.append(x, prior, times, f"workload-{number}")
    return data


def array(*values: float) -> Vector:
    return np.array(values, np.float64)


# --- schema


def test_schema_names_digest_and_index() -> None:
    assert SCHEMA.index("unroll") == 3
    assert SCHEMA.names() == NAMES
    reworded = FeatureSchema(1, tuple(Feature(name, "1", "other words") for name in NAMES))
    assert reworded.digest == SCHEMA.digest
    assert FeatureSchema(2, SCHEMA.features).digest != SCHEMA.digest
    assert FeatureSchema(1, SCHEMA.features[::-1]).digest != SCHEMA.digest


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0]], "got list"),
        (np.zeros((3, 7), np.float32), r"expected an \(N, 8\) float32 .* got shape \(3, 7\)"),
        (np.zeros(8, np.float32), r"got shape \(8,\)"),
        (np.zeros((3, 8)), r"got dtype float64; convert it with"),
        (np.full((2, 8), np.nan, np.float32), r"got nan in feature 'register_tile', row 0 \(16 such values"),
    ],
)
def test_schema_refuses_other_matrices(matrix: object, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        SCHEMA.check(matrix)


def test_schema_accepts_its_own_matrix() -> None:
    matrix = np.ones((2, 8), np.float32)
    assert SCHEMA.check(matrix) is matrix


def test_schema_refuses_repeated_and_unknown_names() -> None:
    with pytest.raises(FeatureError, match="names must differ, got a more than once"):
        FeatureSchema(1, (Feature("a", "1", ""), Feature("a", "2", "")))
    with pytest.raises(FeatureError, match="at least one feature"):
        FeatureSchema(1, ())
    with pytest.raises(FeatureError, match=r"expected one of the features .* got 'bytes'"):
        SCHEMA.index("bytes")


# --- data sets


def test_dataset_is_a_value() -> None:
    times = array(1.0, 2.0)
    data = Dataset(np.zeros((2, 3), np.float32), array(1.0, 1.0), times, np.array(["w", "w"]), "d")
    times[0] = 9.0
    assert data.time_ns[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        data.time_ns[0] = 5.0
    longer = data.append(np.ones((1, 3)), [1.0], [FAILED], "a longer name")
    assert (len(data), len(longer)) == (2, 3)
    assert longer.workloads() == ("a longer name", "w")
    assert longer.ok.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("x", [[np.inf], [0.0]], r"x: expected finite features in every row, got \[inf\] in row 0"),
        ("x", [0.0, 0.0], r"x: expected an \(N, F\) matrix, got shape \(2,\)"),
        ("prior_ns", [1.0, 0.0], r"prior_ns: expected finite times > 0 in every row, got 0.0 in row 1"),
        ("time_ns", [1.0, np.nan], r"time_ns: expected times > 0, inf for a failure .* got nan in row 1"),
        ("time_ns", [1.0], r"time_ns: expected 2 values, one a row, got shape \(1,\)"),
        ("group", ["w", ""], "group: expected a workload hash"),
    ],
)
def test_dataset_refuses_bad_rows(column: str, value: object, message: str) -> None:
    columns: dict[str, object] = {"x": [[0.0], [0.0]], "prior_ns": [1.0, 1.0], "time_ns": [1.0, 1.0]}
    columns |= {"group": ["w", "w"], column: value}
    with pytest.raises(DatasetError, match=message):
        Dataset(**columns, schema_digest="d")  # type: ignore[arg-type]  # lists stand for arrays here


def test_concat_refuses_other_schemas() -> None:
    data = space(0, 1, 4)
    with pytest.raises(DatasetError, match=r"data set 1 has feature schema other, expected .* compute its features"):
        Dataset.concat([data, Dataset.empty("other", 8)])
    with pytest.raises(DatasetError, match="data set 1 has 3 features, expected 8"):
        Dataset.concat([data, Dataset.empty(SCHEMA.digest, 3)])
    with pytest.raises(DatasetError, match="at least one data set"):
        Dataset.concat([])


def test_duplicates_become_their_lower_median() -> None:
    data = Dataset(
        np.array([[5], [1], [5], [5], [1], [5], [2], [2], [-0.0], [0.0]], np.float32),
        np.ones(10),
        array(30, 7, 10, 20, FAILED, 4, FAILED, FAILED, 3, 8),
        np.array(["w", "w", "w", "w", "w", "other", "w", "w", "w", "w"]),
        "d",
    )
    unique = data.without_duplicates()
    assert unique.x[:, 0].tolist() == [5, 1, 5, 2, 0]
    assert unique.group.tolist() == ["w", "w", "other", "w", "w"]
    assert unique.time_ns.tolist() == [20, 7, 4, FAILED, 3]
    assert len(Dataset.empty("d", 1).without_duplicates()) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_removing_duplicates_twice_changes_nothing(rows: list[tuple[int, int, int]]) -> None:
    value, group, times = zip(*rows, strict=True)
    data = Dataset(
        np.array(value, np.float32)[:, None], np.ones(len(rows)), np.array(times, float),
        np.array([f"w{number}" for number in group]), "d",
    )  # fmt: skip
    once = data.without_duplicates()
    assert len(once) == len({row[:2] for row in rows})
    assert once.without_duplicates().time_ns.tolist() == once.time_ns.tolist()


def test_folds_never_split_a_workload() -> None:
    data = space(0, workloads=7, rows=10)
    held_out: list[str] = []
    for train, test in data.folds(3):
        assert not set(train.workloads()) & set(test.workloads())
        assert len(train) + len(test) == len(data)
        held_out += test.workloads()
    assert sorted(held_out) == list(data.workloads())
    assert len(list(data.folds(50))) == 7


def test_folds_need_two_workloads() -> None:
    with pytest.raises(DatasetError, match="expected at least 2 folds and 2 workloads, got 5 folds and 1 workloads"):
        next(space(0, workloads=1, rows=10).folds())


# --- rankers: one contract for every implementation


@pytest.fixture(params=[PriorOnly, *LEARNED], ids=lambda ranker: str(ranker.kind))
def make_ranker(request: pytest.FixtureRequest) -> Callable[[], AbstractRanker]:
    make: Callable[[], AbstractRanker] = request.param
    return make


@pytest.fixture(params=LEARNED, ids=lambda ranker: str(ranker.kind))
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


def test_a_whole_space_is_ranked_at_once() -> None:
    data = space(0, 5, 100)
    ranker = XGBoostRanker().fit(data)
    many = np.resize(data.x, (100_000, len(NAMES))), np.resize(data.prior_ns, 100_000)
    start = time.perf_counter()
    assert ranker.predict_ns(*many).shape == (100_000,)
    assert time.perf_counter() - start < 5.0  # about 0.2 s on an idle core; the margin is for busy ones


# --- metrics

PREDICTED = array(3, 1, 2, 5, 4)
TIME = array(20, 40, 25, FAILED, 30)


def test_top_k_score_by_hand() -> None:
    assert [top_k_score(PREDICTED, TIME, k) for k in (1, 2, 3, 9)] == [0.5, 0.8, 1.0, 1.0]
    assert top_k_score(-PREDICTED, TIME, 1) == 0.0


def test_recall_by_hand() -> None:
    assert [recall_at_k(PREDICTED, TIME, k) for k in (1, 2, 3, 4, 5)] == [0, 0.5, 2 / 3, 1, 1]
    assert recall_at_k(array(1, 2, 3), array(5, 5, 5), 1) == 1.0


def test_regret_by_hand() -> None:
    assert regret_after(PREDICTED, TIME, [1, 2, 3]) == {1: 1.0, 2: 0.25, 3: 0.0}
    assert regret_after(-PREDICTED, TIME, [1]) == {1: np.inf}


def test_pairwise_accuracy_by_hand() -> None:
    # Of 10 pairs the three that order candidate 1 before 0, 2 and 4, and the one with 2 before 0, are wrong.
    assert pairwise_accuracy(PREDICTED, TIME) == pytest.approx(0.6)
    assert pairwise_accuracy(TIME, TIME) == pytest.approx(1.0)
    assert pairwise_accuracy(-TIME, array(1, 2, 3, 5, 4)) == pytest.approx(0.2)
    assert pairwise_accuracy(array(1, 1, 1), array(1, 2, FAILED)) == 0.5
    assert pairwise_accuracy(array(2, 1, 1), array(1, 2, 2)) == pytest.approx(0.0)
    assert pairwise_accuracy(array(1, 2), array(7, 7)) == 1.0
    # Two failures are not a pair: only (0, 1) and (0, 2) count.
    assert pairwise_accuracy(array(1, 2, 3), array(5, FAILED, FAILED)) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1.0, 2.0, 3.0, 5.0, FAILED])), min_size=2, max_size=40))
@settings(max_examples=80, deadline=None)
def test_pairwise_accuracy_equals_counting_pairs(rows: list[tuple[int, float]]) -> None:
    predicted, times = array(*(row[0] for row in rows)), array(*(row[1] for row in rows), 1.0)
    predicted = np.append(predicted, 3.0)
    right, pairs = 0.0, 0
    for i in range(len(times)):
        for j in range(len(times)):
            if times[i] < times[j]:
                pairs += 1
                right += 1.0 if predicted[i] < predicted[j] else 0.5 if predicted[i] == predicted[j] else 0.0
    assert pairwise_accuracy(predicted, times) == pytest.approx(right / pairs if pairs else 1.0)


def test_equal_predictions_gain_nothing_from_row_order() -> None:
    same = array(1, 1, 1)
    assert top_k_score(same, array(10, 20, FAILED), 1) == 0.0
    assert recall_at_k(same, array(10, 20, 40), 1) == 0.0
    assert regret_after(same, array(10, 20, 40), [2]) == {2: 1.0}


def test_calibration_by_hand() -> None:
    times = array(10, 20, 30, FAILED)
    exact = calibration(2 * array(10, 20, 30, 1), times)
    assert exact.rank_correlation == pytest.approx(1.0)
    assert (exact.ratio_p10, exact.ratio_p50, exact.ratio_p90) == (2.0, 2.0, 2.0)
    assert calibration(array(30, 20, 10, 1), times).rank_correlation == pytest.approx(-1.0)
    assert calibration(array(1, 1, 1, 1), times).rank_correlation == 0.0


def test_metrics_refuse_what_cannot_be_scored() -> None:
    with pytest.raises(MetricError, match="expected a candidate that ran, got 2 failures"):
        top_k_score(array(1, 2), array(FAILED, FAILED), 1)
    with pytest.raises(MetricError, match="k: expected at least 1, got 0"):
        recall_at_k(PREDICTED, TIME, 0)
    with pytest.raises(MetricError, match=r"got shapes \(2,\) and \(5,\)"):
        pairwise_accuracy(array(1, 2), TIME)
    with pytest.raises(MetricError, match="predictions without nan"):
        calibration(array(np.nan, 2), array(1, 2))


def test_evaluation_table_holds_out_every_workload() -> None:
    data = space(0, 5, 30).append(np.zeros((4, 8)), np.ones(4), np.full(4, FAILED), "hopeless")
    table = evaluate(data, PriorOnly, 3)
    assert [line.workload for line in table.scores] == [f"workload-{number}" for number in range(5)]
    assert table.skipped == ("hopeless",)
    assert table.mean.top1 == pytest.approx(np.mean([line.top1 for line in table.scores]))
    assert table.as_dicts()[-1]["workload"] == "mean"
    lines = str(table).splitlines()
    assert lines[0].split()[:2] == ["workload", "rows"]
    assert lines[-1] == "not scored, no candidate ran: hopeless"


def test_evaluation_needs_a_candidate_that_ran() -> None:
    hopeless = Dataset.empty("d", 1).append([[0]], [1], [FAILED], "a").append([[0]], [1], [FAILED], "b")
    with pytest.raises(MetricError, match="expected a workload where a candidate ran, got 2 without"):
        evaluate(hopeless, PriorOnly)


# --- model files

IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from test_cost_model import SCHEMA, TARGET, space
from tilewright.cost_model import load_model
data = space(1, 3, 50)
np.save(sys.argv[2], load_model(sys.argv[1], SCHEMA, TARGET).predict_ns(data.x, data.prior_ns))
"""


def test_saved_model_predicts_the_same_in_another_process(
    tmp_path: Path, make_ranker: Callable[[], AbstractRanker]
) -> None:
    data = space(1, 3, 50)
    ranker = make_ranker().fit(data)
    save_model(ranker, tmp_path / "new folder" / "model.zip", SCHEMA, TARGET)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, "new folder/model.zip", "predicted.npy"]
    environment = {"PYTHONPATH": str(Path(__file__).parent), "PATH": ""}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    expected = ranker.predict_ns(data.x, data.prior_ns)
    np.testing.assert_array_equal(np.load(tmp_path / "predicted.npy"), expected)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.zip"
    save_model(XGBoostRanker().fit(space(0, 2, 40)), path, SCHEMA, TARGET)
    return path


def test_untrained_and_scaled_models_are_kept_too(tmp_path: Path, make_ranker: Callable[[], AbstractRanker]) -> None:
    data = space(0, 1, 40)
    for ranker in (make_ranker(), make_ranker().fit(data.take(np.arange(5)))):
        save_model(ranker, tmp_path / "m", SCHEMA, TARGET)
        again = load_model(tmp_path / "m", SCHEMA, TARGET)
        np.testing.assert_array_equal(again.predict_ns(data.x, data.prior_ns), ranker.predict_ns(data.x, data.prior_ns))


def test_model_file_says_what_it_belongs_to(saved: Path) -> None:
    info = model_info(saved)
    assert (info.kind, info.schema_digest, info.feature_names) == ("xgboost", SCHEMA.digest, NAMES)
    assert info.target == TARGET
    assert info.summary is not None
    assert info.summary.rows == 80


def test_same_model_is_the_same_bytes_and_leaves_no_other_file(saved: Path) -> None:
    first = saved.read_bytes()
    save_model(XGBoostRanker().fit(space(0, 2, 40)), saved, SCHEMA, TARGET)
    assert saved.read_bytes() == first
    assert [path.name for path in saved.parent.iterdir()] == ["model.zip"]


def test_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = saved.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_model(PriorOnly(), saved, SCHEMA, TARGET)
    assert saved.read_bytes() == first
    assert [path.name for path in saved.parent.iterdir()] == ["model.zip"]


def test_save_refuses_a_ranker_of_another_schema(tmp_path: Path) -> None:
    ranker = XGBoostRanker().fit(space(0, 2, 40))
    with pytest.raises(ModelFileError, match=r"trained on feature schema .* \(version 2\); train it on features"):
        save_model(ranker, tmp_path / "m", FeatureSchema(2, SCHEMA.features), TARGET)


def test_load_refuses_another_schema(saved: Path) -> None:
    with pytest.raises(ModelFileError, match=r"expected feature schema version 2 .* got version 1 .* train a new"):
        load_model(saved, FeatureSchema(2, SCHEMA.features), TARGET)
    renamed = (*SCHEMA.features[1:], Feature("bytes_l2", "byte", ""))
    with pytest.raises(ModelFileError, match="without bytes_l2, with the unknown register_tile; train a new"):
        load_model(saved, FeatureSchema(1, renamed), TARGET)


def test_load_refuses_another_target_unless_asked_to_transfer(saved: Path) -> None:
    with pytest.raises(ModelFileError, match=r"another target: expected cores 4, got 8; train .* target=None"):
        load_model(saved, SCHEMA, {"isa": "avx2", "cores": 4})
    with pytest.raises(ModelFileError, match="expected isa None, got 'avx2'"):
        load_model(saved, SCHEMA, {"cores": 8})
    assert load_model(saved, SCHEMA, None).kind == "xgboost"


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change the members of an intact archive."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def with_meta(**changes: object) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        files["meta.json"] = json.dumps(json.loads(files["meta.json"]) | changes).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_meta(format=99), "expected model format 1, got 99; read it with the release that wrote it"),
        (with_meta(kind="neural"), "expected a ranker of kind prior, xgboost, hist_gradient, got 'neural'"),
        (with_meta(schema=None), "its meta.json lacks a field"),
        (with_meta(settings={}), "its weights cannot be read"),
        (with_meta(kind="hist_gradient"), "its weights cannot be read"),
        (lambda files: files.pop("meta.json"), "not a readable model archive"),
        (lambda files: files.pop("member_2.ubj"), "its weights cannot be read"),
        (lambda files: files.update({"meta.json": b"[]"}), "not a readable model archive"),
        (lambda files: files.update({"meta.json": b"\xff{"}), "not a readable model archive"),
        (lambda files: files.update({"gate.ubj": b"{"}), "its weights cannot be read"),
    ],
)
def test_load_refuses_malformed_archives(saved: Path, change: Callable[[dict[str, bytes]], None], message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(ModelFileError, match=message):
        load_model(saved, SCHEMA, TARGET)


def test_load_refuses_pickles_in_training_arrays(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_model(HistGradientRanker().fit(space(0, 2, 40)), path, SCHEMA, TARGET)

    def pickled(files: dict[str, bytes]) -> None:
        np.savez(tmp_path / "evil.npz", x=np.array([object], dtype=object))
        files["training.npz"] = (tmp_path / "evil.npz").read_bytes()

    rewrite(path, pickled)
    with pytest.raises(ModelFileError, match="its weights cannot be read"):
        load_model(path, SCHEMA, TARGET)


def test_load_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="expected a model file, got No such file or directory; train and save"):
        load_model(tmp_path / "none", SCHEMA, TARGET)


def test_load_says_which_package_is_missing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ModelFileError, match=r"a xgboost model needs a missing package: .*xgboost"):
        load_model(saved, SCHEMA, TARGET)


def test_damaged_files_are_refused_or_harmless(saved: Path) -> None:
    intact = saved.read_bytes()
    data = space(3, 1, 20)
    expected = load_model(saved, SCHEMA, TARGET).predict_ns(data.x, data.prior_ns)
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(300):
        damaged = bytearray(intact)
        if number % 3 == 0:
            del damaged[int(rng.integers(len(intact))) :]
        else:
            damaged[int(rng.integers(len(intact)))] ^= int(rng.integers(1, 256))
        saved.write_bytes(damaged)
        try:
            ranker = load_model(saved, SCHEMA, TARGET)
        except ModelFileError:
            refused += 1
        else:
            np.testing.assert_array_equal(ranker.predict_ns(data.x, data.prior_ns), expected)
    assert refused > 250
