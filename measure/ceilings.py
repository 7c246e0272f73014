"""The ceilings of a machine, measured: multiply-add rate, and bandwidth at each level of memory.

A roofline with numbers from a data sheet flatters or damns every kernel alike; these are what code on this
machine reaches, on one and on all threads.
"""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from tilewright.measure.ceilings_ir import FMA_ROUNDS, LLVM, STREAMS, UNROLL, ceilings_module, chains
from tilewright.measure.lock import device_lock
from tilewright.measure.timing import Clock, Subject
from tilewright.schedules import jit
from tilewright.schedules.target import Target

DRAM_CACHES: Final = 4
"""A buffer for main memory is this many times the last cache."""
LEAST_DRAM: Final = 64 << 20
_CALL_NS: Final = 200_000
_HOT: Final = "hot"


@final
@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per nanosecond (GB/s) read plus written."""

    level: str
    """`l1`, `l2`, `l3` or `dram`."""
    kind: str
    """`read`, `copy`, or `nt_copy` (stores past the caches)."""
    threads: int
    nbytes: int
    """Size of the buffers of all threads together."""
    gb_per_s: float


@final
@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a machine reaches at best."""

    fma_gflops: dict[str, dict[int, float]]
    """GFLOP/s of fused multiply-adds (two operations each), by data type and number of threads."""
    bandwidth: tuple[Bandwidth, ...]
    seconds: float
    """How long measuring took."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON (thread counts become text, as JSON has no other keys)."""
        rates = {d: {str(n): rate for n, rate in by.items()} for d, by in self.fma_gflops.items()}
        return {
            **asdict(self),
            "fma_gflops": rates,
            "bandwidth": [asdict(b) for b in self.bandwidth],
            "disturbed": self.disturbed(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What was measured and its value with a unit, for people."""
        out = [
            (f"{dtype} multiply-add, {_threads(n)}", f"{rate:.1f} GFLOP/s")
            for dtype, by in self.fma_gflops.items()
            for n, rate in by.items()
        ]
        for b in self.bandwidth:
            name = f"{b.level.upper()} {b.kind.replace('nt_', 'non-temporal ')}, {_threads(b.threads)}"
            out.append((name, f"{b.gb_per_s:.1f} GB/s"))
        return out

    def disturbed(self) -> list[str]:
        """What several threads together did slower than one, as texts: another program had a core meanwhile, and it is no ceiling."""
        out = [
            f"{dtype} multiply-add"
            for dtype, by in self.fma_gflops.items()
            if any(rate < by[min(by)] for rate in by.values())
        ]
        one = {(b.level, b.kind): b.gb_per_s for b in self.bandwidth if b.threads == 1}
        out += [
            f"{b.level.upper()} {b.kind.replace('nt_', 'non-temporal ')}"
            for b in self.bandwidth
            if b.gb_per_s < one.get((b.level, b.kind), 0.0)
        ]
        return out

    def gflops(self, dtype: str, threads: int) -> float:
        """The rate on a number of threads. Raises KeyError if it was not measured."""
        return self.fma_gflops[dtype][threads]

    def gb_per_s(self, level: str, kind: str, threads: int) -> float:
        """A bandwidth. Raises KeyError if it was not measured."""
        for b in self.bandwidth:
            if (b.level, b.kind, b.threads) == (level, kind, threads):
                return b.gb_per_s
        got = f"{level}, {kind}, {threads}"
        raise KeyError(f"bandwidth: expected a level, kind and thread count that was measured; got {got}")


AGAIN = 10
"""How often a rate that another program disturbed is measured again."""
SCALES = 0.9


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def levels(target: Target, threads: int) -> dict[str, int]:
    """Bytes for each thread that fit a level of memory but not the one before it."""
    out = {"l1": target.l1d_bytes // 2}
    if target.l2_bytes:
        out["l2"] = target.l2_bytes // 2
    if target.l3_bytes:
        out["l3"] = max(target.l3_bytes // (2 * threads), target.l2_bytes)
    last = max(target.l3_bytes, target.l2_bytes * threads)
    out["dram"] = max(DRAM_CACHES * last, LEAST_DRAM) // threads
    return out


def measure_ceilings(target: Target, seconds: float = 3.0, lock_file: Path | None = None) -> Ceilings:
    """Measure in about ``seconds`` (more where a single pass over memory takes longer), holding the device.

    Raises CompileError if the target cannot run here and MemoryError if the buffers do not fit.
    """
    with device_lock(lock_file):
        return _Probe(target, seconds).run()


class _Probe:
    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self.code = jit.compile_text(ceilings_module(target), target)
        self.clock = Clock(target)
        self.counts = [1, target.threads] if target.threads > 1 else [1]
        probes = len(self.counts) * (len(LLVM) + len(STREAMS) * len(levels(target, 1)))
        self.budget = seconds / probes

    def run(self) -> Ceilings:
        start = time.perf_counter()
        rates = {d: self._scaling(d) for d in LLVM}
        found: list[Bandwidth] = []
        largest = max(n * max(levels(self.target, n).values()) for n in self.counts)
        source, sink = _Pages(largest), _Pages(largest)
        one: dict[tuple[str, str], float] = {}
        for threads in self.counts:
            for level, share in levels(self.target, threads).items():
                for kind in STREAMS:
                    b = self.stream(kind, level, threads, share, source, sink)
                    for _ in range(AGAIN):  # as above
                        if b.gb_per_s >= one.setdefault((level, kind), b.gb_per_s):
                            break
                        b = max(b, self.stream(kind, level, threads, share, source, sink), key=lambda x: x.gb_per_s)
                    found.append(b)
        return Ceilings(rates, tuple(found), time.perf_counter() - start)

    def _scaling(self, dtype: str) -> dict[int, float]:
        """GFLOP/s by thread count. A rate of all threads that is far from the multiple of one thread's means that another program
        had a core meanwhile: it is measured again, a few times, and the best counts."""
        rates = {n: self.fma(dtype, n) for n in self.counts}
        for _ in range(AGAIN):
            if rates[self.counts[-1]] >= SCALES * self.counts[-1] * rates[1]:
                break
            rates[self.counts[-1]] = max(rates[self.counts[-1]], self.fma(dtype, self.counts[-1]))
        return rates

    def best(self, name: str, threads: int, args: ctypes.Array[ctypes.c_int64], calls: int) -> float:
        """Least nanoseconds of one call within the budget: a ceiling is what the machine *can* do."""
        suffix = "one" if threads == 1 else "all"
        subject = Subject(self.code.address(f"{name}_{suffix}"), (ctypes.addressof(args),))
        best = self.clock.sample(subject, _HOT, calls)
        end = time.perf_counter() + self.budget
        while time.perf_counter() < end:
            best = min(best, self.clock.sample(subject, _HOT, calls))
        return best

    def fma(self, dtype: str, threads: int) -> float:
        """GFLOP/s."""
        data = np.full(64, 0.5, dtype=dtype)
        aligned = data.ctypes.data + (-data.ctypes.data % 64)
        args = (ctypes.c_int64 * 4)(aligned, 0, 0, 0)
        flops = 2 * chains(self.target) * self.target.lanes(dtype) * FMA_ROUNDS * threads
        return flops / self.best(f"fma_{dtype}", threads, args, 1)

    def stream(self, kind: str, level: str, threads: int, share: int, source: _Pages, sink: _Pages) -> Bandwidth:
        """One bandwidth: each thread streams ``share`` bytes; a copy has half of them on either side."""
        step = max(16, self.target.vector_bits // 8) * UNROLL
        part = share if kind == "read" else share // 2
        part = max(step, part // step * step)
        moved = part * (1 if kind == "read" else 2)
        repeats = max(1, math.ceil(_CALL_NS * 50 / moved)) if level != "dram" else 1
        args = (ctypes.c_int64 * 4)(source.address, sink.address, part, repeats)
        ns = self.best(kind, threads, args, 1)
        return Bandwidth(level, kind, threads, moved * threads, moved * threads * repeats / ns)


@final
class _Pages:
    """Bytes at a page boundary that really are in memory."""

    def __init__(self, size: int) -> None:
        self._raw = np.full(size + 8192, 1, dtype=np.uint8)
        self.address = int(self._raw.ctypes.data) + (-int(self._raw.ctypes.data) % 4096)
