"""Running sums, the best of rows, sums of several products, and operators that mostly move elements."""

from __future__ import annotations

import numpy as np

from benchmarks.backends import Ops, Value
from benchmarks.workloads.builder import Builder
from benchmarks.workloads.workload import Input


def add_selection(b: Builder) -> None:
    """All of the suite."""
    for rows, n, k in ((1, 8400, 300), (1, 100_000, 100), (64, 1000, 5), (1, 32_000, 50)):
        _top_k(b, rows, n, k)
    _best_of_a_detector(b, 8400, 80, 300)
    for shape, axis in (((4000, 256), 0), ((1, 1_000_000), 1), ((129, 4097), 1)):
        name = f"cumsum_{shape[0]}x{shape[1]}_axis{axis}"
        b.given(name, [shape], lambda o, x, axis=axis: o.cumulative_sum(x, axis))
    b.given("einsum_128_chain", [(128, 128)] * 3, lambda o, *t: o.einsum("ij,jk,kl->il", *t))
    b.given(
        "einsum_128_batch", [(8, 128, 128), (128, 128), (8, 128, 128)], lambda o, *t: o.einsum("bij,jk,bkl->bil", *t)
    )
    for rows, width, count in ((1000, 64, 5000), (30_000, 768, 512), (50_000, 128, 4096)):
        rows, width, count = b.cut(rows), b.cut(width), b.cut(count)
        name = f"gather_{rows}x{width}_{count}"
        table = Input("x", (rows, width), read=count * width)
        b.add(name, [table, Input("rows", (count,), below=rows)], lambda o, x, i: o.gather(x, i))
    for rows, width, count in ((1000, 64, 200), (4096, 256, 512), (10_000, 128, 4000)):
        _scatter(b, b.cut(rows), b.cut(width), b.cut(count))
    for channels, size, width in ((3, 224, 3), (64, 56, 1), (32, 256, 2)):
        image = (1, channels, size, size)
        b.given(f"pad_{channels}x{size}_{width}", [image], lambda o, x, width=width: o.pad_reflect(x, width))


def _top_k(b: Builder, rows: int, n: int, k: int) -> None:
    size = b.cut(n)
    best = min(k, size)
    b.given(f"topk_{rows}x{n}_{k}", [(rows, n)], lambda o, x: o.top_k(x, best))


def _best_of_a_detector(b: Builder, places: int, classes: int, k: int) -> None:
    """The best scores of all places and classes of a detector, as its post-processing chooses them."""
    size = b.cut(places) * b.cut(classes)
    best = min(k, size)

    def body(o: Ops, x: Value) -> Value:
        return o.top_k(o.reshape(x, (1, size)), best)

    b.given(f"topk_{places}x{classes}_{k}", [(places, classes)], body)


def _scatter(b: Builder, rows: int, width: int, count: int) -> None:
    where = np.random.default_rng(0).permutation(rows)[: min(count, rows)]
    inputs = [Input("x", (rows, width)), Input("updates", (len(where), width))]
    b.add(f"scatter_{rows}x{width}_{count}", inputs, lambda o, x, u: o.scatter(x, where, u))
