"""Time limits that adapt: a fixed one either kills good candidates or wastes a minute on each bad one."""

from __future__ import annotations

import statistics
from collections import deque
from typing import final

FACTOR = 20.0
FEW = 3


@final
class Limit:
    """A limit in seconds for one kind of work: ``cap`` until a few durations were seen, then ``FACTOR`` times
    their median, but neither below ``floor`` nor above ``cap``."""

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self._seen: deque[float] = deque(maxlen=101)

    def add(self, seconds: float) -> None:
        """Note how long work that succeeded took."""
        self._seen.append(seconds)

    def seconds(self, cap_s: float) -> float:
        """The limit now."""
        if len(self._seen) < FEW:
            return cap_s
        return min(cap_s, max(self.floor_s, FACTOR * statistics.median(self._seen)))
