"""Every operation of every type, every way to load and store, and every loop structure, against the
oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers import Array, Case, case, check, values
from tilewright.graph.dtypes import FLOATS, INTS, SIZES, UNSIGNED, int_range
from tilewright.graph.expr import (
    MATHS,
    ROUNDING,
    Expr,
    all_of,
    binary,
    cast,
    const,
    maximum,
    minimum,
    select,
    unary,
)
from tilewright.graph.graph import Graph, Tensor

RNG = np.random.default_rng(0)
SCALAR = ""
VECTOR = "split t0 i0 8\nvectorize t0 i0.1"  # full vectors and an odd remainder
WHOLE = "vectorize t0 i0.0"
SCHEDULES = {"scalar": SCALAR, "vector": VECTOR, "whole": WHOLE}


def specials(dtype: str) -> Array:
    """Values that arithmetic goes wrong at."""
    if dtype in FLOATS:
        return np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -3.5], dtype=dtype)
    if dtype == "bool":
        return np.array([False, True])
    low, high = int_range(dtype)
    small = [0, 1, 2, 5, 7] if low == 0 else [0, 1, -1, 5, -7]
    return np.array([low, high, *small], dtype=dtype)


def pairs(dtype: str) -> tuple[Array, Array]:
    """All pairs of the special values."""
    v = specials(dtype)
    a, b = np.meshgrid(v, v, indexing="ij")
    return np.resize(a.ravel(), 83), np.resize(b.ravel(), 83)


def one(a: Array, f: Callable[[Expr], Expr]) -> Case:
    """``f`` of each element."""

    def make(g: Graph) -> Tensor:
        x = g.input("a", a.shape, a.dtype.name)
        return g.compute(a.shape, lambda i: f(x[i]))

    return case(make, {"a": a})


def two(a: Array, b: Array, f: Callable[[Expr, Expr], Expr]) -> Case:
    """``f`` of each pair of elements."""

    def make(g: Graph) -> Tensor:
        x, y = g.input("a", a.shape, a.dtype.name), g.input("b", b.shape, b.dtype.name)
        return g.compute(a.shape, lambda i: f(x[i], y[i]))

    return case(make, {"a": a, "b": b})


# ---------------------------------------------------------------- operations

ARITHMETIC = ("add", "sub", "mul", "div", "fmod", "max", "min", "lt", "le", "eq", "ne")
INTEGER = ("floordiv", "mod", "bitand", "bitor", "bitxor")
LOGIC = ("and", "or", "xor", "max", "min", "lt", "le", "eq", "ne")


def operations() -> list[tuple[str, str]]:
    """Every two-argument operation with every type it is defined for."""
    out = [(k, d) for d in sorted(FLOATS) for k in ARITHMETIC]
    out += [(k, d) for d in sorted(INTS) for k in ARITHMETIC + INTEGER]
    return out + [(k, "bool") for k in LOGIC]


@pytest.mark.parametrize("schedule", ["scalar", "vector"])
@pytest.mark.parametrize(("kind", "dtype"), operations())
def test_two_argument_operations(kind: str, dtype: str, schedule: str) -> None:
    a, b = pairs(dtype)
    check(two(a, b, lambda x, y: binary(kind, x, y)), SCHEDULES[schedule])


@pytest.mark.parametrize("dtype", sorted(INTS))
def test_division_by_a_literal(dtype: str) -> None:
    """Signs, and the smallest value over -1, which traps on some machines."""
    a = np.resize(specials(dtype), 13)
    for divisor in (1, 2, 7) if dtype in UNSIGNED else (1, 2, 7, -1, -3):
        for kind in ("div", "floordiv", "mod", "fmod"):
            check(one(a, lambda x, k=kind, d=divisor: binary(k, x, d)), VECTOR)  # type: ignore[misc]


@pytest.mark.parametrize("dtype", sorted(INTS))
def test_integer_powers_and_shifts(dtype: str) -> None:
    base = np.resize(specials(dtype), 35)
    exponent = np.resize(np.arange(9), 35).astype(dtype)
    check(two(base, exponent, lambda x, y: binary("pow", x, y)), VECTOR)
    bits = np.resize([0, 1, 3, 8 * SIZES[dtype] - 1, 8 * SIZES[dtype], 8 * SIZES[dtype] + 1], 35).astype(dtype)
    for kind in ("shl", "shr"):
        check(two(base, bits, lambda x, y, kind=kind: binary(kind, x, y)), VECTOR)  # type: ignore[misc]


@pytest.mark.parametrize("schedule", ["scalar", "vector"])
@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_one_argument_operations(dtype: str, schedule: str) -> None:
    kinds = {"bool": ("not",)}.get(dtype, ("neg", "abs", *(("bitnot",) if dtype in INTS else ())))
    if dtype in FLOATS:
        kinds = (*kinds, *sorted(ROUNDING), "isnan", "isinf")
    a = np.resize(specials(dtype), 13)
    if dtype in FLOATS:
        a = np.concatenate([a, np.array([0.5, 1.5, -0.5, -2.5, 1e9, -7.25], dtype=dtype)])
    for kind in kinds:
        check(one(a, lambda x, kind=kind: unary(kind, x)), SCHEDULES[schedule])  # type: ignore[misc]


@pytest.mark.parametrize("kind", sorted(MATHS))
def test_maths_functions_in_every_width(kind: str) -> None:
    a = np.linspace(0.05, 0.95, 21, dtype=np.float32) + (1 if kind == "acosh" else 0)
    for text in (SCALAR, VECTOR, WHOLE):
        check(one(a, lambda x: unary(kind, x)), text)
    check(one(a.astype(np.float64), lambda x: unary(kind, x)), VECTOR)


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_floating_point_powers(dtype: str) -> None:
    a, b = np.meshgrid([0.5, 1.0, 2.0, 3.5], [-2.0, 0.0, 0.5, 3.0])
    check(two(a.ravel().astype(dtype), b.ravel().astype(dtype), lambda x, y: binary("pow", x, y)), VECTOR)


@pytest.mark.parametrize("source", sorted(SIZES))
def test_casts(source: str) -> None:
    if source in FLOATS:
        a = np.array([0.0, 1.0, 2.75, 100.5, 300.0, -1.5, -100.75, 0.25, 65537.0, 5e9], dtype=source)
    else:
        a = np.resize(specials(source), 10)
    for target in sorted(SIZES):
        check(one(a, lambda x, target=target: cast(x, target)), VECTOR)  # type: ignore[misc]


@pytest.mark.parametrize("limit", [0.0, 2.0, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("left", [True, False])
def test_extremes_with_a_literal_pass_nan_on(limit: float, left: bool) -> None:
    a = np.resize(specials("float32"), 19)
    for f in (maximum, minimum):
        check(one(a, lambda x, f=f: f(limit, x) if left else f(x, limit)), VECTOR)  # type: ignore[misc]


def test_literals_of_every_type() -> None:
    for dtype in SIZES:
        if dtype in FLOATS:
            numbers: list[float] = [0.1, -0.0, float("inf"), float("-inf"), float("nan"), 3.4028234e38, 1e-45]
        else:
            numbers = list(int_range(dtype))
        a = np.zeros(11, dtype=dtype)
        for n in numbers:
            check(one(a, lambda x, n=n, d=dtype: select(x.eq(x), const(n, d), x)), VECTOR)  # type: ignore[misc]


# ---------------------------------------------------------------- loads


def guarded(x: Tensor, i: Expr, inside: Expr, at: Expr) -> Expr:
    """``x[at]`` where ``inside``, else 7."""
    return select(inside, x[at], cast(const(7, "int64"), x.dtype))


LOADS: dict[str, Callable[[Tensor, Tensor, Expr], Expr]] = {
    "contiguous": lambda x, k, i: x[i + 3],
    "one element": lambda x, k, i: x[5],
    "every second": lambda x, k, i: x[i * 2],
    "every third": lambda x, k, i: x[i * 3 + 1],
    "backwards": lambda x, k, i: x[(-i) + 99],
    "backwards by two": lambda x, k, i: x[(-i) * 2 + 99],
    "quotient": lambda x, k, i: x[i // 3],
    "remainder": lambda x, k, i: x[i % 5],
    "indirect": lambda x, k, i: x[k[i]],
    "indirect twice": lambda x, k, i: x[k[k[i] % 31]],
    "guarded": lambda x, k, i: guarded(x, i, all_of([i.ge(4), i.lt(20)]), i - 4),
    "guarded below": lambda x, k, i: guarded(x, i, i.ge(30), i - 30),
    "guarded every second": lambda x, k, i: guarded(x, i, i.ge(9), i * 2 - 18),
    "guarded every third": lambda x, k, i: guarded(x, i, i.lt(7), i * 3),
    "guarded backwards": lambda x, k, i: guarded(x, i, i.lt(16), (-i) + 15),
    "guarded by a remainder": lambda x, k, i: guarded(x, i, (i % 3).eq(0), i // 3),
    "guarded by data": lambda x, k, i: guarded(x, i, k[i].lt(50), k[i]),
    "guarded by one element": lambda x, k, i: guarded(x, i, k[0].lt(50), i + 2),
    "guarded far off": lambda x, k, i: guarded(x, i, k[0].lt(0), i + 1_000_000),
    "guarded stride by one element": lambda x, k, i: guarded(x, i, k[0].ge(0), i * 2),
    "guarded indirect": lambda x, k, i: guarded(x, i, i.lt(11), k[i]),
    "guarded twice": lambda x, k, i: select(i.lt(20), guarded(x, i, i.ge(3), i - 3), x[i - 20]),
    "both sides": lambda x, k, i: select(i.lt(18), x[i], x[(i - 18) * 3]),
    "decided by the loop": lambda x, k, i: select(i.lt(100), x[i], x[i + 500]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool", "int64"])
@pytest.mark.parametrize("name", LOADS)
def test_loads(name: str, dtype: str) -> None:
    """The input ends where readable memory ends: reading past it would be a fault."""
    n = 31

    def make(g: Graph) -> Tensor:
        x, k = g.input("x", (100,), dtype), g.input("k", (n,), "int64")
        return g.compute((n,), lambda i: LOADS[name](x, k, i))

    c = case(make, {"x": values(RNG, (100,), dtype), "k": RNG.integers(0, 100, n)})
    for text in (
        SCALAR,
        VECTOR,
        WHOLE,
        "split t0 i0 4\nunroll t0 i0.1",
        "split t0 i0 15 5\nvectorize t0 i0.2",
    ):
        check(c, text)


def test_values_of_axes() -> None:
    """An index used as a value, in scalar, unrolled and vector code."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (4, 21), "int64")
        return g.compute((4, 21), lambda i, j: x[i, j] * i + (j // (i + 1)) + (j - 3) % 4 - binary("max", i, j))

    c = case(make, {"x": values(RNG, (4, 21), "int64")})
    for text in (
        "",
        "vectorize t0 i1.0",
        "unroll t0 i0.0\nsplit t0 i1 8\nvectorize t0 i1.1",
        "vectorize t0 i0.0",
    ):
        check(c, text)


# ---------------------------------------------------------------- stores

STORES = {
    "contiguous": "vectorize t0 i1.0",
    "strided": "vectorize t0 i0.0",
    "strided tiles": "split t0 i0 4\nvectorize t0 i0.1",
    "unrolled": "unroll t0 i1.0",
    "streamed": "split t0 i1 8\nvectorize t0 i1.1\nstream t0",
    "streamed odd": "vectorize t0 i1.0\nstream t0",
    "streamed scalar": "stream t0",
    "streamed strided": "vectorize t0 i0.0\nstream t0",
}


@pytest.mark.parametrize("dtype", sorted(SIZES))
@pytest.mark.parametrize("name", STORES)
def test_stores(name: str, dtype: str) -> None:
    for shape in ((6, 24), (5, 36), (7, 13)):

        def make(g: Graph, shape: tuple[int, ...] = shape) -> Tensor:
            x = g.input("x", shape[::-1], dtype)
            return g.compute(shape, lambda i, j: x[j, i])

        check(case(make, {"x": values(RNG, shape[::-1], dtype)}), STORES[name])


# ---------------------------------------------------------------- reductions

REDUCTIONS = {
    "plain": "",
    "vector": "split t0_acc r0 8\nvectorize t0_acc r0.1",
    "whole vector": "vectorize t0_acc r0.0",
    "spread": "split t0_acc r0 5\nunroll t0_acc r0.1\nspread t0_acc r0.1",
    "spread vectors": "split t0_acc r0 16 4\nunroll t0_acc r0.1\nspread t0_acc r0.1\nvectorize t0_acc r0.2",
    "blocks": "split t0_acc r0 12 4\nvectorize t0_acc r0.2",
    "spread outside": "split t0_acc r0 4\nunroll t0_acc r0.0\nspread t0_acc r0.0\nvectorize t0_acc r0.1",
    "rows as vectors": "split t0 i0 4\nvectorize t0 i0.1\norder t0_acc r0.0 i0.1",
    "too large": "split t0_acc r0 64 32\nunroll t0_acc r0.1\nspread t0_acc r0.1\nvectorize t0_acc r0.2",
}


@pytest.mark.parametrize("dtype", sorted(SIZES))
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reducers(name: str, dtype: str) -> None:
    x = values(RNG, (5, 29), dtype, whole=True)
    for reducer in ("sum", "prod", "max", "min"):
        data = np.where(x == 0, 1, x).astype(dtype) if reducer == "prod" and dtype != "bool" else x
        check(reduction(data, reducer), REDUCTIONS[name])


def reduction(x: Array, reducer: str) -> Case:
    """Over the last axis."""

    def make(g: Graph) -> Tensor:
        t = g.input("x", x.shape, x.dtype.name)
        return g.compute(x.shape[:1], lambda i, k: t[i, k], reduce=x.shape[1:], reducer=reducer)

    return case(make, {"x": x})


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_reductions_keep_special_values(name: str, special: float) -> None:
    x = values(RNG, (5, 29))
    for row, place in enumerate((0, 7, 8, 28)):
        x[row, place] = special
    for reducer in ("max", "min", "sum"):
        check(reduction(x, reducer), REDUCTIONS[name])


def test_a_scalar_result() -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (37,))
        return g.compute((), lambda k: x[k] * x[k], reduce=(37,), reducer="sum")

    c = case(make, {"x": values(RNG, (37,))})
    for text in ("", "split t0_acc r0 8\nvectorize t0_acc r0.1", "unroll t0_acc r0.0\nspread t0_acc r0.0"):
        check(c, text)
