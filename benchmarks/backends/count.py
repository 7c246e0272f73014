"""Shapes instead of values: what comes out of a workload, and how much arithmetic it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.backends.vocabulary import Array, Value


class CountOps:
    """Values are shapes. Counts operations: multiply-adds of contractions as two, and of everything else one
    for each elementary function or operation of an element."""

    def __init__(self) -> None:
        self.contraction = 0
        self.other = 0
        self.calls = 0

    @property
    def flops(self) -> int:
        """What a roofline counts: contractions, or the rest where there are none."""
        return self.contraction or self.other

    def _map(self, cost: int, *operands: Value) -> tuple[int, ...]:
        self.calls += 1
        shape = tuple(np.broadcast_shapes(*(o for o in operands if isinstance(o, tuple))))
        self.other += cost * math.prod(shape)
        return shape

    def _rows(self, x: Value, axes: tuple[int, ...], keep: bool, cost: int) -> tuple[int, ...]:
        self.calls += 1
        self.other += cost * math.prod(x)
        over = {a % len(x) for a in axes}
        return tuple(1 if k in over else d for k, d in enumerate(x) if keep or k not in over)

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        self.calls += 1
        m, k = (a[-1], a[-2]) if transpose_a else a[-2:]
        shape = (*np.broadcast_shapes(a[:-2], b[:-2]), m, b[-1])
        self.contraction += 2 * k * math.prod(shape)
        return shape

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        self.calls += 1
        n, k = w if transposed else w[::-1]
        shape = (*x[:-1], n)
        self.contraction += 2 * k * math.prod(shape)
        return shape if b is None else self._map(1, shape, b)

    def conv(
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
    ) -> Value:
        self.calls += 1
        size = tuple((d + 2 * pad - k) // stride + 1 for d, k in zip(x[2:], w[2:], strict=True))
        shape = (x[0], w[0], *size)
        self.contraction += 2 * math.prod(shape) * math.prod(w[1:])
        return shape if b is None else self._map(1, shape)

    def add(self, a: Value, b: Value) -> Value:
        return self._map(1, a, b)

    sub = mul = div = add

    def relu(self, x: Value) -> Value:
        return self._map(1, x)

    sigmoid = tanh = relu

    def leaky_relu(self, x: Value, slope: float) -> Value:
        return self._map(2, x)

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        return self._map(9 if tanh else 5, x)

    def silu(self, x: Value) -> Value:
        return self._map(2, x)

    def mish(self, x: Value) -> Value:
        return self._map(5, x)

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self._map(2, x)

    def hard_swish(self, x: Value) -> Value:
        return self._map(5, x)

    def softmax(self, x: Value, axis: int) -> Value:
        return self._map(5, x)

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        return self._rows(x, (axis,), False, 4)

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        return self._rows(x, (axis,), keep, 1)

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        return self._rows(x, axes, False, 1)

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        return self._map(8, x)

    def rms_norm(self, x: Value, axis: int) -> Value:
        return self._map(3, x)

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        return self._map(8, x)

    def _pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        size = tuple((d + 2 * pad - kernel) // stride + 1 for d in x[2:])
        return self._map(kernel**2, (*x[:2], *size))

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return self._pool(x, kernel, stride, pad)

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self._pool(x, kernel, kernel, 0)

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        scores = self.matmul(q, (*k[:-2], k[-1], k[-2]))
        return self.matmul(self.softmax(scores, -1), v)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        self.calls += 1
        return tuple(x[k] for k in order)

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        if math.prod(x) != math.prod(shape):
            raise ValueError(f"reshape: expected {math.prod(x)} elements; got {shape}")
        return shape

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        shape = list(x)
        shape[axis] //= parts
        return [tuple(shape)] * parts

    def top_k(self, x: Value, k: int) -> Value:
        self._map(1, x)
        return (*x[:-1], k)

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        return self._map(1, x)

    def einsum(self, equation: str, *operands: Value) -> Value:
        inputs, output = equation.split("->")
        sizes = {
            c: d
            for term, shape in zip(inputs.split(","), operands, strict=True)
            for c, d in zip(term, shape, strict=True)
        }
        self.calls += 1
        arrays = [np.broadcast_to(np.float32(0), shape) for shape in operands]
        cost = float(
            str(np.einsum_path(equation, *arrays, optimize="optimal")[1]).split("Optimized FLOP count:")[1].split()[0]
        )
        self.contraction += int(cost)
        return tuple(sizes[c] for c in output)

    def gather(self, x: Value, rows: Value) -> Value:
        self.calls += 1
        return (*rows, *x[1:])

    def scatter(self, x: Value, rows: Array, updates: Value) -> Value:
        self.calls += 1
        return x

    def pad_reflect(self, x: Value, width: int) -> Value:
        self.calls += 1
        return (*x[:-2], x[-2] + 2 * width, x[-1] + 2 * width)
