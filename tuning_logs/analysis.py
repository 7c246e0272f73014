"""What a log says: pure functions over records, from a store or from anywhere else."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.tuning_logs.record import Key, Record
from tilewright.tuning_logs.standing import verdict


@dataclass(frozen=True, slots=True)
class Progress:
    """The best measurement up to a trial."""

    trial: int
    elapsed_s: float
    best_ns: float


@dataclass(frozen=True, slots=True)
class Failures:
    """The records of one status other than "ok"."""

    status: str
    count: int
    first_error: str | None  # in full
    distinct_errors: tuple[tuple[str, int], ...]  # each text in full, and how often; in the order first seen


@dataclass(frozen=True, slots=True)
class Comparison:
    """The winner of a key (or the default that stays) against its default schedule."""

    key: Key
    best: Record
    best_ns: float
    default_ns: float | None  # None if the default was not measured, or does not stand
    speedup: float | None  # default_ns / best_ns


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where the time of the runs went."""

    build_s: float
    run_s: float
    rest_s: float  # search, training, waiting; 0 if builds in parallel add up to more than the wall time
    total_s: float  # from the start to the last record, added over runs


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well predictions order and match measurements."""

    count: int  # "ok" records with a prediction
    spearman: float | None  # rank correlation, 1 is perfect; None if there is no order to compare
    median_ratio: float | None  # of measured / predicted, 1 is perfect
    median_factor: float | None  # of max(measured / predicted, predicted / measured), 1 is perfect


def best_so_far(records: Iterable[Record]) -> list[Progress]:
    """The best measurement after each record, by time, from the first "ok" one on.

    Raises `ValueError` if the records are of several keys or runs: their times cannot be compared.
    """
    chosen = list(records)
    origins = {(record.key(), record.run_id) for record in chosen}
    if len(origins) > 1:
        raise ValueError(f"best_so_far: expected records of one key and one run, got {len(origins)} of them")
    best = float("inf")
    steps = []
    for record in sorted(chosen, key=lambda r: (r.elapsed_s, r.trial)):
        if record.median_ns is not None:
            best = min(best, record.median_ns)
        if best != float("inf"):
            steps.append(Progress(record.trial, record.elapsed_s, best))
    return steps


def failures_by_status(records: Iterable[Record]) -> list[Failures]:
    """One entry for each status but "ok" that occurs, the most frequent first."""
    counts: dict[str, int] = {}
    errors: dict[str, dict[str, int]] = {}
    for record in records:
        if record.status == "ok":
            continue
        counts[record.status] = counts.get(record.status, 0) + 1
        texts = errors.setdefault(record.status, {})
        if record.error is not None:
            texts[record.error] = texts.get(record.error, 0) + 1
    return [
        Failures(status, count, next(iter(errors[status]), None), tuple(errors[status].items()))
        for status, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def default_vs_best(records: Iterable[Record]) -> list[Comparison]:
    """One entry for each key that has a winner, by the rule of `standing`, or a default that stays for want of a contest; keys
    in the order first seen."""
    by_key: dict[Key, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.key(), []).append(record)
    found = []
    for key, group in by_key.items():
        found_here = verdict(group)
        best, default = found_here.kept, found_here.default
        if best is None:
            continue
        default_ns = None if default is None else default.time_ns
        speedup = None if default_ns is None else default_ns / best.time_ns
        found.append(Comparison(key, best.record, best.time_ns, default_ns, speedup))
    return found


def time_split(records: Iterable[Record]) -> TimeSplit:
    """Seconds of building, running and the rest, added over all runs."""
    build_s = run_s = 0.0
    last: dict[str, float] = {}
    for record in records:
        build_s += record.build_s
        run_s += record.run_s
        last[record.run_id] = max(last.get(record.run_id, 0.0), record.elapsed_s)
    total_s = sum(last.values())
    return TimeSplit(build_s, run_s, max(0.0, total_s - build_s - run_s), total_s)


def calibration(records: Iterable[Record]) -> Calibration:
    """Predicted against measured.

    Meant for records of one key: across keys, sizes alone give a high correlation.
    """
    pairs = [
        (record.predicted_ns, record.median_ns)
        for record in records
        if record.predicted_ns is not None and record.median_ns is not None
    ]
    if not pairs:
        return Calibration(0, None, None, None)
    ratios = [measured / predicted for predicted, measured in pairs]
    return Calibration(
        count=len(pairs),
        spearman=spearman([predicted for predicted, _ in pairs], [measured for _, measured in pairs]),
        median_ratio=statistics.median(ratios),
        median_factor=statistics.median(max(ratio, 1 / ratio) for ratio in ratios),
    )


def spearman(one: Iterable[float], other: Iterable[float]) -> float | None:
    """The rank correlation of two equally long series; None if either has no two different values."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean() if a.size else a, b - b.mean() if b.size else b
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else None


def _ranks(values: Iterable[float]) -> npt.NDArray[np.float64]:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(list(values), dtype=np.float64), return_inverse=True, return_counts=True)
    after = np.cumsum(counts)
    return np.asarray((after - 1 - (counts - 1) / 2)[inverse], dtype=np.float64)
