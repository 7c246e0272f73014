"""Our own words: a Tilewright graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.backends.vocabulary import Array, Value, causal_mask
from tilewright.graph import ops
from tilewright.graph.graph import Graph, Tensor


class TilewrightOps:
    """Tensors of a Tilewright graph."""

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        return ops.matmul(a, b, transpose_a=transpose_a)

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        y = ops.matmul(x, w, transpose_b=transposed)
        return y if b is None else ops.add(y, b)

    def conv(
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
    ) -> Value:
        return ops.conv(x, w, b, [stride] * rank, None, [pad] * 2 * rank, groups)

    def add(self, a: Value, b: Value) -> Value:
        return ops.add(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return ops.sub(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return ops.mul(a, b)

    def div(self, a: Value, b: Value) -> Value:
        return ops.div(a, b)

    def relu(self, x: Value) -> Value:
        return ops.relu(x)

    def leaky_relu(self, x: Value, slope: float) -> Value:
        return ops.leaky_relu(x, slope)

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        return ops.gelu(x, tanh)

    def sigmoid(self, x: Value) -> Value:
        return ops.sigmoid(x)

    def silu(self, x: Value) -> Value:
        return ops.silu(x)

    def tanh(self, x: Value) -> Value:
        return ops.tanh(x)

    def mish(self, x: Value) -> Value:
        return ops.mish(x)

    def clip(self, x: Value, low: float, high: float) -> Value:
        return ops.clip(x, low, high)

    def hard_swish(self, x: Value) -> Value:
        return ops.hard_swish(x)

    def softmax(self, x: Value, axis: int) -> Value:
        return ops.softmax(x, axis)

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        return ops.reduce_log_sum_exp(x, [axis], keepdims=False)

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        return ops.reduce_sum(x, [axis], keepdims=keep)

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        return ops.reduce_mean(x, axes, keepdims=False)

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        return ops.layer_norm(x, scale, bias, -dims)[0]

    def rms_norm(self, x: Value, axis: int) -> Value:
        mean = ops.reduce_mean(ops.mul(x, x), [axis])
        return ops.div(x, ops.sqrt(ops.add(mean, 1e-5)))

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        return ops.group_norm(x, scale, bias, groups)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return ops.max_pool(x, ops.Window([kernel] * 2, [stride] * 2, pads=[pad] * 4))

    def average_pool(self, x: Value, kernel: int) -> Value:
        return ops.average_pool(x, ops.Window([kernel] * 2, [kernel] * 2))

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        scores = ops.mul(ops.matmul(q, k, transpose_b=True), scale)
        if causal:
            scores = ops.add(scores, scores.graph.constant(causal_mask(causal), "mask"))
        return ops.matmul(ops.softmax(scores, -1), v)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        return ops.transpose(x, order)

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return ops.reshape(x, shape)

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        return list(ops.split(x, [x.shape[axis] // parts] * parts, axis))

    def top_k(self, x: Value, k: int) -> Value:
        return ops.top_k(x, k)[0]

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        return ops.cumulative_sum(x, axis)

    def einsum(self, equation: str, *operands: Value) -> Value:
        return ops.einsum(equation, *operands)

    def gather(self, x: Value, rows: Value) -> Value:
        return ops.gather(x, rows, 0)

    def scatter(self, x: Value, rows: Array, updates: Value) -> Value:
        width = x.type.size // x.shape[0]
        places = rows[:, None] * width + np.arange(width)
        return ops.scatter_constant(x, updates, places)

    def pad_reflect(self, x: Value, width: int) -> Value:
        around = [0] * (x.rank - 2) + [width] * 2
        return ops.pad(x, around, around, mode="reflect")


def tilewright_graph(tensors: Sequence[tuple[str, tuple[int, ...], Array | str | None]], body: Any) -> Graph:
    """The graph of a workload: constants where an array is given, else inputs of the type named (float32)."""
    g = Graph()
    values: list[Tensor] = [
        g.constant(array, name) if isinstance(array, np.ndarray) else g.input(name, shape, array or "float32")
        for name, shape, array in tensors
    ]
    g.output(body(TilewrightOps(), *values), "y")
    return g
