"""How one side of a comparison is timed, in whichever process it runs (standard library only)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

Call = Callable[[], object]

ROUND_S: Final = 0.04
ROUND_CALLS: Final = 5
WARM_S: Final = 0.1
"""Before a round: threads that were asleep may wake on one core, and a busy system takes most of this to part them."""


def call_ms(call: Call, min_s: float = ROUND_S, min_calls: int = ROUND_CALLS, warm_s: float = 0.0) -> float:
    """Median milliseconds of one call: at least two calls and so many seconds to warm up, then calls for at least so
    long and so many."""
    clock = time.perf_counter
    warm = clock() + warm_s
    call()
    call()
    while clock() < warm:
        call()
    samples: list[float] = []
    start = clock()
    while True:
        before = clock()
        call()
        after = clock()
        samples.append(after - before)
        if after - start >= min_s and len(samples) >= min_calls:
            return statistics.median(samples) * 1e3
