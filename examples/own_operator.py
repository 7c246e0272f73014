"""An operator of one's own, in the tensor language: one step of all-pairs shortest paths.

``c[i, j] = min over k of a[i, k] + b[k, j]`` looks like a matrix product and is none. Written as index
notation it gets a schedule space, a tuned kernel and a checked result. ``--time`` is the tuning budget.
"""

from __future__ import annotations

import argparse

import numpy as np

import tilewright
from tilewright.search_space.space import space
from tilewright.tasks import extract


def min_plus(a: tilewright.Tensor, b: tilewright.Tensor) -> tilewright.Tensor:
    """``c[i, j] = min over k of a[i, k] + b[k, j]`` of an (M, K) and a (K, N) tensor: (M, N)."""
    (m, k), n = a.shape, b.shape[1]
    return a.graph.compute((m, n), lambda i, j, r: a[i, r] + b[r, j], reduce=(k,), reducer="min", name="min_plus")


def main() -> None:
    """Define, look at the space, tune, compile, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=5.0, help="seconds of tuning")
    seconds = parser.parse_args().time
    graph = tilewright.Graph()
    a, b = graph.input("a", (96, 128)), graph.input("b", (128, 160))
    graph.output(min_plus(a, b), "c")

    target = tilewright.Target.host()
    (task,) = extract(graph, target)
    for sketch in space(task.workload, target).sketches:
        print(f"{sketch.size:8d} points  {sketch.name}")

    with tilewright.Store(":memory:") as store:
        result = tilewright.tune(graph, target, store, tilewright.Budget(seconds))
        model = tilewright.compile(graph, target, store)
    rng = np.random.default_rng(0)
    x, y = rng.random((96, 128), dtype=np.float32), rng.random((128, 160), dtype=np.float32)
    (c,) = model(x, y)
    expected = (x[:, :, None] + y[None, :, :]).min(axis=1)
    print(f"{result.trials} measurements")
    print(f"default {result.default_ns / 1e3:.1f} us, best {result.best_ns / 1e3:.1f} us")
    print(model.compiled.kernels[0].schedule)
    if not np.array_equal(c, expected):
        raise SystemExit(4)


if __name__ == "__main__":
    main()
