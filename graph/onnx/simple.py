"""Operators whose translation is one call: arithmetic, activations, reductions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.graph import ops
from tilewright.graph.dtypes import GraphError
from tilewright.graph.graph import Tensor
from tilewright.graph.onnx.context import OPERATORS, Node, Result, dtype_name, operator

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": ops.absolute,
    "Acos": ops.acos,
    "Acosh": ops.acosh,
    "Asin": ops.asin,
    "Asinh": ops.asinh,
    "Atan": ops.atan,
    "Atanh": ops.atanh,
    "BitwiseNot": ops.bit_not,
    "Ceil": ops.ceil,
    "Cos": ops.cos,
    "Cosh": ops.cosh,
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "GlobalAveragePool": ops.global_average_pool,
    "GlobalMaxPool": ops.global_max_pool,
    "HardSwish": ops.hard_swish,
    "Identity": ops.identity,
    "IsNaN": ops.isnan,
    "Log": ops.log,
    "Mish": ops.mish,
    "Neg": ops.neg,
    "Not": ops.logical_not,
    "Reciprocal": ops.reciprocal,
    "Relu": ops.relu,
    "Round": ops.round_even,
    "Sigmoid": ops.sigmoid,
    "Sign": ops.sign,
    "Sin": ops.sin,
    "Sinh": ops.sinh,
    "Softplus": ops.softplus,
    "Softsign": ops.softsign,
    "Sqrt": ops.sqrt,
    "Tan": ops.tan,
    "Tanh": ops.tanh,
}

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": ops.add,
    "And": ops.logical_and,
    "BitwiseAnd": ops.bit_and,
    "BitwiseOr": ops.bit_or,
    "BitwiseXor": ops.bit_xor,
    "Div": ops.div,
    "Equal": ops.equal,
    "Greater": ops.greater,
    "GreaterOrEqual": ops.greater_equal,
    "Less": ops.less,
    "LessOrEqual": ops.less_equal,
    "MatMul": ops.matmul,
    "Mul": ops.mul,
    "Or": ops.logical_or,
    "PRelu": ops.prelu,
    "Pow": ops.power,
    "Sub": ops.sub,
    "Xor": ops.logical_xor,
}

_MANY: dict[str, Callable[..., Tensor]] = {
    "Max": ops.maximum_of,
    "Mean": ops.mean_of,
    "Min": ops.minimum_of,
    "Sum": ops.sum_of,
}

_REDUCE: dict[str, Callable[[Tensor, list[int] | None, bool], Tensor]] = {
    "ReduceL1": ops.reduce_l1,
    "ReduceL2": ops.reduce_l2,
    "ReduceLogSum": ops.reduce_log_sum,
    "ReduceLogSumExp": ops.reduce_log_sum_exp,
    "ReduceMax": ops.reduce_max,
    "ReduceMean": ops.reduce_mean,
    "ReduceMin": ops.reduce_min,
    "ReduceProd": ops.reduce_prod,
    "ReduceSum": ops.reduce_sum,
    "ReduceSumSquare": ops.reduce_sum_square,
}


def _register_tables() -> None:
    for name, unary in _UNARY.items():
        OPERATORS[name] = lambda n, f=unary: f(n.tensor(0))  # type: ignore[misc]
    for name, binary in _BINARY.items():
        OPERATORS[name] = lambda n, f=binary: f(*_aligned(n))  # type: ignore[misc]
    for name, many in _MANY.items():
        OPERATORS[name] = lambda n, f=many: f(*n.tensors())  # type: ignore[misc]
    for name, reduce in _REDUCE.items():
        OPERATORS[name] = lambda n, f=reduce: _reduced(n, f)  # type: ignore[misc]


def _aligned(n: Node) -> tuple[Tensor, Tensor]:
    a, b = n.tensor(0), n.tensor(1)
    axis = n.raw("axis")
    if n.flag("broadcast") and axis is not None:  # operator sets before 7: b aligns at an axis of a
        b = n.graph.view(b, (*b.shape, *([1] * (a.rank - int(axis) - b.rank))))
    return a, b


def _reduced(n: Node, f: Callable[[Tensor, list[int] | None, bool], Tensor]) -> Result:
    axes = n.axes()
    if not axes and n.flag("noop_with_empty_axes"):
        axes = []
    elif not axes:
        axes = None
    return f(n.tensor(0), axes, n.flag("keepdims", True))


_register_tables()


@operator("ArgMax", "ArgMin")
def _arg(n: Node) -> Result:
    f = ops.arg_max if n.proto.op_type == "ArgMax" else ops.arg_min
    return f(n.tensor(0), n.integer("axis", 0), n.flag("keepdims", True), n.flag("select_last_index"))


@operator("BitShift")
def _bit_shift(n: Node) -> Result:
    left = n.only("direction", "LEFT", "RIGHT") == "LEFT"
    return (ops.shift_left if left else ops.shift_right)(n.tensor(0), n.tensor(1))


@operator("Mod")
def _mod(n: Node) -> Result:
    return (ops.fmod if n.flag("fmod") else ops.mod)(n.tensor(0), n.tensor(1))


@operator("Where")
def _where(n: Node) -> Result:
    return ops.where(n.tensor(0), n.tensor(1), n.tensor(2))


@operator("Clip")
def _clip(n: Node) -> Result:
    if n.opset < 11:
        low, high = n.raw("min"), n.raw("max")
        return ops.clip(n.tensor(0), low, high)
    return ops.clip(n.tensor(0), n.maybe(1), n.maybe(2))


@operator("IsInf")
def _isinf(n: Node) -> Result:
    return ops.isinf(n.tensor(0), n.flag("detect_negative", True), n.flag("detect_positive", True))


@operator("LeakyRelu")
def _leaky_relu(n: Node) -> Result:
    return ops.leaky_relu(n.tensor(0), n.real("alpha", 0.01))


@operator("Elu")
def _elu(n: Node) -> Result:
    return ops.elu(n.tensor(0), n.real("alpha", 1.0))


@operator("Selu")
def _selu(n: Node) -> Result:
    return ops.selu(n.tensor(0), n.real("alpha", 1.6732632), n.real("gamma", 1.050701))


@operator("Celu")
def _celu(n: Node) -> Result:
    return ops.celu(n.tensor(0), n.real("alpha", 1.0))


@operator("Gelu")
def _gelu(n: Node) -> Result:
    return ops.gelu(n.tensor(0), n.only("approximate", "none", "tanh") == "tanh")


@operator("HardSigmoid")
def _hard_sigmoid(n: Node) -> Result:
    return ops.hard_sigmoid(n.tensor(0), n.real("alpha", 0.2), n.real("beta", 0.5))


@operator("Shrink")
def _shrink(n: Node) -> Result:
    return ops.shrink(n.tensor(0), n.real("lambd", 0.5), n.real("bias", 0.0))


@operator("Swish")
def _swish(n: Node) -> Result:
    return ops.silu(n.tensor(0), n.real("alpha", 1.0))


@operator("ThresholdedRelu")
def _thresholded_relu(n: Node) -> Result:
    return ops.thresholded_relu(n.tensor(0), n.real("alpha", 1.0))


@operator("Softmax", "LogSoftmax", "Hardmax")
def _softmax(n: Node) -> Result:
    f = {"Softmax": ops.softmax, "LogSoftmax": ops.log_softmax, "Hardmax": ops.hardmax}[n.proto.op_type]
    x = n.tensor(0)
    if n.opset >= 13:
        return f(x, n.integer("axis", -1))
    axis = n.integer("axis", 1)  # before operator set 13: over all dimensions from axis on
    axis = axis + x.rank if axis < 0 else axis
    if axis == x.rank - 1:
        return f(x, -1)
    return n.graph.view(f(ops.flatten(x, axis), 1), x.shape)


@operator("LpNormalization")
def _lp_normalise(n: Node) -> Result:
    return ops.lp_normalise(n.tensor(0), n.integer("axis", -1), n.integer("p", 2))


@operator("CumSum", "CumProd")
def _cumulative(n: Node) -> Result:
    f = ops.cumulative_sum if n.proto.op_type == "CumSum" else ops.cumulative_prod
    return f(n.tensor(0), int(n.known_number(1, "axis")), n.flag("exclusive"), n.flag("reverse"))


@operator("Gemm")
def _gemm(n: Node) -> Result:
    return ops.gemm(n.tensor(0), n.tensor(1), n.maybe(2), n.real("alpha", 1.0), n.real("beta", 1.0),
                    n.flag("transA"), n.flag("transB"))  # fmt: skip


@operator("Einsum")
def _einsum(n: Node) -> Result:
    return ops.einsum(n.text("equation", ""), *n.tensors())


@operator("Cast", "CastLike")
def _cast(n: Node) -> Result:
    like = n.proto.op_type == "CastLike"
    return ops.cast(n.tensor(0), n.dtype(1) if like else dtype_name(n.integer("to", 0)))


@operator("Dropout")
def _dropout(n: Node) -> Result:
    if n.has(2) and n.known_number(2, "training_mode"):
        raise GraphError("training_mode is true; only inference is supported")
    x = n.tensor(0)
    if not n.wants(1):
        return [x]
    return [x, np.broadcast_to(np.ones((), np.bool_ if n.opset >= 10 else np.float32), x.shape)]
