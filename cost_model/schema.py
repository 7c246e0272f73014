"""What a feature column means: its name, unit and reason, and the version of the whole list.

A model is a function of columns by position, so weights are only ever used together with the schema they
were trained on: `FeatureSchema.digest` is stored with every data set and every model file, and compared on
use.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class FeatureError(ValueError):
    """A feature schema or feature matrix is not what it must be."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One column: what is measured, in which unit, why it helps, and where it is only approximate."""

    name: str
    unit: str
    reason: str
    approximate: str = ""


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """The ordered columns of a feature matrix.

    Raise `version` whenever a column keeps its name but changes its meaning; names alone cannot show that.
    """

    version: int
    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        if not self.features:
            raise FeatureError("a feature schema needs at least one feature, got none")
        names = self.names()
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise FeatureError(f"feature names must differ, got {', '.join(repeated)} more than once")

    def names(self) -> tuple[str, ...]:
        """Feature names, in the order of the columns."""
        return tuple(feature.name for feature in self.features)

    @property
    def digest(self) -> str:
        """Hash of the version and the names in order; units and prose may be reworded freely."""
        text = json.dumps([self.version, *self.names()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def index(self, name: str) -> int:
        """The column of a feature. Raises `FeatureError` for an unknown name."""
        try:
            return self.names().index(name)
        except ValueError:
            known = ", ".join(self.names())
            raise FeatureError(f"expected one of the features {known}, got {name!r}") from None

    def check(self, matrix: object) -> NDArray[np.float32]:
        """Return `matrix` unchanged if it is a finite (N, F) float32 array, else say what is wrong."""
        width = len(self.features)
        expected = f"expected an (N, {width}) float32 feature matrix of schema version {self.version}"
        if not isinstance(matrix, np.ndarray):
            raise FeatureError(f"{expected}, got {type(matrix).__name__}")
        if matrix.ndim != 2 or matrix.shape[1] != width:
            raise FeatureError(f"{expected}, got shape {matrix.shape}")
        if matrix.dtype != np.float32:
            raise FeatureError(f"{expected}, got dtype {matrix.dtype}; convert it with .astype(np.float32)")
        bad = np.argwhere(~np.isfinite(matrix))
        if len(bad):
            row, column = bad[0]
            raise FeatureError(
                f"{expected} with finite values, got {matrix[row, column]} in feature "
                f"{self.features[column].name!r}, row {row} ({len(bad)} such values in all)"
            )
        return matrix


def check_candidates(x: NDArray[np.float32], prior_ns: NDArray[np.float64], features: int | None = None) -> None:
    """Refuse arrays that do not describe the same N candidates or hold values without a prediction."""
    if x.ndim != 2 or prior_ns.shape != x.shape[:1]:
        raise FeatureError(f"expected features (N, F) and priors (N,), got {x.shape} and {prior_ns.shape}")
    if features is not None and x.shape[1] != features:
        raise FeatureError(f"expected {features} features as in training, got {x.shape[1]}")
    if not (np.isfinite(x).all() and np.isfinite(prior_ns).all() and (prior_ns > 0).all()):
        raise FeatureError("expected finite features and priors > 0, got others; mask illegal rows first")
