"""What the benchmarks share: a clean process, side-by-side timing, tuning that resumes, ceilings, tables."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

import tilewright
from benchmarks.arguments import add_shared_arguments as add_shared_arguments
from benchmarks.arguments import default_store as default_store
from benchmarks.arguments import names as names
from benchmarks.arguments import positive as positive
from benchmarks.arguments import seconds as seconds
from benchmarks.arguments import thread_counts as thread_counts
from benchmarks.clock import WARM_S, Call
from benchmarks.clock import call_ms as call_ms
from benchmarks.roofline import Roofline as Roofline
from benchmarks.rounds import Comparison, compare
from benchmarks.text import geometric_mean as geometric_mean
from benchmarks.text import markdown as markdown
from benchmarks.text import ms_text as ms_text
from benchmarks.text import ratio_text as ratio_text
from benchmarks.text import threads_text as threads_text
from tilewright.compiled import Port
from tilewright.display import TuneDisplay, print_table
from tilewright.files import replacing
from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.graph import Graph
from tilewright.measure import device_lock
from tilewright.measure.priority import take_priority
from tilewright.schedules import jit
from tilewright.schedules.kernel import aligned
from tilewright.schedules.kernel import aligned_copy as aligned_copy
from tilewright.tasks import extract
from tilewright.tuning_logs import policy_hash, target_hash

Array = NDArray[Any]

TOLERANCE: Final = 1e-4
"""Largest error of a result, relative to its largest element (float32 against a float64 reference)."""
EXIT_USAGE: Final = 2
EXIT_CHECK: Final = 4
EXIT_INTERRUPTED: Final = 130
PAUSE_S: Final = 0.06
"""Before a side's calls, so that the threads of the side before stop spinning (OpenBLAS waits longest, about
30 ms)."""
REFERENCE_S: Final = 0.01
"""The reference kernel is called for so long between two sides, and as long before that to warm up."""
ENOUGH: Final = 0.9
"""A budget of tuning seconds counts as used at this share of it."""

_STARTED = "TILEWRIGHT_BENCHMARK"
_REMOVED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# glibc keeps freed memory: else a peer that allocates its results would be timed with its page faults
_ADDED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def restart_clean() -> None:
    """Start this program again, once, with priority and in an environment that is fair to every side; settings of OpenBLAS are
    read when NumPy is loaded, so they must be gone before."""
    if _STARTED in os.environ:
        return
    kept = {k: v for k, v in os.environ.items() if k not in _REMOVED}
    take_priority()
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**kept, **_ADDED, _STARTED: "1"})


def share_openmp() -> None:
    """Load PyTorch's OpenMP runtime, if there is PyTorch, and let our kernels use the same one."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    jit.openmp()


def provenance() -> dict[str, Any]:
    """What figures depend on besides the code: when, where, by which command, with which versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["python", *sys.argv]),
        "machine": tilewright.Target.host().model,
        "cores": tilewright.Target.host().cores,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "tilewright": tilewright.__version__,
    }


# ---------------------------------------------------------------- our side


def open_store(path: Path | None) -> tilewright.Store:
    """The store that was asked for; its folder is made."""
    path = path or default_store()
    path.parent.mkdir(parents=True, exist_ok=True)
    return tilewright.Store(path)


@dataclass(frozen=True)
class Side:
    """One competitor, ready to run: ``call`` is what is timed, ``results`` are its outputs."""

    name: str
    call: Call
    results: Callable[[], list[Array]]
    timed: Callable[[], float] | None = None
    """For a side in another process: times one round there."""

    def round_ms(self) -> float:
        """Median milliseconds of one round of calls."""
        return call_ms(self.call, warm_s=WARM_S) if self.timed is None else self.timed()


def empty(port: Port) -> Array:
    """An aligned array for an output."""
    kind = numpy_dtype(port.dtype)
    nbytes = max(1, math.prod(port.shape)) * kind.itemsize
    return aligned(nbytes).view(kind)[: math.prod(port.shape)].reshape(port.shape)


def our_side(name: str, model: tilewright.Executable, feeds: Mapping[str, Array]) -> Side:
    """A compiled model on given arrays: the timed call is its machine code and nothing else."""
    outputs = model.allocate()
    model.bind([feeds[p.name] for p in model.inputs], outputs)
    return Side(name, model.invoke, lambda: outputs)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a store holds about a graph: seconds spent on it by all runs so far, and finished measurements."""

    seconds: float
    trials: int


