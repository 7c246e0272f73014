"""How good a ranking is; never RMSE, because a search only acts on order.

`predicted` and `time` are (N,) arrays over the candidates of *one* workload, less is better, `inf` in
`time` is a failure. Equal predictions are ordered worst first: a model gains nothing by answering the same
for all, and the order of the rows, which often is the order in which a search liked them, cannot leak into
a score.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model.dataset import Dataset
from tilewright.cost_model.ranker import AbstractRanker

Vector = NDArray[np.float64]


class MetricError(ValueError):
    """There is nothing to score."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Do predicted times mean anything beyond their order?"""

    rank_correlation: float
    """Spearman's, over the candidates that ran; 0 if all predictions or all times are equal."""
    ratio_p10: float
    """Quantiles of predicted / measured: 1 is perfect, the median shows the bias, the others the width."""
    ratio_p50: float
    ratio_p90: float


@dataclass(frozen=True, slots=True)
class Score:
    """One line of an evaluation: a held-out workload, or the mean over them."""

    workload: str
    rows: float
    failed: float
    top1: float
    top5: float
    recall10: float
    pairwise: float
    regret10: float
    rank_correlation: float
    ratio_p50: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores on held-out workloads, their mean, and those not scored because nothing ran."""

    scores: tuple[Score, ...]
    mean: Score
    skipped: tuple[str, ...]

    def as_dicts(self) -> list[dict[str, object]]:
        """The lines in order, the mean last."""
        return [asdict(score) for score in (*self.scores, self.mean)]

    def __str__(self) -> str:
        head = [field.name for field in fields(Score)]
        body = [
            [f"{value:.4g}" if isinstance(value, float) else str(value) for value in line.values()]
            for line in self.as_dicts()
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
        ]
        if self.skipped:
            lines.append(f"not scored, no candidate ran: {', '.join(self.skipped)}")
        return "\n".join(lines)


def top_k_score(predicted: Vector, time: Vector, k: int) -> float:
    """Best time of all / best time among the `k` predicted best: 1 is perfect, 0 means all `k` failed."""
    order = _order(predicted, time, k)
    return float(time.min() / time[order[:k]].min())


def recall_at_k(predicted: Vector, time: Vector, k: int) -> float:
    """Share of the `k` truly best (fewer if fewer ran) that is among the `k` predicted best."""
    order = _order(predicted, time, k)
    ran = np.sort(time[np.isfinite(time)])
    wanted = min(k, len(ran))
    # Several may tie at the border: any of them is as good as another.
    hits = int((time[order[:k]] <= ran[wanted - 1]).sum())
    return min(hits, wanted) / wanted


def pairwise_accuracy(predicted: Vector, time: Vector) -> float:
    """Share of the pairs with different times that are predicted in the right order; an equal prediction is
    half.

    A failure is slower than anything that ran; two failures are not a pair. Without any pair the answer is
    1.
    """
    _order(predicted, time, 1)
    from scipy.stats import kendalltau  # slow to import, and only evaluation needs it

    ranks = [np.unique(values, return_inverse=True)[1] for values in (predicted, time)]
    all_pairs = len(time) * (len(time) - 1) / 2
    distinct_predicted, distinct_time = (all_pairs - _tied_pairs(values) for values in ranks)
    if distinct_time == 0:
        return 1.0
    if distinct_predicted == 0:
        return 0.5
    # tau-b = (right - wrong) / sqrt(distinct_predicted * distinct_time), in N log N steps
    tau = float(kendalltau(*ranks, variant="b", method="asymptotic").statistic)
    return 0.5 + 0.5 * tau * float(np.sqrt(distinct_predicted / distinct_time))


def regret_after(predicted: Vector, time: Vector, ks: Iterable[int]) -> dict[int, float]:
    """For each k: how much slower than the best of all is the best after measuring the k predicted best.

    0 is perfect, 0.1 is 10 % slower, inf means that all k failed.
    """
    return {k: float(time[_order(predicted, time, k)[:k]].min() / time.min() - 1.0) for k in ks}


def calibration(predicted: Vector, time: Vector) -> Calibration:
    """Rank correlation, and quantiles of predicted / measured, over the candidates that ran."""
    _order(predicted, time, 1)
    from scipy.stats import rankdata  # slow to import, and only evaluation needs it

    ran = np.isfinite(time)
    predicted, time = predicted[ran], time[ran]
    a, b = (values - values.mean() for values in (rankdata(predicted), rankdata(time)))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    low, middle, high = np.quantile(predicted / time, (0.1, 0.5, 0.9))
    return Calibration(float(a @ b) / norm if norm else 0.0, float(low), float(middle), float(high))


def score(workload: str, predicted: Vector, time: Vector) -> Score:
    """All metrics of one workload."""
    fit = calibration(predicted, time)
    return Score(
        workload=workload,
        rows=len(time),
        failed=int(np.isinf(time).sum()),
        top1=top_k_score(predicted, time, 1),
        top5=top_k_score(predicted, time, 5),
        recall10=recall_at_k(predicted, time, 10),
        pairwise=pairwise_accuracy(predicted, time),
        regret10=regret_after(predicted, time, [10])[10],
        rank_correlation=fit.rank_correlation,
        ratio_p50=fit.ratio_p50,
    )


def evaluate(data: Dataset, make_ranker: Callable[[], AbstractRanker], folds: int = 5) -> Evaluation:
    """Train on some workloads, score each of the others, until each was held out once.

    ```
    print(evaluate(data, XGBoostRanker))    # compare with evaluate(data, PriorOnly)
    ```
    """
    scores: list[Score] = []
    skipped: list[str] = []
    for train, test in data.folds(folds):
        ranker = make_ranker().fit(train)
        for workload in test.workloads():
            rows = test.take(test.group == workload)
            if not rows.ok.any():
                skipped.append(workload)
                continue
            scores.append(score(workload, ranker.predict_ns(rows.x, rows.prior_ns), rows.time_ns))
    if not scores:
        raise MetricError(f"evaluate: expected a workload where a candidate ran, got {len(skipped)} without")
    numbers = [field.name for field in fields(Score) if field.name != "workload"]
    mean = {name: float(np.mean([getattr(line, name) for line in scores])) for name in numbers}
    by_name = sorted(scores, key=lambda line: line.workload)
    return Evaluation(tuple(by_name), Score(workload="mean", **mean), tuple(sorted(skipped)))


def _order(predicted: Vector, time: Vector, k: int) -> NDArray[np.intp]:
    """Indices from predicted best to worst, equal predictions worst first, after checking the arguments."""
    if predicted.ndim != 1 or predicted.shape != time.shape:
        raise MetricError(f"expected two (N,) arrays, got shapes {predicted.shape} and {time.shape}")
    if k < 1:
        raise MetricError(f"k: expected at least 1, got {k}")
    if np.isnan(predicted).any() or not (time > 0).all():
        raise MetricError("expected predictions without nan and times > 0 (inf for a failure), got others")
    if not np.isfinite(time).any():
        raise MetricError(f"expected a candidate that ran, got {len(time)} failures")
    return np.lexsort((-time, predicted))


def _tied_pairs(values: NDArray[np.intp]) -> float:
    count = np.bincount(values).astype(np.float64)
    return float((count * (count - 1) / 2).sum())
