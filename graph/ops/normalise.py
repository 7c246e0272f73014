"""Normalisations: statistics as small reductions, then one element-wise stage."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr, binary, const, select, unary
from tilewright.graph.expr import all_of as all_of_conditions
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import axis_number, axis_numbers, elementwise, reduction
from tilewright.graph.ops.reduce import reduce_mean, reduce_sum_square


def channel(t: Tensor, rank: int) -> Tensor:
    """A vector of channels as (c, 1, ...), which broadcasts against (n, c, spatial...)."""
    return t.graph.view(t, (t.type.size, *([1] * (rank - 2))))


def batch_norm(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Inference: ``(x - mean) / sqrt(var + epsilon) * scale + bias`` for each channel, as one multiply-add
    whose factors fold into constants when the parameters are constant."""
    factor = elementwise("bn_scale", lambda s, v: s / unary("sqrt", v + epsilon), scale, var)
    shift = elementwise("bn_shift", lambda b, m, f: b - m * f, bias, mean, factor)
    return elementwise("batch_norm", lambda a, f, b: a * f + b, x, channel(factor, x.rank), channel(shift, x.rank))


def moments(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """Mean and ``1 / sqrt(variance + epsilon)`` over ``axes``, kept with size 1."""
    over = axis_numbers(axes, x.rank, "moments")
    n = prod(x.shape[k] for k in over)
    mean = reduce_mean(x, over)
    centred = elementwise("centred", lambda a, m: a - m, x, mean)
    inverse = elementwise("inverse_std", lambda v: unary("rsqrt", v / n + epsilon), reduce_sum_square(centred, over))
    return mean, inverse


def layer_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, axis: int = -1, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise over the dimensions from ``axis`` on. Returns the result, the mean and the inverse
    deviation."""
    axis = axis_number(axis, x.rank, "layer_norm")
    mean, inverse = moments(x, range(axis, x.rank), epsilon)
    return _affine("layer_norm", x, mean, inverse, scale, bias), mean, inverse


def _affine(name: str, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    given = [t for t in (scale, bias) if t is not None]

    def body(a: Expr, m: Expr, v: Expr, *rest: Expr) -> Expr:
        y = (a - m) * v
        if scale is not None:
            y = y * rest[0]
        return y if bias is None else y + rest[-1]

    return elementwise(name, body, x, mean, inverse, *given)


def rms_norm(x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x**2) + epsilon) * scale`` over the dimensions from ``axis`` on."""
    axis = axis_number(axis, x.rank, "rms_norm")
    n = prod(x.shape[axis:])
    total = reduce_sum_square(x, range(axis, x.rank))
    inverse = elementwise("inverse_rms", lambda v: unary("rsqrt", v / n + epsilon), total)
    return elementwise("rms_norm", lambda a, v, s: a * v * s, x, inverse, scale)


def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Normalise each channel of each sample over its spatial dimensions."""
    mean, inverse = moments(x, range(2, x.rank), epsilon)
    return _affine("instance_norm", x, mean, inverse, channel(scale, x.rank), channel(bias, x.rank))


def group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, groups: int, epsilon: float = 1e-5, per_group: bool = False
) -> Tensor:
    """Normalise over groups of channels; scale and bias belong to channels, or to groups with
    ``per_group``."""
    n, c, *spatial = x.shape
    if groups < 1 or c % groups:
        raise GraphError(f"group_norm: expected channels divisible by {groups}; got {c}")
    parts = x.graph.view(x, (n, groups, c // groups, prod(spatial)))
    mean, inverse = moments(parts, (2, 3), epsilon)
    shape = (groups, 1 if per_group else c // groups, 1)
    y = _affine("group_norm", parts, mean, inverse, x.graph.view(scale, shape), x.graph.view(bias, shape))
    return x.graph.view(y, x.shape)


def mean_variance_norm(x: Tensor, axes: Sequence[int] = (0, 2, 3), epsilon: float = 1e-9) -> Tensor:
    """``(x - mean) / (sqrt(variance) + epsilon)`` over ``axes``."""
    over = axis_numbers(axes, x.rank, "mean_variance_norm")
    n = prod(x.shape[k] for k in over)
    centred = elementwise("centred", lambda a, m: a - m, x, reduce_mean(x, over))
    square = reduce_sum_square(centred, over)
    return elementwise("mean_variance_norm", lambda a, v: a / (unary("sqrt", v / n) + epsilon), centred, square)


def lrn(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """Divide by a power of the sum of squares over ``size`` neighbouring channels."""
    before, c = (size - 1) // 2, x.shape[1]

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        place = i[1] + r[0] - before
        value = x.at([i[0], place, *i[2:]])
        return select(all_of_conditions([place.ge(0), place.lt(c)]), value * value, const(0, x.dtype))

    total = reduction(x.graph, x.shape, (size,), "sum", body, "lrn_sum")
    return elementwise(
        "lrn", lambda a, s: a / binary("pow", s * (alpha / size) + bias, const(beta, a.dtype)), x, total
    )  # fmt: skip
