"""Positions of extremes: under every kind of schedule, and those of windows with a border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from helpers import case, check_sketches, host
from tilewright.graph import Graph, Tensor, evaluate, ops
from tilewright.search_space.space import space

NAN, INF = np.nan, np.inf
Build = Callable[..., Any]


def outputs(build: Build, *arrays: Any) -> Any:
    """The output of the compiled graph of ``build``; the oracle gives the same."""
    g = Graph()
    names = [f"x{k}" for k in range(len(arrays))]
    g.output(build(*(g.input(n, a.shape, a.dtype.name) for n, a in zip(names, arrays, strict=True))))
    (got,) = tilewright.compile(g, host())(*arrays)
    (oracle,) = evaluate(g, dict(zip(names, arrays, strict=True)))
    with np.errstate(all="ignore"):  # the oracle's range is that of float64
        np.testing.assert_allclose(got, oracle.astype(got.dtype), rtol=1e-5, atol=1e-45)
    return got


def rows(dtype: str, width: int = 37) -> Any:
    """Rows with NaN and infinities at the start, in the middle, at the end, several times and everywhere."""
    x = np.random.default_rng(0).integers(-9, 9, (11, width)).astype(dtype)
    whole = list(range(width))
    places = [([0], NAN), ([-1], NAN), ([5, 20], NAN), (whole, NAN), ([7], INF), ([7, 9], -INF), (whole, INF)]
    for row, (at, what) in enumerate(places):
        x[row, at] = what
    x[7] = -INF
    x[8, 3], x[8, 30] = INF, NAN
    x[9, 3], x[9, 30] = -INF, NAN
    return x


def test_positions_under_every_kind_of_schedule() -> None:
    """Fault 3, whatever the sketch: lanes, accumulators and parts of a row are joined so that NaN is kept."""
    x = rows("float32", 131)[:9]
    for last in (False, True):

        def make(g: Graph, last: bool = last) -> Tensor:
            return ops.arg_max(g.input("x", x.shape), 1, select_last=last)

        c = case(make, {"x": x})
        np.testing.assert_array_equal(c.expected[:4, 0], [0, 130, 20 if last else 5, 130 if last else 0])
        check_sketches(c, space(c.workload, host(2)).sketches, 2, host(2))


def pooled(x: Any, kernel: int, stride: int, pad: int, size: tuple[int, int], columns: bool = False) -> Any:
    """Positions of maxima of windows, one by one: the first NaN, else the first maximum, of what lies inside."""
    n, c, h, w = x.shape
    out = np.zeros((n, c, *size), np.int64)
    for b, k, i, j in np.ndindex(out.shape):
        inside = [
            (y, z)
            for y in range(i * stride - pad, i * stride - pad + kernel)
            for z in range(j * stride - pad, j * stride - pad + kernel)
            if 0 <= y < h and 0 <= z < w
        ]
        y, z = inside[int(np.argmax([x[b, k, y, z] for y, z in inside]))]
        out[b, k, i, j] = (b * c + k) * h * w + (z * h + y if columns else y * w + z)
    return out


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("pad", "stride"), [(0, 2), (1, 2), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_pool_positions_lie_inside(pad: int, stride: int, columns: bool, dtype: str) -> None:
    """Fault 3: windows with NaN, and windows as small as the border (the least integer, minus infinity), give positions of
    elements of theirs."""
    x = np.random.default_rng(0).integers(-3, 3, (2, 3, 9, 8)).astype(dtype)  # many are equal
    if dtype == "float32":
        x[0, 0], x[0, 1] = NAN, -INF
        x[0, 2, 4, 4] = x[1, 0, 0, 0] = x[1, 0, 8, 7] = NAN
    else:
        x[0] = np.iinfo(np.int32).min
    window = ops.Window((3, 3), (stride, stride), pads=(pad,) * 4)
    got = outputs(lambda t: ops.max_pool_indices(t, window, ops.max_pool(t, window), columns), x)
    np.testing.assert_array_equal(got, pooled(x, 3, stride, pad, got.shape[2:], columns))


def test_a_window_of_nothing_but_border_has_a_position_in_its_plane() -> None:
    """Fault 3: never out of range."""
    x = np.ones((2, 1, 1, 1), np.float32)
    window = ops.Window((2, 2), (1, 1), (2, 2), (1, 1, 1, 1))
    got = outputs(lambda t: ops.max_pool_indices(t, window, ops.max_pool(t, window)), x)
    np.testing.assert_array_equal(got.ravel(), [0, 1])
