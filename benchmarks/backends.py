"""One vocabulary of operators, spoken by every side of a comparison.

A workload is written once, as a function of one of these classes and of its tensors. NumPy (also the float64
reference), PyTorch, ONNX, JAX and Tilewright each say the same operator in their own best words; a counting
class gives output shapes and arithmetic. So the sides cannot drift apart.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.graph import ops
from tilewright.graph.graph import Graph, Tensor

Array = NDArray[Any]
Value = Any
"""A tensor of one side: an array, a shape, a name in an ONNX graph, ..."""

MASKED = -1e9
"""Added to attention scores that a causal mask hides."""


class Ops(Protocol):
    """What a workload may ask for. Scalars are Python numbers."""

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        """Matrix product over leading batch dimensions."""

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        """``x @ w.T + b`` (``x @ w + b`` if not ``transposed``); ``rank`` is that of ``x``."""

    def conv(
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
    ) -> Value:
        """Convolution with ``rank`` spatial dimensions, all treated alike; groups are 1 or the channels."""

    def add(self, a: Value, b: Value) -> Value:
        """``a + b`` with broadcasting."""

    def sub(self, a: Value, b: Value) -> Value:
        """``a - b``."""

    def mul(self, a: Value, b: Value) -> Value:
        """``a * b``."""

    def div(self, a: Value, b: Value) -> Value:
        """``a / b``."""

    def relu(self, x: Value) -> Value:
        """``max(x, 0)``."""

    def leaky_relu(self, x: Value, slope: float) -> Value:
        """``x``, or ``slope * x`` where negative."""

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        """Gaussian error linear unit, by ``erf`` or by ``tanh``."""

    def sigmoid(self, x: Value) -> Value:
        """``1 / (1 + exp(-x))``."""

    def silu(self, x: Value) -> Value:
        """``x * sigmoid(x)``."""

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent."""

    def mish(self, x: Value) -> Value:
        """``x * tanh(log(1 + exp(x)))``."""

    def clip(self, x: Value, low: float, high: float) -> Value:
        """``min(max(x, low), high)``."""

    def hard_swish(self, x: Value) -> Value:
        """``x * clip(x / 6 + 0.5, 0, 1)``."""

    def softmax(self, x: Value, axis: int) -> Value:
        """Along one axis."""

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        """``log(sum(exp(x)))`` along one axis, which goes away."""

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        """Along one axis."""

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        """Over axes, which go away."""

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        """Over the last ``dims`` dimensions, epsilon 1e-5."""

    def rms_norm(self, x: Value, axis: int) -> Value:
        """``x / sqrt(mean(x**2) + 1e-5)`` along one axis."""

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        """Of a matrix (samples, channels), epsilon 1e-5."""

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        """Of (n, c, h, w)."""

    def average_pool(self, x: Value, kernel: int) -> Value:
        """Of (n, c, h, w), windows side by side."""

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        """``softmax(scale * q @ k.T) @ v``; ``causal`` is the sequence length if later positions
        are hidden."""

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        """Reordered dimensions, as a fresh array where it is the result."""

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        """The same elements."""

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        """Equal parts."""


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def causal_mask(n: int) -> Array:
    """0 where a position may look, `MASKED` where it may not."""
    return np.triu(np.full((n, n), MASKED, dtype=np.float32), 1)


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
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
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


class NumpyOps:
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
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
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

    def add(self, a: Value, b: Value) -> Value:
        return a + b

    def sub(self, a: Value, b: Value) -> Value:
        return a - b

    def mul(self, a: Value, b: Value) -> Value:
        return a * b

    def div(self, a: Value, b: Value) -> Value:
        return a / b

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

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x.reshape(shape)

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        return list(self.xp.split(x, parts, axis))


class JaxOps(NumpyOps):
    """Traced JAX arrays: NumPy's words, but XLA's convolutions and pooling."""

    def __init__(self) -> None:
        self.lax: Any = importlib.import_module("jax").lax
        erf = importlib.import_module("jax.scipy.special").erf
        super().__init__(xp=importlib.import_module("jax.numpy"), erf=erf)

    def conv(
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
    ) -> Value:
        y = self.lax.conv_general_dilated(x, w, (stride,) * rank, [(pad, pad)] * rank, feature_group_count=groups)
        return y if b is None else y + b.reshape(-1, *[1] * rank)

    def _reduce(self, x: Value, start: float, f: Any, kernel: int, stride: int, pad: int) -> Value:
        pads = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
        return self.lax.reduce_window(x, start, f, (1, 1, kernel, kernel), (1, 1, stride, stride), pads)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return self._reduce(x, -math.inf, self.lax.max, kernel, stride, pad)

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self._reduce(x, 0.0, self.lax.add, kernel, kernel, 0) / kernel**2


class TorchOps:
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
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
    ) -> Value:
        f = self.f.conv1d if rank == 1 else self.f.conv2d
        return f(x, w, b, stride=stride, padding=pad, groups=groups)

    def add(self, a: Value, b: Value) -> Value:
        return a + b

    def sub(self, a: Value, b: Value) -> Value:
        return a - b

    def mul(self, a: Value, b: Value) -> Value:
        return a * b

    def div(self, a: Value, b: Value) -> Value:
        return a / b

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

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x.reshape(shape)

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        return list(x.chunk(parts, axis))


