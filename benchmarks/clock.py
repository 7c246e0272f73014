"""How one side of a comparison is timed, in whichever process it runs (standard library only)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

Call = Callable[[], object]

ROUND_S: Final = 0.04
ROUND_CALLS: Final = 5


def call_ms(call: Call, min_s: float = ROUND_S, min_calls: int = ROUND_CALLS) -> float:
    """Median milliseconds of one call: two calls to warm up, then calls for at least so long and so many."""
    call()
    call()
    samples: list[float] = []
    clock = time.perf_counter
    start = clock()
    while True:
        before = clock()
        call()
        after = clock()
        samples.append(after - before)
        if after - start >= min_s and len(samples) >= min_calls:
            return statistics.median(samples) * 1e3
