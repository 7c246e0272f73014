"""The least time an operator could take on this machine, from measured ceilings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tilewright
from tilewright.measure import Ceilings, measure_ceilings

FREE = 0.75
"""Of a cache, for a working set: all of it is never free."""


class Roofline:
    """Measured ceilings of this machine, for one or more thread counts. A ceiling is what the machine can do, so the
    best of several passes counts; passes go on, up to a limit, while threads together are far from their number
    times one of them, as happens when another program holds a core."""

    PASSES = (2, 6)

    def __init__(self, counts: Iterable[int], budget: float = 1.5) -> None:
        self._gflops: dict[int, float] = {}
        self._gb_per_s: dict[tuple[str, str, int], float] = {}
        for n in sorted(set(counts), reverse=True):
            done = n in self._gflops  # one thread is measured beside any other count
            for k in range(0 if done else self.PASSES[1]):
                if k < self.PASSES[0] or self._gflops[n] < 0.8 * n * self._gflops[1]:
                    self._keep_best(measure_ceilings(tilewright.Target.host(n), budget))

    def _keep_best(self, found: Ceilings) -> None:
        for n, rate in found.fma_gflops["float32"].items():
            self._gflops[n] = max(rate, self._gflops.get(n, 0.0))
        for b in found.bandwidth:
            key = b.level, b.kind.removeprefix("nt_"), b.threads
            self._gb_per_s[key] = max(b.gb_per_s, self._gb_per_s.get(key, 0.0))

    def gflops(self, threads: int) -> float:
        """Float32 multiply-adds, two operations each."""
        return self._gflops[threads]

    def gb_per_s(self, level: str, kind: str, threads: int) -> float:
        """``read``, or ``copy`` (bytes read plus written, by the better of ordinary and non-temporal stores)."""
        return self._gb_per_s[level, kind, threads]

    def floor_ms(self, flops: int, read: int, written: int, threads: int) -> float:
        """No kernel that does so many operations on so many bytes is faster: the longer of arithmetic at the rate of
        multiply-adds, and of moving every byte once.

        A working set that fits a cache is moved at the rate of that cache. A larger one comes from memory, except for
        as much input as the last cache holds: calls are timed back to back, and the best of all replacement
        policies would keep that much from one call to the next.
        """
        target = tilewright.Target.host(threads)
        level = level_of(read + written, target)
        kept = min(read, target.l3_bytes) if level == "dram" else 0
        memory = self._moving(level, read - kept, written, threads)
        if kept:
            memory += kept / self.gb_per_s("l3", "read", threads)
        return max(flops / self.gflops(threads), memory) / 1e6

    def _moving(self, level: str, read: int, written: int, threads: int) -> float:
        """Nanoseconds: as many bytes read as written go at the rate of a copy, further reads at the rate of reading.
        There is no figure for writing alone; it counts as a copy, which is faster."""
        copied = written + min(read, written)
        only_read = read - min(read, written)
        return copied / self.gb_per_s(level, "copy", threads) + only_read / self.gb_per_s(level, "read", threads)

    def as_json(self) -> dict[str, Any]:
        """Everything the floors rest on."""
        return {
            str(n): {
                "fma_gflops": rate,
                "gb_per_s": {f"{level} {kind}": gb for (level, kind, m), gb in self._gb_per_s.items() if m == n},
            }
            for n, rate in self._gflops.items()
        }


def level_of(nbytes: int, target: tilewright.Target) -> str:
    """The first level of memory with room for a working set."""
    sizes = {
        "l1": target.l1d_bytes * target.threads,
        "l2": target.l2_bytes * target.threads,
        "l3": target.l3_bytes,
    }
    return next((level for level, size in sizes.items() if nbytes <= FREE * size), "dram")
