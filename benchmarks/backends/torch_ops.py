"""PyTorch's words."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from benchmarks.backends.vocabulary import Array, ArrayOps, Value


class TorchOps(ArrayOps):
    """PyTorch tensors, with the fused operators it offers."""

    def __init__(self) -> None:
        self.torch: ModuleType = importlib.import_module("torch")
        self.f: Any = importlib.import_module("torch.nn.functional")

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        return self.torch.matmul(a.transpose(-1, -2) if transpose_a else a, b)

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        if transposed:
            return self.f.linear(x, w, b)
        return self.torch.matmul(x, w) if b is None else self.torch.addmm(b, x, w)

    def conv(
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
    ) -> Value:
        f = self.f.conv1d if rank == 1 else self.f.conv2d
        return f(x, w, b, stride=stride, padding=pad, groups=groups)

    def relu(self, x: Value) -> Value:
        return self.f.relu(x)

    def leaky_relu(self, x: Value, slope: float) -> Value:
        return self.f.leaky_relu(x, slope)

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        return self.f.gelu(x, approximate="tanh" if tanh else "none")

    def sigmoid(self, x: Value) -> Value:
        return self.torch.sigmoid(x)

    def silu(self, x: Value) -> Value:
        return self.f.silu(x)

    def tanh(self, x: Value) -> Value:
        return self.torch.tanh(x)

    def mish(self, x: Value) -> Value:
        return self.f.mish(x)

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self.torch.clamp(x, low, high)

    def hard_swish(self, x: Value) -> Value:
        return self.f.hardswish(x)

    def softmax(self, x: Value, axis: int) -> Value:
        return self.torch.softmax(x, axis)

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        return self.torch.logsumexp(x, axis)

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        return x.sum(axis, keepdim=keep)

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        return x.mean(axes)

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        return self.f.layer_norm(x, x.shape[-dims:], scale, bias, 1e-5)

    def rms_norm(self, x: Value, axis: int) -> Value:
        return x / self.torch.sqrt(self.torch.mean(x**2, axis, keepdim=True) + 1e-5)

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        return self.f.group_norm(x, groups, scale, bias, 1e-5)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return self.f.max_pool2d(x, kernel, stride, pad)

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self.f.avg_pool2d(x, kernel)

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        if q.dim() == 3:
            return self.attention(q[None], k[None], v[None], scale, causal)[0]
        return self.f.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=bool(causal))

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        return x.permute(order)

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        return list(x.chunk(parts, axis))

    def top_k(self, x: Value, k: int) -> Value:
        return x.topk(k, -1).values

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        return x.cumsum(axis)

    def einsum(self, equation: str, *operands: Value) -> Value:
        return self.torch.einsum(equation, *operands)

    def gather(self, x: Value, rows: Value) -> Value:
        return x.index_select(0, rows)

    def scatter(self, x: Value, rows: Array, updates: Value) -> Value:
        y = x.clone()
        y[self.torch.from_numpy(rows)] = updates
        return y

    def pad_reflect(self, x: Value, width: int) -> Value:
        return self.f.pad(x, [width] * 4, mode="reflect")
