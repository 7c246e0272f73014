"""Rankers learn by which factor the analytic prior is wrong, and which candidates fail.

A ranker is a value. One that has learnt nothing answers with the prior, so a search holds the same type
from its first round; `fit` returns a new ranker and never changes the old one.

Decisions, each compared on synthetic spaces with held-out workloads:

- *Label*: log(time / prior) minus the median of its workload, squared error. A constant factor over a
  workload cannot change a ranking, so trees should not be spent on it. Pairwise ranking objectives ordered
  worse with the few rows a search has, and give no time.
- *Weight*: sqrt(best / time), so accuracy goes where a search chooses; a small gain.
- *Failures* have no time, and any label made up for them bends the regression near the edge of what is
  possible, where the best candidates often are. They train a second model, the gate: the probability p of
  failing. At p >= 1/2 the predicted time is multiplied by `FAILURE_FACTOR`, behind everything expected to
  run; below, it is divided by 1 - p, the expected price of one successful run. Both keep likely failures
  ordered and finite.
- *Spread*: four small models, each on its own bootstrap of the rows, in place of one large one. The
  prediction is their mean; where data is thin they disagree.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model import restored
from tilewright.cost_model.dataset import Dataset, Lesson, TrainingSummary
from tilewright.cost_model.schema import check_candidates

Matrix = NDArray[np.float32]
Vector = NDArray[np.float64]

FAILURE_FACTOR = 1e9
PRIOR_SPREAD = 0.7
"""Standard deviation of log time where only the prior is known: wrong by a factor of about two."""
MEMBERS = 4
MEMBER_TREES, MEMBER_DEPTH, MEMBER_RATE = 30, 4, 0.25
GATE_TREES, GATE_DEPTH, GATE_RATE = 40, 3, 0.3


@dataclass(frozen=True, slots=True)
class Learnt:
    """The outcome of one `fit`: log factor, ensemble members and gate."""

    summary: TrainingSummary
    offset: float
    members: tuple[Any, ...]
    gate: Any


class AbstractRanker(ABC):
    """Predicts the times of arrays of candidates; see the module's notes for what is learnt."""

    kind: ClassVar[str]
    """The name written in model files."""

    @abstractmethod
    def fit(self, data: Dataset) -> Self:
        """A new ranker that has learnt from all of `data` and nothing else."""

    @abstractmethod
    def predict_with_spread(self, x: Matrix, prior_ns: Vector) -> tuple[Vector, Vector]:
        """Mean and standard deviation of log(time in ns) for N candidates."""

    @abstractmethod
    def summary(self) -> TrainingSummary | None:
        """What was learnt from, or None."""

    @abstractmethod
    def dump(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """JSON-able settings, and named files; never pickled objects."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """The inverse of `dump`."""

    @final
    def predict_ns(self, x: Matrix, prior_ns: Vector) -> Vector:
        """Predicted times of N candidates: `np.argsort` of it is the ranking.

        A candidate expected to fail gets a time beyond all others, not infinity: it keeps an order among
        its like.
        """
        return np.exp(self.predict_with_spread(x, prior_ns)[0])


@final
@dataclass(frozen=True, slots=True)
class PriorOnly(AbstractRanker):
    """The analytic prior as it is: the baseline every learned ranker must beat."""

    kind: ClassVar[str] = "prior"

    def fit(self, data: Dataset) -> Self:
        return self

    def predict_with_spread(self, x: Matrix, prior_ns: Vector) -> tuple[Vector, Vector]:
        return _prior_answer(x, prior_ns)

    def summary(self) -> TrainingSummary | None:
        return None

    def dump(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return {}, {}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        return cls()


@final
@dataclass(frozen=True, slots=True)
class XGBoostRanker(AbstractRanker):
    """Gradient-boosted trees of XGBoost, through the part of its interface that has been stable for years."""

    n_jobs: int = 1
    seed: int = 0
    learnt: Learnt | None = None
    kind: ClassVar[str] = "xgboost"

    def fit(self, data: Dataset) -> Self:
        import xgboost as xgb

        lesson = Lesson.of(data, self.seed)
        common = {"tree_method": "hist", "nthread": self.n_jobs, "seed": self.seed, "verbosity": 0}
        ratio = common | {"objective": "reg:squarederror", "base_score": 0.0, "eta": MEMBER_RATE}
        members = tuple(
            xgb.train(
                ratio | {"max_depth": MEMBER_DEPTH},
                xgb.DMatrix(lesson.x, label=lesson.target, weight=weight, nthread=self.n_jobs),
                num_boost_round=MEMBER_TREES,
            )
            for weight in lesson.random_weights(MEMBERS)
        )
        gate = None
        if lesson.gate_worthwhile:
            gate = xgb.train(
                common | {"objective": "binary:logistic", "eta": GATE_RATE, "max_depth": GATE_DEPTH},
                xgb.DMatrix(data.x, label=~data.ok, nthread=self.n_jobs),
                num_boost_round=GATE_TREES,
            )
        return replace(self, learnt=Learnt(TrainingSummary.of(data), lesson.offset, members, gate))

    def predict_with_spread(self, x: Matrix, prior_ns: Vector) -> tuple[Vector, Vector]:
        if self.learnt is None or not len(x):
            return _prior_answer(x, prior_ns)
        check_candidates(x, prior_ns, self.learnt.summary.features)
        import xgboost as xgb

        rows = xgb.DMatrix(x, nthread=self.n_jobs)
        gate = self.learnt.gate
        failing = None if gate is None else gate.predict(rows)
        return _combine(prior_ns, self.learnt, [member.predict(rows) for member in self.learnt.members], failing)

    def summary(self) -> TrainingSummary | None:
        return None if self.learnt is None else self.learnt.summary

    def dump(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        settings: dict[str, Any] = {"n_jobs": self.n_jobs, "seed": self.seed, "learnt": None}
        if self.learnt is None:
            return settings, {}
        files = {
            f"member_{number}.ubj": bytes(member.save_raw("ubj")) for number, member in enumerate(self.learnt.members)
        }
        if self.learnt.gate is not None:
            files["gate.ubj"] = bytes(self.learnt.gate.save_raw("ubj"))
        settings["learnt"] = {
            "summary": asdict(self.learnt.summary),
            "offset": self.learnt.offset,
            "members": len(self.learnt.members),
            "gate": self.learnt.gate is not None,
        }
        return settings, files

    @classmethod
    def restore(cls, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        import xgboost as xgb

        n_jobs, seed = restored.threads(settings), restored.integer(settings, "seed")
        if settings["learnt"] is None:
            return cls(n_jobs, seed)
        learnt = restored.mapping(settings["learnt"], "learnt")
        summary = restored.summary(learnt["summary"])

        def booster(name: str) -> Any:
            found = xgb.Booster({"nthread": n_jobs, "verbosity": 0}, model_file=bytearray(files[name]))
            if found.num_features() != summary.features:
                raise ValueError(f"{name}: expected {summary.features} features, got {found.num_features()}")
            return found

        members = tuple(booster(f"member_{k}.ubj") for k in range(restored.integer(learnt, "members", 0, len(files))))
        gate = booster("gate.ubj") if restored.flag(learnt, "gate") else None
        return cls(n_jobs, seed, Learnt(summary, restored.number(learnt, "offset"), members, gate))


@final
@dataclass(frozen=True, slots=True)
class HistGradientRanker(AbstractRanker):
    """The same model on scikit-learn, for machines without XGBoost.

    scikit-learn writes models only as pickles, which run code when read. So a model file holds the training
    rows, and reading it trains again: the same rows, seed and scikit-learn give the same model; another
    release of scikit-learn may give a slightly different one.
    """

    n_jobs: int = 1
    seed: int = 0
    data: Dataset | None = None
    learnt: Learnt | None = None
    kind: ClassVar[str] = "hist_gradient"

    def fit(self, data: Dataset) -> Self:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        lesson = Lesson.of(data, self.seed)
        common = {"early_stopping": False, "random_state": self.seed, "min_samples_leaf": 4}
        ratio = common | {"max_iter": MEMBER_TREES, "max_depth": MEMBER_DEPTH, "learning_rate": MEMBER_RATE}
        gating = common | {"max_iter": GATE_TREES, "max_depth": GATE_DEPTH, "learning_rate": GATE_RATE}
        gate = None
        with _threads(self.n_jobs):
            members = tuple(
                HistGradientBoostingRegressor(**ratio).fit(lesson.x[rows], lesson.target[rows])
                for rows in lesson.random_rows(MEMBERS)
            )
            if lesson.gate_worthwhile:
                gate = HistGradientBoostingClassifier(**gating).fit(data.x, ~data.ok)
        learnt = Learnt(TrainingSummary.of(data), lesson.offset, members, gate)
        return replace(self, data=data, learnt=learnt)

    def predict_with_spread(self, x: Matrix, prior_ns: Vector) -> tuple[Vector, Vector]:
        if self.learnt is None or not len(x):
            return _prior_answer(x, prior_ns)
        check_candidates(x, prior_ns, self.learnt.summary.features)
        gate, wide = self.learnt.gate, x.astype(np.float64)  # else each member converts all rows again
        with _threads(self.n_jobs):
            failing = None if gate is None else gate.predict_proba(wide)[:, 1]
            values = [member.predict(wide) for member in self.learnt.members]
        return _combine(prior_ns, self.learnt, values, failing)

    def summary(self) -> TrainingSummary | None:
        return None if self.learnt is None else self.learnt.summary

    def dump(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        settings: dict[str, Any] = {"n_jobs": self.n_jobs, "seed": self.seed, "digest": None}
        if self.data is None:
            return settings, {}
        return settings | {"digest": self.data.schema_digest}, {"training.npz": self.data.to_npz()}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        ranker = cls(restored.threads(settings), restored.integer(settings, "seed", 0, 2**32 - 1))
        if settings["digest"] is None:
            return ranker
        return ranker.fit(Dataset.from_npz(files["training.npz"], restored.text(settings, "digest")))


def default_ranker(n_jobs: int = 1, seed: int = 0) -> AbstractRanker:
    """XGBoost where it can be imported, scikit-learn elsewhere.

    Raise `n_jobs` only on idle cores: OpenMP threads that wait for a busy core cost more than they gain.
    """
    try:
        import xgboost  # noqa: F401
    except (ImportError, OSError):  # OSError: installed, but its OpenMP library is missing
        return HistGradientRanker(n_jobs, seed)
    return XGBoostRanker(n_jobs, seed)


def _threads(count: int) -> AbstractContextManager[object]:
    """Limits scikit-learn, which otherwise takes all cores and has no argument for it."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(count, user_api="openmp")
    return limits


def _prior_answer(x: Matrix, prior_ns: Vector) -> tuple[Vector, Vector]:
    check_candidates(x, prior_ns)
    return np.log(prior_ns), np.full(len(prior_ns), PRIOR_SPREAD)


def _combine(
    prior_ns: Vector, learnt: Learnt, members: Sequence[NDArray[Any]], failing: NDArray[Any] | None
) -> tuple[Vector, Vector]:
    """Prior, ensemble and gate in one answer; without members only the prior is scaled."""
    mean, spread = np.log(prior_ns) + learnt.offset, np.full(len(prior_ns), PRIOR_SPREAD)
    if members:
        values = np.stack(members).astype(np.float64)
        mean, spread = mean + values.mean(axis=0), values.std(axis=0)
    if failing is not None:
        p = np.clip(failing.astype(np.float64), 0.0, 1.0 - 1e-9)
        mean = mean - np.log1p(-p) + np.where(p >= 0.5, np.log(FAILURE_FACTOR), 0.0)
    return mean, spread
