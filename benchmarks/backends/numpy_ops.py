"""NumPy's words: the float64 reference, and a peer in float32."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.backends.vocabulary import Array, ArrayOps, Value, causal_mask


class NumpyOps(ArrayOps):
    """NumPy arrays in whatever precision they come: float64 is the reference, float32 a peer. ``out`` takes
    the result of a workload that is one matrix product or transpose."""

    def __init__(self, out: Array | None = None, xp: Any = np, erf: Any = None) -> None:
        self.out = out
        self.xp = xp
        self.erf = importlib.import_module("scipy.special").erf if erf is None else erf

    def _product(self, a: Value, b: Value) -> Value:
        return self.xp.matmul(a, b) if self.out is None else np.matmul(a, b, out=self.out)

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        return self._product(self.xp.swapaxes(a, -1, -2) if transpose_a else a, b)

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        y = self._product(x, w.T if transposed else w)
        if b is None:
            return y
        y += b
        return y

    def conv(
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
    ) -> Value:
        x = np.pad(x, ((0, 0), (0, 0), *[(pad, pad)] * rank)) if pad else x
        n, c, *_ = x.shape
        o, _, *kernel = w.shape
        size = [(d - k) // stride + 1 for d, k in zip(x.shape[2:], kernel, strict=True)]
        if groups == 1:
            windows = np.lib.stride_tricks.sliding_window_view(x, kernel, tuple(range(2, 2 + rank)))
            windows = windows[(slice(None), slice(None), *[slice(None, None, stride)] * rank)]
            columns = np.ascontiguousarray(np.moveaxis(windows, range(2 + rank, 2 + 2 * rank), range(2, 2 + rank)))
            y = np.matmul(w.reshape(o, -1), columns.reshape(n, -1, math.prod(size))).reshape(n, o, *size)
        elif groups == c == o:
            y = np.zeros((n, o, *size), x.dtype)
            for tap in np.ndindex(*kernel):
                part = tuple(slice(t, t + stride * (s - 1) + 1, stride) for t, s in zip(tap, size, strict=True))
                y += x[(slice(None), slice(None), *part)] * w[(slice(None), 0, *tap)].reshape(o, *[1] * rank)
        else:
            raise NotImplementedError(f"conv with {groups} groups of {c} channels")
        if b is not None:
            y += b.reshape(o, *[1] * rank)
        return y

    def relu(self, x: Value) -> Value:
        return self.xp.maximum(x, 0)

    def leaky_relu(self, x: Value, slope: float) -> Value:
        return self.xp.maximum(x, slope * x)

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        if tanh:
            return 0.5 * x * (1 + self.xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1 + self.erf(x * math.sqrt(0.5)))

    def sigmoid(self, x: Value) -> Value:
        return 1 / (1 + self.xp.exp(-x))

    def silu(self, x: Value) -> Value:
        return x / (1 + self.xp.exp(-x))

    def tanh(self, x: Value) -> Value:
        return self.xp.tanh(x)

    def mish(self, x: Value) -> Value:
        return x * self.xp.tanh(self.xp.logaddexp(x, 0))

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self.xp.clip(x, low, high)

    def hard_swish(self, x: Value) -> Value:
        return x * self.xp.clip(x / 6 + 0.5, 0, 1)

    def softmax(self, x: Value, axis: int) -> Value:
        y = self.xp.exp(x - x.max(axis=axis, keepdims=True))
        y /= y.sum(axis=axis, keepdims=True)
        return y

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        top = x.max(axis=axis, keepdims=True)
        return self.xp.log(self.xp.exp(x - top).sum(axis=axis)) + top.squeeze(axis)

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        return x.sum(axis=axis, keepdims=keep)

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        return x.mean(axis=axes)

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        axes = tuple(range(-dims, 0))
        y = x - x.mean(axis=axes, keepdims=True)
        y *= 1 / self.xp.sqrt((y * y).mean(axis=axes, keepdims=True) + 1e-5)
        y *= scale
        y += bias
        return y

    def rms_norm(self, x: Value, axis: int) -> Value:
        return x / self.xp.sqrt((x * x).mean(axis=axis, keepdims=True) + 1e-5)

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        y = x.reshape(x.shape[0], groups, -1)
        y = y - y.mean(axis=-1, keepdims=True)
        y *= 1 / self.xp.sqrt((y * y).mean(axis=-1, keepdims=True) + 1e-5)
        return y.reshape(x.shape) * scale + bias

    def _windows(self, x: Value, kernel: int, stride: int) -> Value:
        return np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf) if pad else x
        return self._windows(x, kernel, stride).max(axis=(4, 5))

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self._windows(x, kernel, kernel).mean(axis=(4, 5))

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        scores = self.xp.matmul(q, self.xp.swapaxes(k, -1, -2))
        scores *= scale
        if causal:
            scores += causal_mask(causal)
        return self.xp.matmul(self.softmax(scores, -1), v)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        if self.out is not None:
            np.copyto(self.out, x.transpose(order))
            return self.out
        return x.transpose(order)

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        return list(self.xp.split(x, parts, axis))

    def top_k(self, x: Value, k: int) -> Value:
        if k == x.shape[-1]:
            return -np.sort(-x, axis=-1)
        return -np.sort(np.partition(-x, k, axis=-1)[..., :k], axis=-1)

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        return self.xp.cumsum(x, axis=axis)

    def einsum(self, equation: str, *operands: Value) -> Value:
        return self.xp.einsum(equation, *operands, optimize=True)

    def gather(self, x: Value, rows: Value) -> Value:
        return x[rows.astype(np.int64)]

    def scatter(self, x: Value, rows: Array, updates: Value) -> Value:
        y = x.copy()
        y[rows] = updates
        return y

    def pad_reflect(self, x: Value, width: int) -> Value:
        return self.xp.pad(x, [(0, 0)] * (x.ndim - 2) + [(width, width)] * 2, mode="reflect")
