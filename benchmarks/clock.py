"""How one side of a comparison is timed, in whichever process it runs (standard library only)."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

Call = Callable[[], object]

ROUND_S: Final = 0.04
ROUND_CALLS: Final = 5
WARM_S: Final = 0.05
"""Before a round."""


def call_ms(call: Call, min_s: float = ROUND_S, min_calls: int = ROUND_CALLS, warm_s: float = 0.0) -> float:
    """Median milliseconds of one call: at least two calls and so many seconds to warm up, then calls for at least so
    long and so many."""
    clock = time.perf_counter
    with parted_threads() if warm_s else contextlib.nullcontext():
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


@contextlib.contextmanager
def parted_threads() -> Iterator[None]:
    """Keep the caller on one core and the other threads of this process, in order, on the others.

    Threads that were asleep may wake on the core of the one that wakes them, and where other programs are busy the
    system can leave them there for a tenth of a second: a side of two threads would look like one of one. Once on
    different cores they stay there, so this is for warming up only. Threads that a library has bound are left alone.
    """
    tasks = Path("/proc/self/task")
    before: dict[int, set[int]] = {}
    if tasks.exists() and hasattr(os, "sched_setaffinity"):
        usable = os.sched_getaffinity(0)
        first, *others = sorted(usable)
        here = threading.get_native_id()
        for k, tid in enumerate(sorted(int(t.name) for t in tasks.iterdir() if int(t.name) != here)):
            with contextlib.suppress(OSError):  # it has ended
                if others and os.sched_getaffinity(tid) == usable:
                    os.sched_setaffinity(tid, {others[k % len(others)]})
                    before[tid] = usable
        if before:
            os.sched_setaffinity(here, {first})
            before[here] = usable
    try:
        yield
    finally:
        for tid, cores in before.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, cores)
