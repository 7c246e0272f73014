"""What every search strategy is: ask and tell, and the settings that all share.

A strategy proposes each candidate at most once, and with the same seed the same candidates, in another process too. All of them
pass one contract test suite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Ints, Points, Sketch, enumerate_points
from tilewright.search_space.space import Space

Rank = Callable[[Sketch, Ints], NDArray[np.float64]]
"""Predicted nanoseconds of candidates (rows of a sketch)."""


class Strategy(Protocol):
    """Proposes candidates and learns from their times."""

    def ask(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates not proposed before; an empty list when the space is used up."""
        ...

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        """The measured time of a candidate (proposed here or not); infinity for a failure."""
        ...


LARGEST_SEED = (1 << 32) - 1
"""What every library that takes a seed accepts."""


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """Settings shared by the strategies, in one place. Raises ValueError for a seed that is no integer from 0 to LARGEST_SEED."""

    seed: int = 0
    points_per_space: int = 60_000
    """How many points of a space are ranked; larger spaces are sampled evenly over their sketches."""
    shortlist: int = 3_000
    """How many of the best by the first ranking are ranked again in later rounds."""
    explore: float = 0.15
    """Share of each batch taken at random from the better part of the shortlist, far from what was measured."""
    stuck: int = 16
    explore_stuck: float = 0.4
    """That share after so many measurements without a new best."""
    per_sketch: float = 0.5
    """Largest share of a batch from one sketch."""
    spread: int = 24
    """Until so many are measured, candidates that resemble measured ones wait: the best by a ranking that has learnt nothing yet
    differ in what hardly matters, and are wrong together."""

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed: expected an integer from 0 to {LARGEST_SEED}; got {self.seed!r}")


def enumerate_space(space: Space, config: SearchConfig) -> list[Points]:
    """The legal points of each sketch; of larger ones a sample of its share of ``points_per_space``, or of 200 if that is more."""
    limit = max(200, config.points_per_space // len(space.sketches))
    return [enumerate_points(s, limit, config.seed) for s in space.sketches]
