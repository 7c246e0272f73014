"""The vocabulary of operators, in which each workload is written once, whoever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
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

    def top_k(self, x: Value, k: int) -> Value:
        """The ``k`` largest along the last axis, in order."""

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        """Running sums."""

    def einsum(self, equation: str, *operands: Value) -> Value:
        """Sums of products."""

    def gather(self, x: Value, rows: Value) -> Value:
        """``x[rows]``; ``rows`` are int64."""

    def scatter(self, x: Value, rows: Array, updates: Value) -> Value:
        """``x`` with ``x[rows] = updates``; ``rows`` are known."""

    def pad_reflect(self, x: Value, width: int) -> Value:
        """The last two dimensions mirrored at their edges."""


class ArrayOps:
    """What is said alike of all arrays that have Python's operators."""

    def add(self, a: Value, b: Value) -> Value:
        return a + b

    def sub(self, a: Value, b: Value) -> Value:
        return a - b

    def mul(self, a: Value, b: Value) -> Value:
        return a * b

    def div(self, a: Value, b: Value) -> Value:
        return a / b

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x.reshape(shape)


def causal_mask(n: int) -> Array:
    """0 where a position may look, `MASKED` where it may not."""
    return np.triu(np.full((n, n), MASKED, dtype=np.float32), 1)
