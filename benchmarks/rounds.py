"""Comparing sides: interleaved rounds, and what they say.

A machine that other programs use changes its speed by 1.4 for seconds at a time, so two medians over the same rounds may differ by
that where the sides do not. What one round says of two sides is their *ratio*; a row of a table is the median of these, with the
95 % interval that follows from their order. A ratio means little in a round in which the machine itself moved: a reference
kernel is timed before, between and after the sides, and a round in which it differed from itself is repeated, up to a limit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from tilewright.measure.stats import median
from tilewright.measure.timing import LEAST_ROUNDS

MOVED: Final = 1.1
"""A round is repeated in which the slowest and the fastest time of the reference kernel are further apart."""
MOST: Final = 2
"""Rounds are at most so many times those that were asked for."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios within rounds, and its interval: 95 % from 6 rounds on, else all that was seen."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def decided(self) -> bool:
        """Whether one side is shown to be the faster one."""
        return self.rounds >= LEAST_ROUNDS and (self.low > 1 or self.high < 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Milliseconds of each side in the rounds that count, and how many of these the reference kernel moved in."""

    rounds: tuple[Mapping[str, float], ...]
    moved: int

    def ms(self) -> dict[str, float]:
        """The median of each side. Do not divide them: that is what :meth:`ratio` is for."""
        return {name: statistics.median(r[name] for r in self.rounds) for name in self.rounds[0]}

    def ratio(self, slow: str, fast: str) -> Ratio:
        """The time of one side over that of another."""
        m = median([r[slow] / r[fast] for r in self.rounds])
        return Ratio(m.value, m.low, m.high, len(self.rounds))

    def against(self, ours: str, others: Sequence[str]) -> dict[str, Any]:
        """The fields of a row about the best of ``others``: the one with the smallest ratio to ``ours``; None for none."""
        found = {name: self.ratio(name, ours) for name in others}
        best = min(found, key=lambda n: found[n].value) if found else None
        what = None if best is None else found[best]
        return {
            "best_peer": best,
            "ratio": None if what is None else what.value,
            "ratio_low": None if what is None else what.low,
            "ratio_high": None if what is None else what.high,
            "decided": what is not None and what.decided,
            "rounds": len(self.rounds),
            "moved": self.moved,
        }


def compare(
    sides: Sequence[tuple[str, Callable[[], float]]],
    rounds: int,
    reference: Callable[[], float] | None,
    held: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Comparison:
    """Time sides (a name, and what times a round of its calls in milliseconds) in interleaved rounds, and a reference kernel
    between them. The order rotates, so that whatever else the machine does, and whatever a side leaves in the caches, meets all of
    them. Of more rounds than were asked for those count in which the reference moved least. ``held`` makes what is held in each
    round."""
    seen: list[tuple[float, dict[str, float]]] = []
    while sum(m <= MOVED for m, _ in seen) < rounds and len(seen) < (MOST if reference else 1) * rounds:
        turn = len(seen) % len(sides)
        times: dict[str, float] = {}
        with held():
            steady = [reference()] if reference else [1.0]
            for name, round_ms in (*sides[turn:], *sides[:turn]):
                times[name] = round_ms()
                steady += [reference()] if reference else []
        seen.append((max(steady) / min(steady), times))
    kept = sorted(range(len(seen)), key=lambda k: (max(MOVED, seen[k][0]), k))[:rounds]
    moved = sum(seen[k][0] > MOVED for k in kept)
    return Comparison(tuple({name: seen[k][1][name] for name, _ in sides} for k in sorted(kept)), moved)
