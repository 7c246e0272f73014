"""Tune one dense layer for a few seconds, compile it from its record, compare it with NumPy.

``--time`` is the tuning budget.
"""

from __future__ import annotations

import argparse

import numpy as np

import tilewright
from tilewright.graph import ops


def dense(rows: int, inner: int, columns: int) -> tilewright.Graph:
    """``relu(x @ w + b)``: x is (rows, inner), the weights w and the bias b are constants."""
    rng = np.random.default_rng(0)
    graph = tilewright.Graph()
    x = graph.input("x", (rows, inner))
    w = graph.constant(rng.standard_normal((inner, columns), dtype=np.float32), "w")
    b = graph.constant(rng.standard_normal(columns, dtype=np.float32), "b")
    graph.output(ops.relu(ops.matmul(x, w) + b), "y")
    return graph


def main() -> None:
    """Tune, compile, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=5.0, help="seconds of tuning")
    seconds = parser.parse_args().time
    graph = dense(128, 256, 384)
    target = tilewright.Target.host()
    with tilewright.Store(":memory:") as store:
        result = tilewright.tune(graph, target, store, tilewright.Budget(seconds))
        model = tilewright.compile(graph, target, store, on_miss="error")  # from the record; measures nothing
    x = np.random.default_rng(1).standard_normal((128, 256), dtype=np.float32)
    (y,) = model(x)
    w, b = (graph.constants[name].astype(np.float32) for name in ("w", "b"))
    expected = np.maximum(x @ w + b, 0)
    error = float(np.abs(y - expected).max() / np.abs(expected).max())
    kernel = model.compiled.kernels[0]
    print(f"{kernel.describe}: {result.trials} measurements, relative error {error:.1e}")
    print(f"default {result.default_ns / 1e3:.1f} us, best {result.best_ns / 1e3:.1f} us")
    print(f"the schedule that won ({kernel.why}):\n{kernel.schedule}")
    if error > 1e-4:
        raise SystemExit(4)


if __name__ == "__main__":
    main()
