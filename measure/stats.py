"""Statistics of samples: the median with a confidence interval that assumes nothing about their distribution.

Times are skewed and have outliers, so a mean with a normal interval would be wrong; order statistics are not.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

CONFIDENCE = 0.95


@final
@dataclass(frozen=True, slots=True)
class Median:
    """A median between the bounds of its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def noise(self) -> float:
        """Half the width of the interval as a share of the median (infinite for a median of 0)."""
        return (self.high - self.low) / (2 * self.value) if self.value > 0 else math.inf


@functools.lru_cache(maxsize=4096)
def rank(n: int, confidence: float = CONFIDENCE) -> int:
    """The largest k such that the k-th smallest and the k-th largest of ``n`` samples enclose the median with
    at least this probability; 1 where even the extremes do not (fewer than 6 samples at 95 %)."""
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
        if 2 * tail > 1 - confidence:
            break
        k += 1
    return max(1, k)


def median(samples: Sequence[float], confidence: float = CONFIDENCE) -> Median:
    """Median and interval. Raises ValueError without samples."""
    if not samples:
        raise ValueError("median: expected at least one sample; got none")
    ordered = sorted(samples)
    k = rank(len(ordered), confidence)
    return Median(statistics.median(ordered), ordered[k - 1], ordered[-k])
