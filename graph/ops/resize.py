"""Resizing along axes, with positions and weights computed now as small constant tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr, cast, const, index, select
from tilewright.graph.graph import Array, Tensor
from tilewright.graph.ops.core import affine_or_table, axis_number, reduction, replace_at, table

_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How positions of the result map to positions of the source, and how values between elements are
    made."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_coefficient: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False


def _source_positions(how: str, n_in: int, n_out: int, scale: float, roi: tuple[float, float]) -> Any:
    x = np.arange(n_out, dtype=np.float64)
    if how == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        adjust = n_out / (scale * n_in)
        return n_in / 2 * (1 - adjust) + (x + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if n_out > 1 else np.zeros(1)
    if how == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if how == "align_corners":
        length = scale * n_in  # ONNX counts the fraction that the size was rounded down by
        length = n_out if abs(length - n_out) < 1e-4 * n_out else length
        return x * (n_in - 1) / (length - 1) if n_out > 1 else np.zeros(1)
    if how == "asymmetric":
        return x / scale
    if how == "tf_crop_and_resize":
        start, end = roi
        if n_out == 1:
            return np.array([0.5 * (start + end) * (n_in - 1)])
        return start * (n_in - 1) + x * (end - start) * (n_in - 1) / (n_out - 1)
    raise GraphError(f"resize: unknown coordinate_transformation_mode {how!r}")


def _kernel(s: Sampling, distance: Any) -> Any:
    d = np.abs(distance)
    if s.mode == "linear":
        return np.maximum(0, 1 - d)
    a = s.cubic_coefficient
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _taps(s: Sampling, where: Any, n_in: int, scale: float) -> tuple[Any, Any]:
    """Source positions and weights of each output position, both (n_out, taps)."""
    squeeze = min(scale, 1.0) if s.antialias else 1.0
    reach = (1 if s.mode == "linear" else 2) / squeeze
    first = np.floor(where).astype(np.int64) + 1 - int(np.ceil(reach))
    taps = first[:, None] + np.arange(2 * int(np.ceil(reach)))[None, :]
    weights = _kernel(s, (taps - where[:, None]) * squeeze)
    outside = (taps < 0) | (taps >= n_in)
    if s.exclude_outside or s.antialias:
        weights = np.where(outside & s.exclude_outside, 0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    used = (weights != 0).any(axis=0)
    return np.clip(taps, 0, n_in - 1)[:, used], weights[:, used]


def _resize_axis(x: Tensor, axis: int, n_out: int, scale: float, s: Sampling, roi: tuple[float, float]) -> Tensor:
    g, n_in = x.graph, x.shape[axis]
    where = _source_positions(s.coordinates, n_in, n_out, scale, roi)
    shape = replace_at(x.shape, axis, n_out)
    missing = (where < 0) | (where > n_in - 1) if s.coordinates == "tf_crop_and_resize" else np.zeros(n_out, bool)
    blank = g.constant(missing, "outside") if missing.any() else None

    def guarded(i: Sequence[Expr], value: Expr) -> Expr:
        return value if blank is None else select(blank[i[axis]], const(s.extrapolation, x.dtype), value)

    if s.mode == "nearest":
        rounded = _NEAREST[s.nearest](where) if s.coordinates != "tf_half_pixel_for_nn" else np.floor(where)
        nearest: Array = np.clip(rounded, 0, n_in - 1).astype(np.int64)
        at = affine_or_table(g, nearest, "resize_index")
        return g.compute(shape, lambda *i: guarded(i, x.at(replace_at(i, axis, at(i[axis])))), name="resize")
    taps, weights = _taps(s, where, n_in, scale)
    count = taps.shape[1]
    places = table(g, taps, "resize_index")
    factors = g.constant(weights.astype(np.float64 if x.dtype == "float64" else np.float32), "resize_weight")

    def term(i: Sequence[Expr], k: Expr) -> Expr:
        value = x.at(replace_at(i, axis, places[i[axis], k]))
        return cast(value, factors.dtype) * factors[i[axis], k]

    def unrolled(*i: Expr) -> Expr:
        total = term(i, index(0))
        for k in range(1, count):
            total = total + term(i, index(k))
        return guarded(i, cast(total, x.dtype))

    if count <= 4:
        return g.compute(shape, unrolled, name="resize")
    total = reduction(g, shape, (count,), "sum", lambda i, r: term(i, r[0]), "resize")
    return g.compute(shape, lambda *i: guarded(i, cast(total.at(i), x.dtype)), name="resize")


def resize(
    x: Tensor,
    sizes: Sequence[int],
    scales: Sequence[float] | None = None,
    sampling: Sampling | None = None,
    axes: Sequence[int] | None = None,
    roi: Sequence[float] | None = None,
) -> Tensor:
    """``x`` with the dimensions ``axes`` (all if None) resized to ``sizes``, one axis after the other.
    ``scales`` are the exact ratios where they are not ``size / old size``; ``roi`` is all starts, then all
    ends, for tf_crop_and_resize."""
    s = sampling or Sampling()
    if s.mode not in ("nearest", "linear", "cubic"):
        raise GraphError(f"resize: expected a mode of nearest, linear or cubic; got {s.mode!r}")
    if s.nearest not in _NEAREST:
        raise GraphError(f"resize: expected a nearest_mode of {', '.join(_NEAREST)}; got {s.nearest!r}")
    over = [axis_number(a, x.rank, "resize") for a in (range(x.rank) if axes is None else axes)]
    if len(sizes) != len(over):
        raise GraphError(f"resize: expected {len(over)} sizes; got {list(sizes)}")
    if any(n < 1 for n in sizes) or any(f <= 0 for f in scales or ()):
        raise GraphError(f"resize: expected sizes of at least 1 and positive scales; got {list(sizes)}, {scales}")
    if s.mode == "nearest" and s.coordinates != "tf_crop_and_resize":
        return _resize_nearest(x, over, sizes, scales, s)
    for k, (axis, n_out) in enumerate(zip(over, sizes, strict=True)):
        scale = scales[k] if scales is not None else n_out / x.shape[axis]
        box = (roi[k], roi[len(over) + k]) if roi else (0.0, 1.0)
        if n_out == x.shape[axis] and scale == 1 and box == (0.0, 1.0):
            continue
        x = _resize_axis(x, axis, int(n_out), float(scale), s, box)
    return x


def _resize_nearest(
    x: Tensor, axes: Sequence[int], sizes: Sequence[int], scales: Sequence[float] | None, s: Sampling
) -> Tensor:
    """All axes in one stage."""
    maps = {}
    shape = list(x.shape)
    for k, (axis, n_out) in enumerate(zip(axes, sizes, strict=True)):
        n_in = x.shape[axis]
        scale = scales[k] if scales is not None else n_out / n_in
        if n_out == n_in and scale == 1:
            continue
        where = _source_positions(s.coordinates, n_in, int(n_out), float(scale), (0.0, 1.0))
        rounded = np.floor(where) if s.coordinates == "tf_half_pixel_for_nn" else _NEAREST[s.nearest](where)
        nearest: Array = np.clip(rounded, 0, n_in - 1).astype(np.int64)
        maps[axis] = affine_or_table(x.graph, nearest, "resize_index")
        shape[axis] = int(n_out)
    if not maps:
        return x
    return x.graph.compute(
        shape, lambda *i: x.at([maps[k](e) if k in maps else e for k, e in enumerate(i)]), name="resize"
    )