def known(graph: Graph, target: tilewright.Target, store: tilewright.Store) -> Tuned:
    """How much tuning a store holds for every workload of a graph together."""
    runs: dict[str, float] = {}
    trials = 0
    policy = policy_hash(json.dumps(tilewright.Policy().identity(), sort_keys=True))
    for task in extract(graph, target):
        for record in store.records(task.workload.hash, target_hash(target.fingerprint()), policy):
            runs[record.run_id] = max(runs.get(record.run_id, 0.0), record.elapsed_s)
            trials += 1
    return Tuned(sum(runs.values()), trials)


def tune(graph: Graph, target: tilewright.Target, store: tilewright.Store, budget: float) -> Tuned:
    """Tune for what is left of a budget in seconds (0: not at all); earlier runs into the same store count.

    Raises TuneError if some part of the graph has no valid candidate.
    """
    before = known(graph, target, store)
    if before.seconds >= ENOUGH * budget:
        return before
    with TuneDisplay() as display:
        result = tilewright.tune(
            graph, target, store, tilewright.Budget(budget - before.seconds), listener=display.show
        )
    if result.interrupted:
        raise KeyboardInterrupt
    return known(graph, target, store)


# ---------------------------------------------------------------- checking and timing


def relative_error(got: Array, expected: Array) -> float:
    """Largest difference by the largest expected element; infinity for another shape or a NaN."""
    if got.shape != expected.shape:
        return math.inf
    if got.size == 0:
        return 0.0
    largest = max(float(np.max(np.abs(expected))), 1e-30)
    error = float(np.max(np.abs(got.astype(np.float64) - expected))) / largest
    return error if math.isfinite(error) else math.inf


def norm_error(got: Sequence[Array], expected: Sequence[Array]) -> float:
    """Largest difference of outputs by their norm."""
    if [a.shape for a in got] != [b.shape for b in expected]:
        return math.inf
    errors = [
        float(np.linalg.norm(a.astype(np.float64) - b) / max(float(np.linalg.norm(b.astype(np.float64))), 1e-30))
        for a, b in zip(got, expected, strict=True)
    ]
    return max(e if math.isfinite(e) else math.inf for e in errors)


@functools.cache
def reference_kernel(threads: int) -> Callable[[], float]:
    """Times a small product in milliseconds: what a kernel takes that never changes says whether the machine does."""
    graph = Graph()
    a, b = graph.input("a", (256, 256)), graph.input("b", (256, 256))
    graph.output(a @ b)
    model = tilewright.compile(graph, tilewright.Target.host(threads))
    model.bind([aligned_copy(np.ones(p.shape, np.float32)) for p in model.inputs], model.allocate())
    return lambda: call_ms(model.invoke, REFERENCE_S, warm_s=REFERENCE_S)


def side_by_side(
    sides: Sequence[Side], rounds: int, pause: float = PAUSE_S, reference: Callable[[], float] | None = None
) -> Comparison:
    """Time sides in interleaved rounds, each after a pause, while no tuner measures."""

    def timed(side: Side) -> Callable[[], float]:
        def round_ms() -> float:
            time.sleep(pause)
            return side.round_ms()

        return round_ms

    return compare([(s.name, timed(s)) for s in sides], rounds, reference, device_lock)


# ---------------------------------------------------------------- showing


def write_json(path: Path | None, data: Mapping[str, Any]) -> None:
    """Replace a JSON file as a whole; nothing for no path."""
    if path is None:
        return
    with replacing(path) as stream:
        stream.write((json.dumps(data, indent=1) + "\n").encode())


def show_table(title: str, headers: Sequence[str], cells: Sequence[Sequence[str]], as_markdown: bool) -> None:
    """A table on stdout."""
    if as_markdown:
        print(markdown(title, headers, cells))
    else:
        print_table(title, headers, [[c.strip("*") for c in row] for row in cells])


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def program(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """The exit code of a benchmark, also of one that was interrupted (what it wrote by then stays)."""
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
