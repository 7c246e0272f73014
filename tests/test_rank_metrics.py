"""How rankings are judged: by hand, and on held-out workloads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_data import array, space
from tilewright.cost_model import (
    FAILED,
    Dataset,
    MetricError,
    PriorOnly,
    calibration,
    evaluate,
    pairwise_accuracy,
    recall_at_k,
    regret_after,
    top_k_score,
)

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
