"""Operators against NumPy, SciPy and ONNX Runtime, with odd attributes, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, special

from tilewright.graph import Graph, GraphError, Tensor, evaluate, ops, optimise
from tilewright.graph.affine import affine
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import loads

Build = Callable[..., Tensor]


def apply(build: Build, *arrays: Any) -> Any:
    """``build`` on inputs that hold ``arrays``, by the oracle; the optimised graph must agree."""
    g = Graph()
    names = [f"x{k}" for k in range(len(arrays))]
    y = build(*(g.input(n, a.shape, a.dtype.name) for n, a in zip(names, arrays, strict=True)))
    g.output(y)
    given_arrays = dict(zip(names, arrays, strict=True))
    plain: Any = evaluate(g, given_arrays)[0]
    clean: Any = evaluate(optimise(g), given_arrays)[0]
    np.testing.assert_allclose(clean, plain, rtol=1e-5, atol=1e-7)
    return plain


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SPECIAL = np.array([-np.inf, -3.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, np.inf, np.nan], np.float32)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (ops.relu, lambda x: np.where(np.isnan(x), x, np.maximum(x, 0))),
        (ops.sign, np.sign),
        (ops.round_even, np.rint),
        (ops.isnan, np.isnan),
        (ops.isinf, np.isinf),
        (lambda x: ops.isinf(x, negative=False), np.isposinf),
        (lambda x: ops.isinf(x, positive=False), np.isneginf),
        (lambda x: ops.isinf(x, False, False), lambda x: np.zeros(x.shape, bool)),
        (lambda x: ops.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)),
        (lambda x: ops.clip(x, high=1), lambda x: np.minimum(x, 1)),
        (lambda x: ops.clip(x), lambda x: x),
        (lambda x: ops.maximum_of(x, 0.25), lambda x: np.maximum(x, 0.25)),
        (lambda x: ops.minimum_of(x, 0.25), lambda x: np.minimum(x, 0.25)),
        (ops.sigmoid, special.expit),
        (ops.softplus, lambda x: np.logaddexp(x, 0)),
        (ops.erf, special.erf),
    ],
)
def test_unary_on_special_values(build: Build, expected: Callable[[Any], Any]) -> None:
    """Infinities, signed zeros, halves and NaN come out as NumPy has them."""
    with np.errstate(all="ignore"):
        want = expected(SPECIAL.astype(np.float64))
    np.testing.assert_allclose(apply(build, SPECIAL), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (ops.gelu, lambda x: x * special.ndtr(x)),
        (lambda x: ops.gelu(x, True), lambda x: x * special.ndtr(x)),
        (ops.mish, lambda x: x * np.tanh(np.logaddexp(x, 0))),
        (ops.silu, lambda x: x * special.expit(x)),
        (ops.softsign, lambda x: x / (1 + np.abs(x))),
        (lambda x: ops.leaky_relu(x, 0.1), lambda x: np.where(x < 0, 0.1 * x, x)),
        (lambda x: ops.elu(x, 2.0), lambda x: np.where(x < 0, 2 * np.expm1(x), x)),
        (lambda x: ops.celu(x, 2.0), lambda x: np.where(x < 0, 2 * np.expm1(x / 2), x)),
        (ops.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
        (lambda x: ops.thresholded_relu(x, 0.3), lambda x: np.where(x > 0.3, x, 0)),
        (
            lambda x: ops.shrink(x, 0.3, 0.1),
            lambda x: np.where(x < -0.3, x + 0.1, np.where(x > 0.3, x - 0.1, 0)),
        ),
        (ops.hard_sigmoid, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        (ops.hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        (ops.reciprocal, lambda x: 1 / x),
        (ops.softmax, special.softmax),
        (ops.log_softmax, special.log_softmax),
        (ops.reduce_log_sum_exp, lambda x: special.logsumexp(x, keepdims=True)),
    ],
)
def test_activations(build: Build, expected: Callable[[Any], Any]) -> None:
    """Each against its definition."""
    x = 3 * random(33)
    np.testing.assert_allclose(apply(build, x), expected(x.astype(np.float64)), rtol=5e-4, atol=2e-3)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float32"])
def test_division_and_remainder_signs(dtype: str) -> None:
    """Integer division truncates; ``mod`` follows the divisor and ``fmod`` the dividend."""
    a = np.array([7, -7, 7, -7, 6, -6], dtype)
    b = np.array([3, 3, -3, -3, 3, 3], dtype)
    np.testing.assert_array_equal(apply(ops.mod, a, b), np.mod(a, b))
    np.testing.assert_array_equal(apply(ops.fmod, a, b), np.fmod(a, b))
    want = a / b if dtype == "float32" else np.trunc(a / b)
    np.testing.assert_allclose(apply(ops.div, a, b), want, rtol=1e-6)


def test_power_types() -> None:
    """Constant exponents become products; integers keep their type."""
    x = np.array([1, 2, -3], np.int64)
    np.testing.assert_array_equal(apply(lambda t: t**2, x), [1, 4, 9])
    np.testing.assert_array_equal(apply(ops.power, x, np.array([3, 0, -1], np.int64)), [1, 1, 0])
    f = np.array([1.0, 4.0, 9.0], np.float32)
    for p in (0.5, -0.5, -1.0, 1.0, 2.0, 3.0, 1.25):
        np.testing.assert_allclose(apply(lambda t, p=p: t**p, f), f.astype(np.float64) ** p, rtol=1e-6)
    np.testing.assert_allclose(apply(ops.power, x[:2], np.array([2.0, 3.0], np.float32)), [1, 8])


def test_tensor_arithmetic() -> None:
    """Operators of tensors and numbers on either side."""
    x, y = random(2, 3), random(3, seed=1)
    got = apply(lambda a, b: 1 - (2 * a + b - 1) / (3 + b * b) @ b.reshape(3, 1) + -b.transpose() / 2, x, y)
    want = 1 - (2 * x + y - 1) / (3 + y * y) @ y.reshape(3, 1) + -y / 2
    np.testing.assert_allclose(got, want, rtol=1e-4)


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.data())
def test_slices_match_numpy(shape: list[int], data: st.DataObject) -> None:
    """Any start, end and step that leaves something."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    cuts = [
        (
            data.draw(st.integers(-6, 6)),
            data.draw(st.integers(-6, 6)),
            data.draw(st.sampled_from([-3, -2, -1, 1, 2])),
        )
        for _ in shape
    ]
    want = x[tuple(slice(a, None if s < 0 and b < -n else b, s) for (a, b, s), n in zip(cuts, shape, strict=True))]
    starts, ends, steps = zip(*cuts, strict=True)
    if want.size == 0:
        with pytest.raises(GraphError, match="the result is empty"):
            apply(lambda t: ops.slice_(t, starts, ends, None, steps), x)
        return
    np.testing.assert_array_equal(apply(lambda t: ops.slice_(t, starts, ends, None, steps), x), want)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.sampled_from(["constant", "edge", "reflect", "wrap"]), st.data())