class TilewrightOps:
    """Tensors of a Tilewright graph."""

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        return ops.matmul(a, b, transpose_a=transpose_a)

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        y = ops.matmul(x, w, transpose_b=transposed)
        return y if b is None else ops.add(y, b)

    def conv(
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
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


class OnnxOps:
    """Names in an ONNX graph (operator set 20), whose nodes gather here. Constants are written as exporters
    write them: weights of matrix products over more than two dimensions transposed beforehand."""

    OPSET = 20

    def __init__(self, weights: dict[str, Array]) -> None:
        self._helper: Any = importlib.import_module("onnx").helper
        self.weights = dict(weights)
        self.nodes: list[Any] = []

    def node(self, kind: str, *inputs: Value, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; returns the name, or the names, of what it makes."""
        names = [i if isinstance(i, str) else self._constant(i) for i in inputs]
        made = [f"n{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(self._helper.make_node(kind, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def _constant(self, value: float | Array | list[int]) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, np.int64 if isinstance(value, list) else np.float32)
        return name

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        return self.node("MatMul", self.node("Transpose", a, perm=[1, 0]) if transpose_a else a, b)

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        if rank == 2 and b is not None:
            return self.node("Gemm", x, w, b, transB=int(transposed))
        if transposed:
            self.weights[f"{w}_t"] = np.ascontiguousarray(self.weights[w].T)
            w = f"{w}_t"
        y = self.node("MatMul", x, w)
        return y if b is None else self.add(y, b)

    def conv(
        self,
        x: Value,
        w: Value,
        b: Value = None,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        rank: int = 2,
    ) -> Value:
        given = [x, w] if b is None else [x, w, b]
        return self.node("Conv", *given, strides=[stride] * rank, pads=[pad] * 2 * rank, group=groups)

    def add(self, a: Value, b: Value) -> Value:
        return self.node("Add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.node("Sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.node("Mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.node("Div", a, b)

    def relu(self, x: Value) -> Value:
        return self.node("Relu", x)

    def leaky_relu(self, x: Value, slope: float) -> Value:
        return self.node("LeakyRelu", x, alpha=slope)

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        return self.node("Gelu", x, approximate="tanh" if tanh else "none")

    def sigmoid(self, x: Value) -> Value:
        return self.node("Sigmoid", x)

    def silu(self, x: Value) -> Value:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def tanh(self, x: Value) -> Value:
        return self.node("Tanh", x)

    def mish(self, x: Value) -> Value:
        return self.node("Mul", x, self.node("Tanh", self.node("Softplus", x)))

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self.node("Clip", x, low, high)

    def hard_swish(self, x: Value) -> Value:
        return self.node("HardSwish", x)

    def softmax(self, x: Value, axis: int) -> Value:
        return self.node("Softmax", x, axis=axis)

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        return self.node("ReduceLogSumExp", x, [axis], keepdims=0)

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        return self.node("ReduceSum", x, [axis], keepdims=int(keep))

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        return self.node("ReduceMean", x, list(axes), keepdims=0)

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        return self.node("LayerNormalization", x, scale, bias, axis=-dims, epsilon=1e-5)

    def rms_norm(self, x: Value, axis: int) -> Value:
        mean = self.node("ReduceMean", self.node("Mul", x, x), [axis])
        return self.node("Div", x, self.node("Sqrt", self.node("Add", mean, 1e-5)))

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        parts = self.node("Reshape", x, [0, groups, -1])
        one, zero = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        y = self.node("InstanceNormalization", parts, one, zero, epsilon=1e-5)
        return self.add(self.mul(self.node("Reshape", y, self.node("Shape", x)), scale), bias)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return self.node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self.node("AveragePool", x, kernel_shape=[kernel] * 2, strides=[kernel] * 2)

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        swapped = self.node("Transpose", k, perm=[0, 1, 3, 2] if causal else [0, 2, 1])
        return self._attend(q, swapped, v, scale, causal)

    def _attend(self, q: Value, k: Value, v: Value, scale: float, causal: int) -> Value:
        scores = self.mul(self.node("MatMul", q, k), scale)
        if causal:
            scores = self.add(scores, causal_mask(causal))
        return self.node("MatMul", self.softmax(scores, -1), v)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        return self.node("Transpose", x, perm=list(order))

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return self.node("Reshape", x, list(shape))

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        made: Sequence[Value] = self.node("Split", x, outputs=parts, axis=axis, num_outputs=parts)
        return made


def tilewright_graph(tensors: Sequence[tuple[str, tuple[int, ...], Array | None]], body: Any) -> Graph:
    """The graph of a workload: inputs, and constants where an array is given."""
    g = Graph()
    values: list[Tensor] = [
        g.input(name, shape) if array is None else g.constant(array, name) for name, shape, array in tensors
    ]
    g.output(body(TilewrightOps(), *values), "y")
    return g
