"""Reductions over axes, positions of extremes, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.graph.dtypes import FLOATS, GraphError
from tilewright.graph.expr import Expr, binary, index, select, unary
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import axis_number, axis_numbers, elementwise, reduction, replace_at
from tilewright.graph.ops.elementwise import exp, log, sqrt


def reduce(
    x: Tensor,
    reducer: str,
    axes: Sequence[int] | None = None,
    keepdims: bool = True,
    element: Callable[[Expr], Expr] = lambda e: e,
    name: str = "",
) -> Tensor:
    """``reducer`` of ``element(x)`` over ``axes`` (all if None). Kept dimensions are axes of extent 1, not
    a view."""
    name = name or f"reduce_{reducer}"
    over = tuple(range(x.rank)) if axes is None else axis_numbers(axes, x.rank, name)
    shape = [1 if k in over else d for k, d in enumerate(x.shape) if keepdims or k not in over]
    kept = [k for k in range(x.rank) if keepdims or k not in over]

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        place: list[Expr] = [index(0)] * x.rank
        for k, e in zip(kept, i, strict=True):
            place[k] = e
        for k, e in zip(sorted(over), r, strict=True):
            place[k] = e
        return element(x.at(place))

    return reduction(x.graph, shape, [x.shape[k] for k in sorted(over)], reducer, body, name)


def reduce_sum(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The sum over ``axes``."""
    return reduce(x, "sum", axes, keepdims)


def reduce_max(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The largest element over ``axes``."""
    return reduce(x, "max", axes, keepdims)


def reduce_min(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The smallest element over ``axes``."""
    return reduce(x, "min", axes, keepdims)


def reduce_prod(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The product over ``axes``."""
    return reduce(x, "prod", axes, keepdims)


def reduce_mean(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The mean over ``axes``: a sum, then a division by the number of elements."""
    over = tuple(range(x.rank)) if axes is None else axis_numbers(axes, x.rank, "reduce_mean")
    n = math.prod(x.shape[k] for k in over)
    total = reduce_sum(x, over, keepdims)
    return total if n == 1 else elementwise("mean", lambda s: s / n, total)


def reduce_l1(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The sum of absolute values over ``axes``."""
    return reduce(x, "sum", axes, keepdims, lambda e: unary("abs", e), "reduce_l1")


def reduce_sum_square(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The sum of squares over ``axes``."""
    return reduce(x, "sum", axes, keepdims, lambda e: e * e, "reduce_sum_square")


def reduce_l2(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The Euclidean norm over ``axes``."""
    return sqrt(reduce_sum_square(x, axes, keepdims))


def reduce_log_sum(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """The logarithm of the sum over ``axes``."""
    return log(reduce_sum(x, axes, keepdims))


def reduce_log_sum_exp(x: Tensor, axes: Sequence[int] | None = None, keepdims: bool = True) -> Tensor:
    """``log(sum(exp(x)))`` over ``axes``, shifted by the maximum so that it does not overflow (by nothing where that is infinite: the
    largest of all is then the result)."""
    largest = elementwise("finite", lambda m: select(unary("isinf", m), 0, m), reduce_max(x, axes))
    total = reduce_sum(elementwise("exp", lambda a, m: unary("exp", a - m), x, largest), axes)
    out = elementwise("log_sum_exp", lambda s, m: unary("log", s) + m, total, largest)
    if keepdims:
        return out
    over = tuple(range(x.rank)) if axes is None else axis_numbers(axes, x.rank, "reduce_log_sum_exp")
    return x.graph.view(out, [d for k, d in enumerate(x.shape) if k not in over])


def _extreme_position(x: Tensor, kind: str, axis: int, keepdims: bool, last: bool) -> Tensor:
    axis = axis_number(axis, x.rank, f"arg_{kind}")
    n = x.shape[axis]
    best = reduce(x, kind, [axis], keepdims=True)
    shape = [1 if k == axis else d for k, d in enumerate(x.shape) if keepdims or k != axis]

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        place = list(i) if keepdims else [*i[:axis], index(0), *i[axis:]]
        hit = is_extreme(x.at(replace_at(place, axis, r[0])), best.at(replace_at(place, axis, index(0))))
        return select(hit, r[0], index(0 if last else n - 1))

    return reduction(x.graph, shape, [n], "max" if last else "min", body, f"arg_{kind}")


def is_extreme(e: Expr, extreme: Expr) -> Expr:
    """Whether an element of a row is its largest or smallest, which is NaN if any is (as NumPy has it): then a NaN is."""
    equal = e.eq(extreme)
    return binary("or", equal, unary("isnan", e)) if e.dtype in FLOATS else equal


def arg_max(x: Tensor, axis: int = 0, keepdims: bool = True, select_last: bool = False) -> Tensor:
    """The first (or last) int64 position of the maximum along ``axis``: the maximum, then the position
    that equals it. NaN counts as the maximum, as in NumPy."""
    return _extreme_position(x, "max", axis, keepdims, select_last)


def arg_min(x: Tensor, axis: int = 0, keepdims: bool = True, select_last: bool = False) -> Tensor:
    """The first (or last) int64 position of the minimum along ``axis``."""
    return _extreme_position(x, "min", axis, keepdims, select_last)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``. The division is one reciprocal for each row: a factor, which a
    schedule may move behind a product that follows (attention)."""
    axes = [axis_number(axis, x.rank, "softmax")]
    e = elementwise("softmax_exp", lambda a, m: unary("exp", a - m), x, reduce_max(x, axes))
    inverse = elementwise("softmax_inverse", lambda s: 1.0 / s, reduce_sum(e, axes))
    return elementwise("softmax", lambda a, r: a * r, e, inverse)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """``x - max - log(sum(exp(x - max)))`` along ``axis``."""
    axes = [axis_number(axis, x.rank, "log_softmax")]
    shifted = elementwise("log_softmax_shift", lambda a, m: a - m, x, reduce_max(x, axes))
    return elementwise("log_softmax", lambda a, s: a - unary("log", s), shifted, reduce_sum(exp(shifted), axes))


def hardmax(x: Tensor, axis: int = -1) -> Tensor:
    """1 at the first maximum along ``axis``, else 0."""
    axis = axis_number(axis, x.rank, "hardmax")
    first = arg_max(x, axis)
    return x.graph.compute(
        x.shape,
        lambda *i: _one_or_zero(i[axis].eq(first.at(replace_at(i, axis, index(0)))), x.dtype),
        name="hardmax",
    )


def _one_or_zero(condition: Expr, dtype: str) -> Expr:
    from tilewright.graph.expr import cast

    return cast(condition, dtype)


def lp_normalise(x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
    """``x`` divided by its norm along ``axis`` (0 where the norm is 0)."""
    if p not in (1, 2):
        raise GraphError(f"lp_normalise: expected p of 1 or 2; got {p}")
    norm = (reduce_l1 if p == 1 else reduce_l2)(x, [axis_number(axis, x.rank, "lp_normalise")])
    return elementwise("lp_normalise", lambda a, n: select(n.eq(0), 0, a / n), x, norm)