def test_pads_match_numpy(shape: list[int], mode: Any, data: st.DataObject) -> None:
    """Every mode, also wider than the tensor."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    widths = [(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))) for _ in shape]
    before, after = zip(*widths, strict=True)
    np.testing.assert_array_equal(apply(lambda t: ops.pad(t, before, after, mode=mode), x), np.pad(x, widths, mode))


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.booleans(), st.data())
def test_reductions_match_numpy(shape: list[int], keep: bool, data: st.DataObject) -> None:
    """Any set of axes, negative ones too, and the empty set."""
    x = random(*shape)
    axes = tuple(data.draw(st.sets(st.integers(-len(shape), -1))))
    for build, expected in (
        (ops.reduce_sum, np.sum),
        (ops.reduce_mean, np.mean),
        (ops.reduce_max, np.max),
        (ops.reduce_min, np.min),
        (ops.reduce_prod, np.prod),
    ):
        want = expected(x.astype(np.float64), axis=axes, keepdims=keep)
        np.testing.assert_allclose(apply(lambda t, f=build: f(t, axes, keep), x), want, rtol=1e-5, atol=1e-6)
    norm = np.sqrt(np.sum(x.astype(np.float64) ** 2, axis=axes, keepdims=keep))
    np.testing.assert_allclose(apply(lambda t: ops.reduce_l2(t, axes, keep), x), norm, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.permutations(range(4)), st.data())
def test_moves_match_numpy(shape: list[int], order: list[int], data: st.DataObject) -> None:
    """Transposes, tiles and broadcasts."""
    x = random(*shape)
    perm = [p for p in order if p < len(shape)]
    np.testing.assert_array_equal(apply(lambda t: ops.transpose(t, perm), x), x.transpose(perm))
    repeats = [data.draw(st.integers(1, 3)) for _ in shape]
    np.testing.assert_array_equal(apply(lambda t: ops.tile(t, repeats), x), np.tile(x, repeats))
    full = [data.draw(st.integers(1, 3)), *(3 if d == 1 else d for d in shape)]
    np.testing.assert_array_equal(apply(lambda t: ops.expand(t, full), x), np.broadcast_to(x, full))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 1), (1, 4)),
        ((1, 3, 4), (2, 4, 1)),
    ],
)
def test_matmul_matches_numpy(a: Sequence[int], b: Sequence[int]) -> None:
    """Batches that broadcast, vectors, and an inner size of 1."""
    x, y = random(*a), random(*b, seed=1)
    np.testing.assert_allclose(apply(ops.matmul, x, y), np.matmul(x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("...ij,...jk", [(2, 3, 4), (4, 5)]),
        ("ij,kj", [(2, 3), (4, 3)]),
        ("a...,b...->ab...", [(2, 3), (4, 3)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
    ],
)
def test_einsum_matches_numpy(equation: str, shapes: list[tuple[int, ...]]) -> None:
    """Diagonals, full sums, ellipses and implied outputs."""
    arrays = [random(*s, seed=k) for k, s in enumerate(shapes)]
    got = apply(lambda *t: ops.einsum(equation, *t), *arrays)
    np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_conv_matches_scipy(rank: int, group: int) -> None:
    """Padding, stride and dilation in one, two and three dimensions, with grouped and depthwise channels."""
    x, w = (
        random(2, 4, *(7, 6, 5)[:rank]),
        random(8 if group == 2 else 4, 4 // group, *(3, 2, 2)[:rank], seed=1),
    )
    pads, strides, dilations = [1, 2, 0][:rank] + [0, 1, 1][:rank], [2, 1, 1][:rank], [1, 2, 1][:rank]
    got = apply(lambda a, b: ops.conv(a, b, None, strides, dilations, pads, group), x, w)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    wide = np.zeros((*w.shape[:2], *((k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True))), np.float32)
    spread: Any = (..., *(slice(None, None, d) for d in dilations))
    wide[spread] = w
    per_group = w.shape[0] // group
    for n in range(2):
        for oc in range(w.shape[0]):
            first = oc // per_group * (4 // group)
            full = sum(signal.correlate(padded[n, first + c], wide[oc, c], "valid") for c in range(4 // group))
            want = full[tuple(slice(None, None, s) for s in strides)]
            np.testing.assert_allclose(got[n, oc], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pads", "extra", "group"),
    [
        (2, 2, 1, (0, 0), 0, 1),
        (3, 1, 1, (1, 1), 0, 2),
        (3, 2, 1, (1, 0), 1, 1),
        (4, 3, 1, (0, 2), 2, 2),
        (2, 3, 1, (0, 0), 1, 1),
        (3, 1, 2, (2, 1), 0, 1),
        (2, 3, 2, (1, 1), 0, 4),
        (1, 2, 1, (0, 0), 1, 1),
    ],
)
def test_conv_transpose_scatters(
    kernel: int, stride: int, dilation: int, pads: tuple[int, int], extra: int, group: int, constant: bool
) -> None:
    """Equal to adding each input element times the kernel to the output, for constant and computed
    weights."""
    x, w = random(2, 4, 5), random(4, 3, kernel, seed=1)

    def build(a: Tensor, b: Tensor) -> Tensor:
        weight = a.graph.constant(w) if constant else b
        return ops.conv_transpose(a, weight, None, [stride], [dilation], pads, [extra], group)

    got = apply(build, x, w)
    full = np.zeros((2, 3 * group, 4 * stride + (kernel - 1) * dilation + 1 + extra))
    for c in range(4):
        g = c // (4 // group)
        for i in range(5):
            for k in range(kernel):
                full[:, 3 * g : 3 * g + 3, i * stride + k * dilation] += x[:, c, i, None] * w[None, c, :, k]
    np.testing.assert_allclose(got, full[:, :, pads[0] : full.shape[2] - pads[1]], rtol=1e-5, atol=1e-6)


def test_contractions_have_no_unit_reduction_and_affine_loads() -> None:
    """What a scheduler relies on: a 1x1 convolution reduces over channels only, and every load is affine."""
    g = Graph()
    x = g.input("x", (1, 4, 9, 9))
    ops.conv(x, g.constant(random(8, 4, 1, 1)))
    ops.conv(x, g.constant(random(4, 1, 3, 3)), pads=[1] * 4, group=4)
    ops.conv(x, g.constant(random(8, 2, 3, 3)), strides=[2, 2], group=2)
    ops.conv_transpose(x, g.constant(random(4, 2, 3, 3)), strides=[2, 2])
    stages = [n for n in g.nodes if isinstance(n, Stage)]
    contractions = [s for s in stages if s.reduce]
    assert [len(s.reduce) for s in contractions] == [1, 2, 3, 3]
    assert all(e > 1 for s in contractions for _, e in s.reduce)
    assert all(affine(i) is not None for s in stages for load in loads(s.body) for i in load.index)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_average_pool_counts(include: bool, ceil_mode: bool) -> None:
    """Only cells of the input, or of the declared padding, count."""
    x = random(1, 2, 7)
    window = ops.Window([3], [2], pads=[1, 1], ceil_mode=ceil_mode)
    got = apply(lambda t: ops.average_pool(t, window, include), x)
    for o in range(got.shape[2]):
        low, high = 2 * o - 1, 2 * o + 2
        cells = x[:, :, max(low, 0) : min(high, 7)].astype(np.float64)
        count = min(high, 8) - low if include else cells.shape[2]
        np.testing.assert_allclose(got[:, :, o], cells.sum(axis=2) / count, rtol=1e-6)


def test_normalisations() -> None:
    """Layer, group and instance normalisation against their definitions."""
    x, scale, bias = random(2, 4, 5), random(4, seed=1), random(4, seed=2)

    def normal(a: Any, axes: tuple[int, ...]) -> Any:
        return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + 1e-5)

    d = x.astype(np.float64)
    column = (slice(None), None)
    got = apply(ops.instance_norm, x, scale, bias)
    np.testing.assert_allclose(got, normal(d, (2,)) * scale[column] + bias[column], rtol=1e-4)
    got = apply(lambda a, s, b: ops.group_norm(a, s, b, 2), x, scale, bias)
    want = normal(d.reshape(2, 2, 10), (2,)).reshape(2, 4, 5) * scale[column] + bias[column]
    np.testing.assert_allclose(got, want, rtol=1e-4)
    got = apply(lambda a: ops.layer_norm(a, axis=1)[0], x)
    np.testing.assert_allclose(got, normal(d, (1, 2)), rtol=1e-4)


def test_positions_of_extremes() -> None:
    """First and last of equal maxima, and rows of NaN stay in range."""
    x = np.array([[1, 3, 3], [2, 2, 1], [np.nan] * 3], np.float32)
    np.testing.assert_array_equal(apply(lambda t: ops.arg_max(t, 1, False), x), [1, 0, 0])
    np.testing.assert_array_equal(apply(lambda t: ops.arg_max(t, -1, False, True), x), [2, 1, 2])
    np.testing.assert_array_equal(apply(lambda t: ops.arg_min(t, 1), x)[:2], [[0], [2]])
    np.testing.assert_array_equal(apply(lambda t: ops.hardmax(t), x)[:2], [[0, 1, 0], [1, 0, 0]])
    values = apply(lambda t: ops.top_k(t, 2)[0], x[:2])
    np.testing.assert_array_equal(values, [[3, 3], [2, 2]])
    np.testing.assert_array_equal(apply(lambda t: ops.top_k(t, 2)[1], x[:2]), [[1, 2], [0, 1]])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gathers(dtype: str) -> None:
    """Negative indices, known now or only at run time."""
    x, ids = random(4, 5), np.array([[0, -1], [2, -4]], dtype)
    np.testing.assert_array_equal(apply(lambda t, i: ops.gather(t, i, 0), x, ids), x[ids])
    np.testing.assert_array_equal(apply(lambda t: ops.gather(t, t.graph.constant(ids), 1), x), x[:, ids])
    want = np.take_along_axis(x[:2], ids % 5, 1)
    np.testing.assert_array_equal(apply(lambda t, i: ops.gather_elements(t, i, 1), x, ids % 5)[:2], want)
    np.testing.assert_array_equal(apply(ops.gather_nd, x, ids), x[ids[:, 0], ids[:, 1]])
    with pytest.raises(GraphError, match=r"gather: expected indices of -4..3; got -5..0"):
        apply(lambda t: ops.gather(t, t.graph.constant(np.array([0, -5], dtype)), 0), x)


def test_scatter_of_known_positions() -> None:
    """The last of several updates wins, or all combine."""
    x, updates, target = random(4), random(3, seed=1), [2, 0, 2]
    want = x.copy()
    want[target] = updates
    np.testing.assert_array_equal(apply(lambda a, b: ops.scatter_constant(a, b, target), x, updates), want)
    want = x.astype(np.float64)
    np.add.at(want, target, updates)
    np.testing.assert_allclose(apply(lambda a, b: ops.scatter_constant(a, b, target, "add"), x, updates), want)


def test_integer_upsampling_uses_no_table() -> None:
    """Nearest resizing by a whole factor divides the index."""
    g = Graph()
    y = ops.resize(
        g.input("x", (1, 1, 3, 3)),
        (1, 1, 6, 9),
        sampling=ops.Sampling(coordinates="asymmetric", nearest="floor"),
    )
    assert y.shape == (1, 1, 6, 9)
    assert not g.constants
