"""Operators that list several results of a reduction: running sums and products, and the best elements of rows."""

from __future__ import annotations

import math

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import cast
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import axis_number, elementwise, replace_at
from tilewright.graph.ops.shape import transpose
from tilewright.graph.ordered import Scan, Select
from tilewright.graph.stage import identity

_WIDENED = {"int8": "int32", "int16": "int32", "uint8": "int32", "uint16": "int32", "bool": "int32"}
"""Types whose elements are compared as those of another type."""


def cumulative(x: Tensor, reducer: str, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """The results of ``reducer`` (``sum``, ``prod``, ``max`` or ``min``) over the elements of ``x`` along ``axis`` up to each one,
    without it if ``exclusive``; from the other end if ``reverse``. The shape is that of ``x``.

    The rows are walked as a tensor of three dimensions: what lies before the axis, the axis, and what lies behind it.
    """
    axis = axis_number(axis, x.rank, f"cumulative {reducer}")
    if x.dtype == "bool":
        raise GraphError(f"cumulative {reducer}: expected numbers; got bool; cast it first")
    before, n, behind = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    name = f"cumulative_{reducer}"
    if n == 1:
        return elementwise(name, lambda e: identity(reducer, x.dtype), x) if exclusive else x
    rows = x.graph.view(x, (before, n, behind))
    form = Scan(reducer, 1, exclusive, reverse)
    out = x.graph.compute(rows.shape, lambda a, _, b, r: rows.at((a, r, b)), (n,), form, name)
    return x.graph.view(out, x.shape)


def cumulative_sum(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sums along ``axis`` (:func:`cumulative`)."""
    return cumulative(x, "sum", axis, exclusive, reverse)


def cumulative_prod(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running products along ``axis`` (:func:`cumulative`)."""
    return cumulative(x, "prod", axis, exclusive, reverse)


def top_k(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The ``k`` largest (or smallest) elements along ``axis``, in order, and their int64 positions. Of equal elements the first comes
    first; NaN are larger than all numbers, as NumPy sorts them.

    Rows are selected from where they lie in one piece: along another axis than the last one, of a transposed copy.
    """
    axis = axis_number(axis, x.rank, "top_k")
    n = x.shape[axis]
    if not 1 <= k <= n:
        raise GraphError(f"top_k: expected k of 1..{n}; got {k}")
    order = [*(d for d in range(x.rank) if d != axis), axis]
    moved = x if axis == x.rank - 1 else transpose(x, order)
    count = x.type.size // n
    rows = x.graph.view(moved, (count, n))
    keys = elementwise("top_k_keys", lambda e: cast(e, _WIDENED[x.dtype]), rows) if x.dtype in _WIDENED else rows
    where = x.graph.compute((count, k), lambda i, _, r: keys.at((i, r)), (n,), Select(largest), "top_k")
    values = x.graph.compute((count, k), lambda i, j: rows.at((i, where.at((i, j)))), name="top_k_values")
    shape = [*replace_at(moved.shape, x.rank - 1, k)]
    back = [order.index(d) for d in range(x.rank)]
    found = [x.graph.view(t, shape) for t in (values, where)]
    if axis != x.rank - 1:
        found = [transpose(t, back) for t in found]
    return found[0], found[1]
