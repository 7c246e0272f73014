"""TVM's words: tensor expressions, by its operator library where that has the operator."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.backends.vocabulary import MASKED, Value


class TvmOps:
    """Tensors of TVM's tensor expressions. Padding, reshapes and the like are stages of their own, which TVM's
    search inlines or keeps as it sees fit."""

    def __init__(self) -> None:
        self.te: Any = importlib.import_module("tvm.te")
        self.topi: Any = importlib.import_module("tvm.topi")
        self.tir: Any = importlib.import_module("tvm.tirx")

    def _product(self, a: Value, b: Value, a_order: tuple[int, int], b_order: tuple[int, int]) -> Value:
        """Over leading batch dimensions; the orders say where (row, summed) and (summed, column) are."""
        m, k, n = a.shape[a_order[0]], a.shape[a_order[1]], b.shape[b_order[1]]
        rank = max(len(a.shape), len(b.shape))
        lead = [a.shape[j] if rank == len(a.shape) else b.shape[j] for j in range(rank - 2)]
        summed = self.te.reduce_axis((0, k), name="k")

        def at(tensor: Value, order: tuple[int, int], batch: Sequence[Any], ends: tuple[Any, Any]) -> Value:
            spatial = [None, None]
            spatial[order[0]], spatial[order[1]] = ends
            return tensor[(*batch[rank - len(tensor.shape) :], *spatial)]

        def body(*index: Any) -> Value:
            *batch, i, j = index
            product = at(a, a_order, batch, (i, summed)) * at(b, b_order, batch, (summed, j))
            return self.te.sum(product, axis=summed)

        return self.te.compute((*lead, m, n), body, name="product")

    def matmul(self, a: Value, b: Value, transpose_a: bool = False) -> Value:
        return self._product(a, b, (-1, -2) if transpose_a else (-2, -1), (-2, -1))

    def linear(self, x: Value, w: Value, b: Value = None, transposed: bool = True, rank: int = 2) -> Value:
        y = self._product(x, w, (-2, -1), (-1, -2) if transposed else (-2, -1))
        return y if b is None else self.add(y, b)

    def conv(
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
    ) -> Value:
        nn = self.topi.nn
        if rank == 1 and groups == 1:
            y = nn.conv1d_ncw(x, w, stride, (pad, pad))
        elif rank == 2 and groups == 1:
            y = nn.conv2d_nchw(x, w, stride, pad, 1)
        elif rank == 2 and groups == int(w.shape[0]) == int(x.shape[1]):
            # the library keeps a multiplier axis: its weights are (channels, multiplier, ...), as ours are
            y = nn.depthwise_conv2d_nchw(x, w, stride, pad, 1)
        else:
            raise NotImplementedError(f"convolution of rank {rank} in {groups} groups")
        if b is None:
            return y
        # without a reshape of the bias: as a stage of its own it keeps MetaSchedule from fusing what follows
        return self.te.compute(y.shape, lambda n, c, *at: y[(n, c, *at)] + b[c], name="with_bias")

    def add(self, a: Value, b: Value) -> Value:
        return self.topi.add(a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.topi.subtract(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.topi.multiply(a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.topi.divide(a, b)

    def relu(self, x: Value) -> Value:
        return self.topi.nn.relu(x)

    def leaky_relu(self, x: Value, slope: float) -> Value:
        return self.topi.nn.leaky_relu(x, slope)

    def gelu(self, x: Value, tanh: bool = False) -> Value:
        if tanh:
            inner = self.mul(self.add(x, self.mul(self.mul(self.mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
            return self.mul(self.mul(x, 0.5), self.add(self.topi.tanh(inner), 1.0))
        return self.mul(self.mul(x, 0.5), self.add(self.topi.erf(self.mul(x, math.sqrt(0.5))), 1.0))

    def sigmoid(self, x: Value) -> Value:
        return self.topi.sigmoid(x)

    def silu(self, x: Value) -> Value:
        return self.mul(x, self.topi.sigmoid(x))

    def tanh(self, x: Value) -> Value:
        return self.topi.tanh(x)

    def mish(self, x: Value) -> Value:
        return self.mul(x, self.topi.tanh(self.topi.log(self.add(self.topi.exp(x), 1.0))))

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self.topi.clip(x, low, high)

    def hard_swish(self, x: Value) -> Value:
        return self.mul(x, self.clip(self.add(self.div(x, 6.0), 0.5), 0.0, 1.0))

    def softmax(self, x: Value, axis: int) -> Value:
        return self.topi.nn.softmax(x, axis)

    def log_sum_exp(self, x: Value, axis: int) -> Value:
        top = self.topi.max(x, axis, keepdims=True)
        total = self.topi.sum(self.topi.exp(self.sub(x, top)), axis, keepdims=True)
        return self.topi.squeeze(self.add(self.topi.log(total), top), [axis])

    def sum(self, x: Value, axis: int, keep: bool = False) -> Value:
        return self.topi.sum(x, axis, keepdims=keep)

    def _mean(self, x: Value, axes: Sequence[int], keep: bool) -> Value:
        count = math.prod(int(x.shape[k]) for k in axes)
        return self.mul(self.topi.sum(x, list(axes), keepdims=keep), 1 / count)

    def mean(self, x: Value, axes: tuple[int, ...]) -> Value:
        return self._mean(x, axes, keep=False)

    def _normal(self, x: Value, axes: Sequence[int]) -> Value:
        y = self.sub(x, self._mean(x, axes, keep=True))
        return self.div(y, self.topi.sqrt(self.add(self._mean(self.mul(y, y), axes, keep=True), 1e-5)))

    def layer_norm(self, x: Value, scale: Value, bias: Value, dims: int = 1) -> Value:
        return self.topi.nn.layer_norm(x, scale, bias, list(range(len(x.shape) - dims, len(x.shape))), 1e-5)

    def rms_norm(self, x: Value, axis: int) -> Value:
        return self.div(x, self.topi.sqrt(self.add(self._mean(self.mul(x, x), (axis,), keep=True), 1e-5)))

    def group_norm(self, x: Value, groups: int, scale: Value, bias: Value) -> Value:
        rows, channels = (int(d) for d in x.shape)
        y = self._normal(self.topi.reshape(x, (rows, groups, channels // groups)), (2,))
        return self.add(self.mul(self.topi.reshape(y, (rows, channels)), scale), bias)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return self.topi.nn.pool2d(x, [kernel] * 2, [stride] * 2, [1, 1], [pad] * 4, "max")

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self.topi.nn.pool2d(x, [kernel] * 2, [kernel] * 2, [1, 1], [0] * 4, "avg")

    def attention(self, q: Value, k: Value, v: Value, scale: float, causal: int = 0) -> Value:
        scores = self.mul(self._product(q, k, (-2, -1), (-1, -2)), scale)
        if causal:
            zero, hidden = (self.tir.const(c, "float32") for c in (0.0, MASKED))
            mask = self.te.compute(
                (causal, causal), lambda i, j: self.tir.if_then_else(j > i, hidden, zero), name="mask"
            )
            scores = self.add(scores, mask)
        return self.matmul(self.softmax(scores, -1), v)

    def transpose(self, x: Value, order: tuple[int, ...]) -> Value:
        return self.topi.transpose(x, list(order))

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return self.topi.reshape(x, shape)

    def split(self, x: Value, parts: int, axis: int) -> Sequence[Value]:
        return list(self.topi.split(x, parts, axis))
