"""What the tuner has learned so far on this target: rows of features and times of every measured candidate, and a ranker that is
refitted between measurements (never while the device is timing)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model import AbstractRanker, Dataset, default_ranker
from tilewright.cost_model.features import FEATURES, features_and_prior
from tilewright.cost_model.prior import prior_ns
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Ints, Sketch

REFIT_AFTER = 24
"""New rows before a refit, at least; later a tenth of what is there."""

TRUSTED_AFTER = 24
"""Measurements of a workload after which the ranker alone ranks it."""


class Learner:
    """One per target and run."""

    def __init__(self, seed: int = 0, ranker: AbstractRanker | None = None) -> None:
        self._ranker = ranker or default_ranker(seed=seed)
        self._x: list[NDArray[np.float32]] = []
        self._prior: list[float] = []
        self._time: list[float] = []
        self._group: list[str] = []
        self._own: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._last: tuple[Candidate, NDArray[np.float32], NDArray[np.float64]] | None = None
        self._fitted = 0
        self.fits = 0

    @property
    def rows(self) -> int:
        """Measured candidates known."""
        return len(self._time)

    def add(self, candidate: Candidate, workload_hash: str, time_ns: float) -> None:
        """A measured time; infinity for a failure."""
        x, prior = self._features(candidate)
        self._x.append(x)
        self._prior.append(float(prior[0]))
        self._time.append(time_ns)
        self._group.append(workload_hash)
        if np.isfinite(time_ns):
            self._own[workload_hash] = self._own.get(workload_hash, 0) + 1

    def _features(self, candidate: Candidate) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Features and prior of one candidate; the last one is kept, as each is predicted and then added."""
        if self._last is None or self._last[0] != candidate:
            row = np.asarray([candidate.values], dtype=np.int64).reshape(1, len(candidate.values))
            self._last = candidate, *features_and_prior(candidate.sketch, row)
        return self._last[1:]

    def predict_one_ns(self, candidate: Candidate) -> float:
        """Predicted nanoseconds of one candidate."""
        x, prior = self._features(candidate)
        return float(self._predict(candidate.sketch, x, prior)[0])

    def refit(self, force: bool = False) -> bool:
        """Fit again if enough is new."""
        fresh = len(self._time) - self._fitted
        if not self._time or fresh == 0 or (not force and fresh < max(REFIT_AFTER, self._fitted // 10)):
            return False
        self._ranker = self._ranker.fit(self.dataset())
        self._fitted = len(self._time)
        self._seen = dict(self._own)
        self.fits += 1
        return True

    def dataset(self) -> Dataset:
        """Everything learned, as arrays."""
        return Dataset(
            np.concatenate(self._x),
            np.asarray(self._prior),
            np.asarray(self._time),
            np.asarray(self._group),
            FEATURES.digest,
        )

    def predict_ns(self, sketch: Sketch, rows: Ints) -> NDArray[np.float64]:
        """Predicted nanoseconds. A ranker that has seen nothing of a workload ranks it worse than the prior does (measured on
        held-out workloads), so it is believed in proportion to what it has seen of this one."""
        if self._trust(sketch) == 0.0:
            return prior_ns(sketch, rows)
        return self._predict(sketch, *features_and_prior(sketch, rows))

    def _trust(self, sketch: Sketch) -> float:
        return min(1.0, self._seen.get(sketch.workload.hash, 0) / TRUSTED_AFTER)

    def _predict(self, sketch: Sketch, x: NDArray[np.float32], prior: NDArray[np.float64]) -> NDArray[np.float64]:
        trust = self._trust(sketch)
        if trust == 0.0:
            return prior
        return np.exp(trust * np.log(self._ranker.predict_ns(x, prior)) + (1.0 - trust) * np.log(prior))
