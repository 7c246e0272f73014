"""Made-up measurements with a known mistake of the prior, for the tests of the learned cost model."""

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model import (
    FAILED,
    AbstractRanker,
    Dataset,
    Feature,
    FeatureSchema,
    HistGradientRanker,
    PriorOnly,
    XGBoostRanker,
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
RANKERS = (PriorOnly, *LEARNED)
Vector = NDArray[np.float64]


def kind_of(ranker: type[AbstractRanker]) -> str:
    """The id of a ranker in test names."""
    return str(ranker.kind)


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
    """A vector of numbers."""
    return np.array(values, np.float64)
