"""Candidates: points of a space, and those that a person would try first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.schedules.steps import Schedule
from tilewright.search_space.sketch import Ints, Sketch, enumerate_points
from tilewright.search_space.space import Space


@dataclass(frozen=True)
class Candidate:
    """One point of the space."""

    sketch: Sketch
    values: tuple[int, ...]

    @property
    def params(self) -> dict[str, int]:
        """Parameter values by name."""
        return {p.name: v for p, v in zip(self.sketch.params, self.values, strict=True)}

    @property
    def schedule(self) -> Schedule:
        """The concrete schedule."""
        return self.sketch.schedule(self.params)

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Identity within a space."""
        return self.sketch.name, self.values


def preferred(space: Space) -> list[Candidate]:
    """The sensible candidate of each sketch (the legal point nearest to what its rule prefers); sketches without a legal point are
    left out."""
    return [c for s in space.sketches if (c := _preferred(s)) is not None]


def _preferred(sketch: Sketch) -> Candidate | None:
    wanted = np.asarray([[sketch.preferred[p.name] for p in sketch.params]], dtype=np.int64).reshape(
        1, len(sketch.params)
    )
    if not legal(sketch, wanted)[0]:
        rows = enumerate_points(sketch, 2_000).rows
        if not len(rows):
            return None
        distance = np.abs(np.log2(np.maximum(rows, 0.5)) - np.log2(np.maximum(wanted, 0.5))).sum(axis=1)
        wanted = rows[[int(np.argmin(distance))]]
    return Candidate(sketch, tuple(int(x) for x in wanted[0]))


def legal(sketch: Sketch, rows: Ints) -> NDArray[np.bool_]:
    """Which rows satisfy every constraint of the sketch."""
    ok = np.ones(len(rows), dtype=np.bool_)
    for c in sketch.constraints:
        ok &= c.holds(sketch.columns(rows))
    return ok
