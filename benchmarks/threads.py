"""Several threads on the same compiled models: how many results are wrong, and what a single thread pays for that being allowed.

    python benchmarks/threads.py

Every thread has inputs of its own, whose right outputs were computed before by one thread, and compares bit by bit. The cost is that
of taking a frame for each call and giving it back (``tilewright.frames``): calls of the same model with and without that, in turn,
and the median of the ratios of neighbours with its 95 % interval.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

import tilewright
from tilewright.compiled import Array, Compiled
from tilewright.frames import Binding, Frames
from tilewright.graph import ops
from tilewright.measure.stats import Median, median
from tilewright.runtime import MODEL, PREPARE, Executable

THREADS, CALLS = 8, 10_000


class OneFrame(Frames):
    """Frames without the guard: every call runs in the first one."""

    def call(self, binding: Binding) -> None:
        self._idle[0].call(binding)


class Unguarded(Executable):
    """A model that one thread alone may call."""

    def __init__(self, compiled: Compiled) -> None:
        super().__init__(compiled)
        self._frames = OneFrame(compiled, self._code.function(MODEL))
        self._frames.prepare(self._code.function(PREPARE))


def convolutions(threads: int) -> Executable:
    """Two convolutions, a residual, a pool, a product and a softmax, with what lies between them in the arena."""
    rng = np.random.default_rng(0)
    g = tilewright.Graph()
    x = g.input("x", (1, 8, 20, 20))
    w = g.constant(rng.standard_normal((8, 8, 3, 3), dtype=np.float32) / 8)
    y = ops.relu(ops.conv(x, w, pads=(1, 1, 1, 1)))
    z = ops.add(ops.conv(y, w, pads=(1, 1, 1, 1)), y)
    flat = ops.reshape(ops.average_pool(z, ops.Window((2, 2), (2, 2))), (1, 800))
    g.output(ops.softmax(ops.matmul(flat, g.constant(rng.standard_normal((800, 10), dtype=np.float32) / 28)), -1), "y")
    return tilewright.compile(g, tilewright.Target.host(threads=threads))


def products(threads: int) -> Executable:
    """Three matrix products with what lies between them in the arena."""
    rng = np.random.default_rng(1)
    g = tilewright.Graph()
    h = g.input("x", (32, 128))
    for _ in range(3):
        h = ops.tanh(ops.matmul(h, g.constant(rng.standard_normal((128, 128), dtype=np.float32) / 11)))
    g.output(h, "y")
    return tilewright.compile(g, tilewright.Target.host(threads=threads))


def attention(threads: int) -> Executable:
    """Scores, softmax and a product; a residual, and another softmax."""
    g = tilewright.Graph()
    x = g.input("x", (4, 32, 32))
    weights = ops.softmax(ops.matmul(x, ops.transpose(x, (0, 2, 1))), -1)
    g.output(ops.softmax(ops.add(ops.matmul(weights, x), x), -1), "y")
    return tilewright.compile(g, tilewright.Target.host(threads=threads))


MODELS: dict[str, Callable[[int], Executable]] = {
    "convolutions": convolutions, "products": products, "attention": attention,
}  # fmt: skip


def wrong_results(model: Executable, threads: int, calls: int) -> int:
    """Calls with a wrong output when ``threads`` threads make ``calls`` calls each."""
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(model.inputs[0].shape, dtype=np.float32) for _ in range(threads)]
    right = [model(x)[0] for x in inputs]
    wrong = [0] * threads
    together = threading.Barrier(threads)

    def work(k: int) -> None:
        x, want = inputs[k], right[k].tobytes()
        together.wait()
        for _ in range(calls):
            wrong[k] += model(x)[0].tobytes() != want

    team = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    return sum(wrong)


def guard_cost(compiled: Compiled, rounds: int = 801, round_s: float = 0.003) -> tuple[float, Median]:
    """Seconds of a call, and what it takes with the guard over what it takes without, in neighbouring rounds."""
    rng = np.random.default_rng(3)
    guarded, bare = Executable(compiled), Unguarded(compiled)
    x: Array = rng.standard_normal(compiled.inputs[0].shape, dtype=np.float32)

    def seconds(model: Executable, calls: int) -> float:
        before = time.perf_counter()
        for _ in range(calls):
            model(x)
        return (time.perf_counter() - before) / calls

    calls = max(1, int(round_s / min(seconds(m, 50) for m in (guarded, bare, guarded, bare))))
    ratios, times = [], []
    for k in range(rounds):
        took = {m: seconds(m, calls) for m in ((guarded, bare) if k % 2 else (bare, guarded))}
        times.append(took[guarded])
        ratios.append(took[guarded] / took[bare])
    return statistics.median(times), median(ratios)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=THREADS, help="Python threads that call")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of each thread")
    parser.add_argument("--model-threads", type=int, default=1, help="threads that the model's kernels use")
    options = parser.parse_args()
    for name, make in MODELS.items():
        model = make(options.model_threads)
        wrong = wrong_results(model, options.threads, options.calls)
        call, ratio = guard_cost(model.compiled)
        print(
            f"{name}: {options.threads} threads x {options.calls} calls: {wrong} wrong; a call of one thread takes "
            f"{call * 1e6:.1f} us, the guard costs {ratio.value - 1:+.2%} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})"
        )


if __name__ == "__main__":
    main()
