"""What the tests of schedules share: a workload with data, run under a schedule and compared with the oracle.

Every run writes into a poisoned output between guard bytes, and every input ends where readable memory ends:
a kernel that leaves its tensors fails the test (or crashes, which is a bug of lowering all the same).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilewright.cost_model.prior import prior_ns
from tilewright.graph.dtypes import FLOATS, int_range, numpy_dtype
from tilewright.graph.evaluate import evaluate_nodes
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.workload import Workload, canonical
from tilewright.runtime import missing_features
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.nest import Program
from tilewright.schedules.steps import Schedule, parse
from tilewright.schedules.target import Target
from tilewright.schedules.verify import verify
from tilewright.schedules.winograd import amplification
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.tasks import applies

Array = NDArray[Any]
GUARD = 192
PAGE = mmap.PAGESIZE


TARGETS = ("x86-64-v2", "zen3", "skylake-avx512")
"""Processors with vectors of 128, 256 and 512 bits: what tests ask about decisions and about code. The host only runs code."""
each_target = pytest.mark.parametrize("target", [Target.load(n).with_threads(1) for n in TARGETS], ids=TARGETS)
"""A test for each of them."""


@cache
def named(name: str, threads: int = 1) -> Target:
    """A target by name."""
    return Target.load(name).with_threads(threads)


@cache
def host(threads: int = 1) -> Target:
    """The machine the tests run on."""
    return Target.host(threads=threads)


@cache
def runnable(threads: int = 1) -> tuple[Target, ...]:
    """What code is run for: the host and, where that has vectors of 512 bits, a processor without them too."""
    here = host(threads)
    return (here, named("x86-64-v3", threads)) if "+avx512f" in here.features else (here,)


@cache
def nearest(target: Target, threads: int) -> Target:
    """A target if this machine can run its code, otherwise the host."""
    here = host(threads)
    return here if missing_features(target, here) else target.with_threads(threads)


@dataclass(frozen=True)
class Case:
    """A workload, arrays for its inputs (by canonical name) and what it should give. ``exact`` says that
    every intermediate value is a small integer, so that the result is equal, not just close."""

    workload: Workload
    arrays: Mapping[str, Array]
    expected: Array
    exact: bool = False


def case(make: Callable[[Graph], Tensor], data: Mapping[str, Array], exact: bool = False) -> Case:
    """The case of the graph that ``make`` builds; ``data`` gives arrays for its inputs by name."""
    g = Graph()
    out = make(g)
    g.output(out)
    w, names = canonical(g.nodes, out.name, g.types, g.constants)
    arrays = {c: np.array(g.constants[names[c]] if k else data[names[c]], order="C") for c, _, k in w.inputs}
    return Case(w, arrays, oracle(w, arrays), exact)


def oracle(w: Workload, arrays: Mapping[str, Array]) -> Array:
    """The unscheduled meaning, in float64 for floating-point tensors."""
    values: dict[str, Any] = {}
    for n, t, _ in w.inputs:
        values[n] = arrays[n].astype(np.float64) if t.dtype in FLOATS else arrays[n]
    evaluate_nodes(w.nodes, values)
    result: Array = values[w.output]
    return result


def values(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: str = "float32",
    whole: bool = False,
    top: int = 4,
) -> Array:
    """Random data: normals, or whole numbers up to ``top`` (sums and products of which are exact)."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype in FLOATS and not whole:
        return rng.standard_normal(shape).astype(dtype)
    low = -top if dtype in FLOATS or int_range(dtype)[0] < 0 else 0
    return rng.integers(low, top + 1, shape).astype(dtype)


def as_schedule(text: str | Schedule) -> Schedule:
    """A schedule from its text."""
    return text if isinstance(text, Schedule) else parse(text)


def at_page_end(array: Array) -> Array:
    """A copy that ends where readable memory ends, so that reading past it is a fault."""
    if not sys.platform.startswith("linux"):
        return array.copy()
    size = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    out = np.frombuffer(memory, dtype=array.dtype, count=array.size, offset=size - array.nbytes).reshape(array.shape)
    out[...] = array
    return out


