"""The oracle against NumPy: the meaning everything else is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.graph import Graph, Stage, evaluate, ops
from tilewright.graph.evaluate import evaluate_stage
from tilewright.graph.expr import all_of, binary, cast, select, unary, var
from tilewright.graph.stage import REDUCERS, load


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_work_is_done_in_float64() -> None:
    """A float32 graph loses nothing to rounding on the way."""
    g = Graph()
    x = g.input("x", (3,))
    g.output((x + 1e-9) - x)
    got: Any = evaluate(g, {"x": np.ones(3, np.float32)})[0]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, 1e-9, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_wrap(dtype: str) -> None:
    """Integer arithmetic keeps its type, with its wrap-around."""
    top = np.iinfo(dtype).max
    g = Graph()
    x = g.input("x", (2,), dtype)
    g.output(x + x)
    x_value = np.array([top, 3], dtype)
    got: Any = evaluate(g, {"x": x_value})[0]
    np.testing.assert_array_equal(got, x_value + x_value)
    assert got.dtype == np.dtype(dtype)


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_reducers(reducer: str, dtype: str) -> None:
    """Each reducer over the last two axes."""
    if dtype == "bool" and reducer in ("sum", "prod"):
        pytest.skip("arithmetic on bool is not used")
    x: Any = (3 * random(2, 3, 4)).astype(dtype)
    i, j, k = var("i"), var("j"), var("k")
    stage = Stage("y", (("i", 2),), load("x", dtype, i, j, k), (("j", 3), ("k", 4)), reducer)
    wide: Any = x.astype(np.float64) if dtype == "float32" else x
    want = getattr(np, reducer)(wide, axis=(1, 2))
    got: Any = evaluate_stage(stage, {"x": wide})
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_big_contractions_agree_with_direct_evaluation() -> None:
    """The path through einsum: shared axes, one-axis factors, and a reduction axis that no factor uses."""
    x, w, v = random(40, 60), random(60, 50, seed=1), random(50, seed=2)
    i, j, k, r = var("i"), var("j"), var("k"), var("r")
    body = load("x", "float32", i, k) * load("w", "float32", k, j) * load("v", "float32", j) * 0.5
    stage = Stage("y", (("i", 40), ("j", 50)), body, (("k", 60), ("r", 9)), "sum")
    assert r.name not in {a for a, _ in stage.axes}
    values: dict[str, Any] = {"x": x.astype(float), "w": w.astype(float), "v": v.astype(float)}
    got: Any = evaluate_stage(stage, values)
    want = 9 * 0.5 * (values["x"] @ values["w"]) * values["v"]
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_big_convolution_with_padding_predicate() -> None:
    """A contraction whose load is guarded by a select."""
    x, w = random(1, 8, 40, 40), random(16, 8, 3, 3, seed=1)
    g = Graph()
    a = g.input("x", x.shape)
    b = g.constant(w)

    def body(n: Any, o: Any, y: Any, z: Any, c: Any, p: Any, q: Any) -> Any:
        row, column = y + p - 1, z + q - 1
        inside = all_of([row.ge(0), row.lt(40), column.ge(0), column.lt(40)])
        return select(inside, a[n, c, row, column], 0) * b[o, c, p, q]

    g.output(g.compute((1, 16, 40, 40), body, (8, 3, 3), "sum"))
    g.output(ops.conv(a, b, pads=[1, 1, 1, 1]))
    one, two = (np.asarray(v, np.float64) for v in evaluate(g, {"x": x}))
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


def test_large_stages_are_done_in_slices() -> None:
    """More points than fit the limit give the same as NumPy."""
    x = random(3000, 2000)
    g = Graph()
    a = g.input("x", x.shape)
    g.output(ops.reduce_max(ops.exp(a), [1], keepdims=False))
    got: Any = evaluate(g, {"x": x})[0]
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)).max(axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("floordiv", np.floor_divide), ("mod", np.remainder), ("bitand", np.bitwise_and),
     ("bitor", np.bitwise_or), ("bitxor", np.bitwise_xor), ("shl", np.left_shift),
     ("max", np.maximum), ("min", np.minimum)],
)  # fmt: skip
def test_integer_operations(kind: str, expected: Any) -> None:
    """Index arithmetic is Python's."""
    x, y = np.array([7, -7, 5, -1], np.int64), np.array([2, 3, 4, 5], np.int64)
    i = var("i")
    body = binary(kind, load("x", "int64", i), load("y", "int64", i))
    got: Any = evaluate_stage(Stage("z", (("i", 4),), body), {"x": x, "y": y})
    np.testing.assert_array_equal(got, expected(x, y))


def test_casts() -> None:
    """To integers towards zero, to bool by comparison, to float32 with its rounding."""
    x: Any = np.array([-1.75, 0.0, 0.1, 2.5])
    i = var("i")
    for dtype, want in (
        ("int32", [-1, 0, 0, 2]),
        ("bool", [True, False, True, True]),
        ("float32", x.astype(np.float32).astype(np.float64)),
    ):
        stage = Stage("y", (("i", 4),), cast(load("x", "float64", i), dtype))
        got: Any = evaluate_stage(stage, {"x": x})
        np.testing.assert_array_equal(got, want)


def test_nan_spreads_through_extremes() -> None:
    """Maximum and minimum of NaN are NaN, as operators and as reducers."""
    x: Any = np.array([[1.0, np.nan], [2.0, 3.0]])
    i, r = var("i"), var("r")
    element = load("x", "float64", i, r)
    for reducer in ("max", "min"):
        got: Any = evaluate_stage(Stage("y", (("i", 2),), element, (("r", 2),), reducer), {"x": x})
        np.testing.assert_array_equal(np.isnan(got), [True, False])
        got = evaluate_stage(Stage("y", (("i", 2), ("r", 2)), binary(reducer, element, 2.5)), {"x": x})
        np.testing.assert_array_equal(np.isnan(got), np.isnan(x))


def test_scalars() -> None:
    """A stage without axes defines one number."""
    g = Graph()
    x = g.input("x", ())
    g.output(g.compute((), lambda: unary("exp", x.at(()))))
    got: Any = evaluate(g, {"x": np.array(1, np.float32)})[0]
    assert got.shape == ()
    np.testing.assert_allclose(got, np.e)
