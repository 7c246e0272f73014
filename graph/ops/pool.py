"""Pooling. Borders are padded by a stage of their own (with the smallest value for a maximum), so windows
load plainly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr, all_of, binary, const, select, unary
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.conv import auto_pads, pad_spatial, per_dimension
from tilewright.graph.ops.core import elementwise, reduction
from tilewright.graph.ops.reduce import is_extreme, reduce, reduce_max, reduce_mean
from tilewright.graph.stage import identity


@dataclass(frozen=True, slots=True)
class Window:
    """Where the windows of a pooling lie. ``pads`` is all begins, then all ends; ``auto_pad`` replaces it
    unless NOTSET."""

    kernel: Sequence[int]
    strides: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    ceil_mode: bool = False
    auto_pad: str = "NOTSET"


@dataclass(frozen=True, slots=True)
class _Placed:
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]  # as declared
    fill: list[int]  # as needed by the last window
    out: list[int]


def _place(x: Tensor, w: Window) -> _Placed:
    size = x.shape[2:]
    rank = len(size)
    kernel = per_dimension(w.kernel, rank, 1, "pool kernel")
    s = per_dimension(w.strides, rank, 1, "pool strides")
    d = per_dimension(w.dilations, rank, 1, "pool dilations")
    auto = w.auto_pad not in ("NOTSET", "")
    pads = auto_pads(w.auto_pad, size, kernel, s, d) if auto else per_dimension(w.pads, 2 * rank, 0, "pool pads")
    begin, end = list(pads[:rank]), list(pads[rank:])
    out, fill = [], []
    for k in range(rank):
        window = (kernel[k] - 1) * d[k] + 1
        room = begin[k] + size[k] + end[k] - window
        steps = -(-room // s[k]) if w.ceil_mode and not auto else room // s[k]
        if steps * s[k] >= size[k] + begin[k]:  # the last window must start inside the input or its left border
            steps -= 1
        if room < 0 or steps < 0:
            raise GraphError(f"pool: the window {kernel} with dilations {d} is larger than the padded input {size}")
        out.append(steps + 1)
        fill.append(max(0, steps * s[k] + window - size[k] - begin[k]))
    return _Placed(kernel, s, d, begin, end, fill, out)


Body = Callable[[tuple[Expr, ...], tuple[Expr, ...], list[Expr]], Expr]


def _windows(x: Tensor, p: _Placed, reducer: str, body: Body, name: str) -> Tensor:
    def cell(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        place = [o * s + k * d for o, k, s, d in zip(i[2:], r, p.strides, p.dilations, strict=True)]
        return body(i, r, place)

    return reduction(x.graph, (*x.shape[:2], *p.out), p.kernel, reducer, cell, name)


def max_pool(x: Tensor, window: Window) -> Tensor:
    """The largest element of each window of (n, c, spatial...)."""
    p = _place(x, window)
    xp = pad_spatial(x, p.begin + p.fill, identity("max", x.dtype).value)
    return _windows(x, p, "max", lambda i, r, place: xp.at([*i[:2], *place]), "max_pool")


def max_pool_indices(x: Tensor, window: Window, y: Tensor, column_major: bool = False) -> Tensor:
    """For each window the position of its maximum ``y`` in the flattened input: the first in row-major order if several are
    equal, the first NaN if there is one. With ``column_major`` the position is counted down the columns of each plane. The
    border is no candidate; a window of nothing but border gives the last element of its plane."""
    p = _place(x, window)
    size = x.shape[2:]
    plane = prod(size)
    xp = pad_spatial(x, p.begin + p.fill, identity("max", x.dtype).value)

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...], place: list[Expr]) -> Expr:
        start = (i[0] * x.shape[1] + i[1]) * plane
        flat = start
        hit = [is_extreme(xp.at([*i[:2], *place]), y.at(i))]
        for k, e in enumerate(place):
            flat = flat + (e - p.begin[k]) * prod(size[k + 1 :])
            hit += [e.ge(p.begin[k])] if p.begin[k] else []
            hit += [e.lt(p.begin[k] + size[k])] if p.fill[k] else []
        return select(all_of(hit), flat, start + (plane - 1))

    first = _windows(x, p, "min", body, "max_pool_indices")
    return elementwise("column_major", lambda e: _by_columns(e, size), first) if column_major else first


def _by_columns(flat: Expr, size: Sequence[int]) -> Expr:
    """A row-major position in planes of ``size``, counted with the first dimension of the plane running fastest."""
    plane = prod(size)
    out = flat // plane * plane
    for k, n in enumerate(size):
        out = out + flat // prod(size[k + 1 :]) % n * prod(size[:k])
    return out


def _counts(x: Tensor, p: _Placed, include_pad: bool) -> list[Any]:
    """For each spatial dimension, how many taps of each window count."""
    out: list[Any] = []
    for k, n in enumerate(x.shape[2:]):
        start = np.arange(p.out[k])[:, None] * p.strides[k] - p.begin[k]
        taps = start + np.arange(p.kernel[k])[None, :] * p.dilations[k]
        low, high = (-p.begin[k], n + p.end[k]) if include_pad else (0, n)
        out.append(((taps >= low) & (taps < high)).sum(axis=1))
    return out


def average_pool(x: Tensor, window: Window, count_include_pad: bool = False) -> Tensor:
    """The mean of each window; elements added by padding count only with ``count_include_pad``."""
    p = _place(x, window)
    xp = pad_spatial(x, p.begin + p.fill)
    total = _windows(x, p, "sum", lambda i, r, place: xp.at([*i[:2], *place]), "average_pool")
    counts = _counts(x, p, count_include_pad)
    full = prod(p.kernel)
    if full == 1:
        return total
    if all((c == k).all() for c, k in zip(counts, p.kernel, strict=True)):
        return elementwise("mean", lambda s: s / full, total)
    number = np.ones((), np.int64)
    for c in counts:
        number = number[..., None] * c
    divisor = x.graph.constant(number.astype(x.dtype), "pool_count")
    return elementwise("mean", lambda s, c: s / c, total, divisor)


def lp_pool(x: Tensor, window: Window, p: int = 2) -> Tensor:
    """``(sum |x|**p) ** (1 / p)`` of each window."""
    if p < 1:
        raise GraphError(f"lp_pool: expected p of at least 1; got {p}")
    placed = _place(x, window)
    xp = pad_spatial(x, placed.begin + placed.fill)
    total = _windows(
        x, placed, "sum", lambda i, r, place: _absolute_power(xp.at([*i[:2], *place]), p), "lp_pool"
    )  # fmt: skip
    return elementwise("lp_root", lambda s: _root(s, p), total)


def _absolute_power(e: Expr, p: int) -> Expr:
    if p == 2:
        return e * e
    a = unary("abs", e)
    return a if p == 1 else binary("pow", a, const(p, e.dtype))


def _root(e: Expr, p: int) -> Expr:
    return e if p == 1 else unary("sqrt", e) if p == 2 else binary("pow", e, const(1 / p, e.dtype))


def global_average_pool(x: Tensor) -> Tensor:
    """The mean over all spatial dimensions, which stay with size 1."""
    return reduce_mean(x, range(2, x.rank))


def global_max_pool(x: Tensor) -> Tensor:
    """The maximum over all spatial dimensions, which stay with size 1."""
    return reduce_max(x, range(2, x.rank))


def global_lp_pool(x: Tensor, p: int = 2) -> Tensor:
    """The p-norm over all spatial dimensions, which stay with size 1."""
    total = reduce(x, "sum", range(2, x.rank), element=lambda e: _absolute_power(e, p), name="lp_pool")
    return elementwise("lp_root", lambda s: _root(s, p), total)
