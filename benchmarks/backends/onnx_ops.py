"""ONNX's words: nodes of an operator set, as exporters write them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.backends.vocabulary import Array, Value, causal_mask


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

    def _constant(self, value: Any) -> str:
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
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
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

    def top_k(self, x: Value, k: int) -> Value:
        values: Value = self.node("TopK", x, self._constant([k]), outputs=2, axis=-1)[0]
        return values

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        return self.node("CumSum", x, self._constant([axis]))

    def einsum(self, equation: str, *operands: Value) -> Value:
        return self.node("Einsum", *operands, equation=equation)

    def gather(self, x: Value, rows: Value) -> Value:
        return self.node("Gather", x, rows, axis=0)

    def scatter(self, x: Value, rows: Array, updates: Value) -> Value:
        return self.node("ScatterND", x, self._constant(rows[:, None].tolist()), updates)

    def pad_reflect(self, x: Value, width: int) -> Value:
        around = [0, 0, width, width]
        return self.node("Pad", x, self._constant([*around, *around]), mode="reflect")
