"""NaN, infinities, zeros of both signs and powers: what NumPy gives, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright
from helpers import runnable
from tilewright.graph import Graph, Tensor, ops

Array = NDArray[Any]
NAN, INF = np.nan, np.inf


def compiled(build: Callable[..., Tensor], *arrays: Array) -> list[Array]:
    """The first output on inputs that hold ``arrays``, for every target that runs here."""
    out: list[Array] = []
    for target in runnable():
        g = Graph()
        g.output(build(*(g.input(f"x{k}", a.shape, a.dtype.name) for k, a in enumerate(arrays))))
        out += tilewright.compile(g, target)(*arrays)
    return out


ROWS = np.array(
    [[NAN, 1, 5, 2, 3], [1, NAN, 5, NAN, 3], [NAN] * 5, [-INF, INF, INF, 0, 1], [-INF] * 5, [-0.0, 0.0, -0.0, 0.0, -1]],
    np.float32,
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("operator", "numpy"), [(ops.arg_max, np.argmax), (ops.arg_min, np.argmin)])
def test_positions_of_extremes_count_nan_as_one(operator: Any, numpy: Any, dtype: str) -> None:
    """FAULTS 3: ArgMax of [nan, 1, 5, 2, 3] gave 4."""
    x = ROWS.astype(dtype)
    for got in compiled(lambda t: operator(t, 1, False), x):
        np.testing.assert_array_equal(got, numpy(x, axis=1))
    for got in compiled(lambda t: operator(t, 1, False, True), x):
        np.testing.assert_array_equal(got, x.shape[1] - 1 - numpy(x[:, ::-1], axis=1))


def test_hardmax_marks_the_first_nan() -> None:
    """FAULTS 3, another member."""
    for got in compiled(ops.hardmax, ROWS):
        want = np.zeros_like(ROWS)
        want[np.arange(len(ROWS)), np.argmax(ROWS, axis=1)] = 1
        np.testing.assert_array_equal(got, want)


def test_indices_of_a_pool_stay_inside() -> None:
    """FAULTS 3: indices of MaxPool were out of range where a window holds NaN."""
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    x[0, 0, 1, 1] = x[0, 0, 3, 4] = NAN
    window = ops.Window((2, 2))

    def build(t: Tensor) -> Tensor:
        return ops.max_pool_indices(t, window, ops.max_pool(t, window))

    for got in compiled(build, x):
        want = [[np.argmax(x[0, 0, i : i + 2, j : j + 2]) for j in range(4)] for i in range(4)]
        flat = [[(i + w // 2) * 5 + j + w % 2 for j, w in enumerate(row)] for i, row in enumerate(want)]
        np.testing.assert_array_equal(got[0, 0], flat)


@pytest.mark.parametrize("keepdims", [True, False])
def test_logarithms_of_sums_of_infinite_exponentials(keepdims: bool) -> None:
    """FAULTS 4: [inf, 1, 2, 3] and all -inf gave NaN."""
    x = np.array([[INF, 1, 2, 3], [-INF] * 4, [1, -INF, 2, 3], [NAN, 1, INF, 2], [INF, -INF, 0, 0]], np.float32)
    want = np.array([INF, -INF, np.log(np.exp([1, 2, 3]).sum()), NAN, INF], np.float32)
    for got in compiled(lambda t: ops.reduce_log_sum_exp(t, [1], keepdims), x):
        np.testing.assert_allclose(got.reshape(5), want, rtol=1e-6)


def test_sums_of_exponentials_over_everything() -> None:
    """FAULTS 4, another member: several axes, and no infinite maximum."""
    x = np.array([[-INF, -INF], [INF, 0]], np.float32)
    for got in compiled(lambda t: ops.reduce_log_sum_exp(t), x):
        assert got.reshape(()) == INF
    for got in compiled(lambda t: ops.reduce_log_sum_exp(t), np.full((2, 2), 200, np.float32)):
        np.testing.assert_allclose(got.reshape(()), 200 + np.log(4), rtol=1e-6)


BASES = np.array([-INF, -3, -1, -0.5, -0.0, 0.0, 0.25, 1, 2, 9, INF, NAN])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [0.5, -0.5, -1.0, 1.0, 2.0, 3.0, 0.0, -2.0])
def test_powers_keep_their_special_values(exponent: float, dtype: str) -> None:
    """FAULTS 10: x ** -0.5 at -0.0 and -inf; every exponent that becomes another operation, and some that do not."""
    x = BASES.astype(dtype)
    with np.errstate(all="ignore"):
        want = np.power(x, np.full_like(x, exponent))  # for one number NumPy takes a root, of other special values
    for got in compiled(lambda t: t**exponent, x):
        np.testing.assert_allclose(got, want, rtol=3e-7)
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


def whole_power(a: int, b: int, dtype: str) -> int:
    """``a ** b`` truncated towards zero (0 where it has no value), with the wrap-around of a type."""
    exact = a**b if b >= 0 else {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)
    bits = 8 * np.dtype(dtype).itemsize
    low = exact % (1 << bits)
    return low - (1 << bits) if np.dtype(dtype).kind == "i" and low >> (bits - 1) else low


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("power", ["int8", "int64", "uint64"])
def test_powers_of_integers(dtype: str, power: str) -> None:
    """FAULTS 10: negative exponents, and (of the same kind) exponents of more than six bits and of another type."""
    bases = [b for b in (-3, -2, -1, 0, 1, 2, 3, 10) if b >= 0 or dtype.startswith("i")]
    exponents = [
        e
        for e in (-65, -2, -1, 0, 1, 2, 7, 63, 64, 65, 100, 300)
        if (e >= 0 or power[0] == "i") and (e < 128 or "64" in power)
    ]
    a, b = (np.array(v) for v in zip(*((x, y) for x in bases for y in exponents), strict=True))
    want = [whole_power(int(x), int(y), dtype) for x, y in zip(a, b, strict=True)]
    for got in compiled(ops.power, a.astype(dtype), b.astype(power)):
        np.testing.assert_array_equal(got, np.array(want, dtype))