def guarded(t: Any) -> tuple[Array, Array]:
    """An output array filled with NaN (or 0xFF bytes) and the bytes around it, which hold 0xA5."""
    raw = np.full(t.nbytes + 2 * GUARD + 64, 0xA5, dtype=np.uint8)
    start = GUARD + (-(raw.ctypes.data + GUARD) % 64)
    raw[start : start + t.nbytes] = 0xFF
    out = raw[start : start + t.nbytes].view(numpy_dtype(t.dtype)).reshape(t.shape)
    return out, raw


def run(c: Case, schedule: str | Schedule, threads: int = 1, target: Target | None = None) -> tuple[Array, Program]:
    """The output of a case under a schedule (on the host, or as for another target that it can run), and the loop program that made
    it."""
    built = build(c.workload, as_schedule(schedule), target or host(threads))
    verify(built.program)
    kernel = Kernel(built)
    t = c.workload.types[c.workload.output]
    out, raw = guarded(t)
    arrays = {n: at_page_end(a) for n, a in c.arrays.items()}
    for scratch in (*kernel._own.values(), kernel._thread):
        scratch[...] = 0xFF
    kernel.bind({**arrays, c.workload.output: out})
    kernel.run()
    first = out.copy()
    kernel.run()  # a second call gives the same: nothing is left over in scratch memory
    assert first.tobytes() == out.tobytes(), "the second call gives another result"
    around = np.delete(raw, slice(out.ctypes.data - raw.ctypes.data, out.ctypes.data - raw.ctypes.data + t.nbytes))
    assert (around == 0xA5).all(), "bytes around the output were written"
    for n, a in c.arrays.items():
        assert arrays[n].tobytes() == a.tobytes(), f"input {n} was written"
    return out, built.program


def difference(c: Case, out: Array, amplification: float = 1.0) -> str | None:
    """How a result differs from the expected one, or None. ``amplification`` is that of the schedule's algorithms."""
    want = c.expected
    if out.shape != want.shape:
        return f"shape {out.shape}, expected {want.shape}"
    if (c.exact and amplification == 1.0) or out.dtype.kind != "f":
        bad = ~((out == want) | ((out != out) & (want != want)))
    else:
        eps = (3e-5 if out.dtype == np.float32 else 1e-11) * amplification**0.5
        finite = want[np.isfinite(want)]
        scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0  # what cancelled was of order 1
        with np.errstate(all="ignore"):
            close = np.abs(out - want) <= eps * scale
        bad = ~(close | (out == want) | (np.isnan(out) & np.isnan(want)))
    if not bad.any():
        return None
    first = tuple(int(k) for k in np.argwhere(bad)[0]) if out.shape else ()
    what = f"got {out[first]!r}, expected {want[first]!r}"
    return f"{int(bad.sum())} of {out.size} elements differ, first at {first}: {what}"


def check(c: Case, schedule: str | Schedule, threads: int = 1, target: Target | None = None) -> Program:
    """Run and compare; the loop program, for further checks. The code is for every runnable target or, for a schedule of ``target``,
    for that one if this machine runs it."""
    for one in runnable(threads) if target is None else (nearest(target, threads),):
        out, program = run(c, schedule, threads, one)
        wrong = difference(c, out, amplification(as_schedule(schedule)))
        assert wrong is None, f"{one.cpu}: {wrong}\nschedule:\n{as_schedule(schedule)}\nprogram:\n{program}"
    return program


def check_sketches(c: Case, sketches: Iterable[Sketch], threads: int, target: Target) -> None:
    """Run and compare a sample of each sketch of a target, and what the prior likes best; all of it must apply."""
    rng = np.random.default_rng(1)
    for s in sketches:
        rows = enumerate_points(s).rows
        best = np.argsort(prior_ns(s, rows), kind="stable")[:2]
        for k in (*best, *rng.choice(len(rows), min(4, len(rows)), replace=False)):
            candidate = Candidate(s, tuple(int(x) for x in rows[k]))
            assert applies(candidate), f"{s.name} {s.row(rows[k])}: what the constraints let pass is refused"
            check(c, candidate.schedule, threads, target)
