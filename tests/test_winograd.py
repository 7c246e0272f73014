"""Winograd's convolutions: every size, padding and tile against the oracle, what is refused, and the bound of the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers import Case, case, check, each_target, host, oracle, run, runnable
from tilewright.compiler import compile_graph
from tilewright.cost_model.analysis import analyse
from tilewright.graph import ops
from tilewright.graph.expr import Expr, cast, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.measure.policy import Policy
from tilewright.schedules.guarded import FAR, LARGEST, MOST
from tilewright.schedules.kernel import build
from tilewright.schedules.steps import Schedule, ScheduleError, Winograd, parse
from tilewright.schedules.target import Target
from tilewright.schedules.winograd import LAYOUTS, TRANSFORMS, amplification, convolution, error_bound
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import enumerate_points
from tilewright.search_space.space import space
from tilewright.tasks import applies, default_for


def conv(
    channels: int = 5,
    filters: int = 7,
    size: tuple[int, ...] = (9, 11),
    pad: int = 1,
    batch: int = 1,
    window: tuple[int, ...] | None = None,
    relu: bool = True,
    **options: Any,
) -> Case:
    """A convolution with constant weights, bias and relu."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, channels, *size)).astype(np.float32)
    w = rng.standard_normal((filters, channels, *(window or (3,) * len(size)))).astype(np.float32)
    b = rng.standard_normal(filters).astype(np.float32)

    def make(g: Graph) -> Tensor:
        y = ops.conv(
            g.input("x", x.shape), g.constant(w, "w"), g.constant(b, "b"), pads=[pad] * 2 * len(size), **options
        )
        return ops.relu(y) if relu else y

    return case(make, {"x": x, "w": w, "b": b})


def reduction(c: Case) -> str:
    return next(n for n, s in c.workload.stages.items() if s.reducer is not None)


@pytest.mark.parametrize("tile", TRANSFORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("size", "pad"), [((4, 4), 0), ((5, 6), 1), ((7, 7), 2), ((13, 10), 1), ((8,), 0), ((17,), 1)])
def test_every_size_gives_what_the_convolution_means(tile: int, layout: str, size: tuple[int, ...], pad: int) -> None:
    c = conv(size=size, pad=pad, batch=2)
    check(c, Schedule((Winograd(reduction(c), tile, layout),)))


@pytest.mark.slow
@each_target
@pytest.mark.parametrize(
    ("size", "relu", "threads"), [((6, 6), True, 1), ((7, 9), False, 2), ((16,), True, 2), ((8, 44), True, 2)]
)
def test_the_sketches_apply_and_are_right(size: tuple[int, ...], relu: bool, threads: int, target: Target) -> None:
    c = conv(channels=9, filters=20, size=size, relu=relu)
    sketches = [s for s in space(c.workload, target.with_threads(threads)).sketches if s.name.startswith("winograd")]
    assert {s.name[:9] for s in sketches} == {"winograd2", "winograd4"}
    rng = np.random.default_rng(1)
    for s in sketches:
        rows = enumerate_points(s).rows
        for row in [dict(s.preferred), s.row(rows[int(rng.integers(len(rows)))])]:
            check(c, s.schedule(row), threads, target)


@pytest.mark.slow
@each_target
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("rows", [(8,), ()])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_tiles_divide_the_output_they_are_not_stored(
    rows: tuple[int, ...], joined: bool, layout: str, target: Target
) -> None:
    """They are transformed back, added to what is added and written a few at a time; a row is three tiles longer than a vector."""
    size = (*rows, 4 * (target.lanes("float32") + 3) - (0 if joined else 2))
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 9, *size), "w": (20, 9, *[3] * len(size)), "r": (2, 20, *size), "b": (20,)}
    data = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}

    def make(g: Graph) -> Tensor:
        w, b = g.constant(data["w"], "w"), g.constant(data["b"], "b")
        y = ops.conv(g.input("x", data["x"].shape), w, b, pads=[1] * 2 * len(size))
        return ops.relu(ops.add(y, g.input("r", data["r"].shape)))

    c = case(make, data)
    found = [s for s in space(c.workload, target).sketches if s.name.startswith("winograd4") and layout in s.name]
    assert found
    for s in found:
        points = [tuple(s.preferred[p.name] for p in s.params), *map(tuple, enumerate_points(s).rows)]
        one = next(
            one for p in points if applies(one := Candidate(s, tuple(int(x) for x in p)))
        )  # others are too large
        program = check(c, one.schedule, target=target)
        assert (f"{reduction(c)}_out" in {b.name for b in program.shared}) != joined


@each_target
def test_the_prior_sees_every_point_that_is_read(target: Target) -> None:
    """The transform back reads each product once; loads of different points are not one."""
    c = conv(channels=64, filters=64, size=(56, 56))
    s = next(s for s in space(c.workload, target).sketches if s.name.startswith("winograd4[3x3,channels"))
    rows = np.array([list(s.preferred.values())])
    stages = {x.model.name: x for p in analyse(s, rows).phases for x in p.stages}
    products = 36 * 14 * 14 * 64 * 4
    moved = float(stages[f"{reduction(c)}_row"].traffic[1][0])
    assert products <= moved <= 1.5 * products


@each_target
def test_products_by_point_leave_no_choices_in_the_code(target: Target) -> None:
    """Transformed weights are packed once; the choice by point is made while the code is written."""
    c = conv(channels=8, filters=16, size=(8, 8))
    sketch = next(s for s in space(c.workload, target).sketches if s.name.startswith("winograd4"))
    program = check(c, sketch.schedule(sketch.preferred))
    weights, *checks = [b.name for b in program.packed]
    assert weights == f"{reduction(c)}_mul_acc.pack0"
    assert all(n.endswith((FAR, MOST)) for n in checks), "what is looked at once: the weights"


@each_target
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strides": [2, 2]}, "stride"),
        ({"dilations": [2, 2]}, "dilation"),
        ({"window": (5, 5)}, "a window of five"),
        ({"window": (1, 1), "pad": 0}, "no window"),
    ],
)
def test_other_convolutions_are_refused(options: dict[str, Any], why: str, target: Target) -> None:
    c = conv(**options)
    assert convolution(c.workload.stages[reduction(c)]) is None, why
    with pytest.raises(ScheduleError, match=r"window axes of extent 3 walked with stride 1"):
        check(c, Schedule((Winograd(reduction(c), 2, "tiles"),)))
    assert not [s for s in space(c.workload, target).sketches if s.name.startswith("winograd")]


def test_a_depthwise_convolution_is_refused() -> None:
    x = np.zeros((1, 6, 8, 8), np.float32)
    w = np.zeros((6, 1, 3, 3), np.float32)
    c = case(lambda g: ops.conv(g.input("x", x.shape), g.constant(w, "w"), pads=[1] * 4, group=6), {"x": x, "w": w})
    assert all(convolution(s) is None for s in c.workload.stages.values() if s.reducer)


def test_unknown_tiles_and_stages_are_refused() -> None:
    c = conv()
    with pytest.raises(ScheduleError, match="expected a tile of 2, 4; got 3"):
        check(c, Schedule((Winograd(reduction(c), 3, "tiles"),)))
    with pytest.raises(ScheduleError, match="expected a layout of tiles, channels; got 'rows'"):
        check(c, Schedule((Winograd(reduction(c), 2, "rows"),)))
    with pytest.raises(ScheduleError, match="expected a stage of"):
        check(c, Schedule((Winograd("t9", 2, "tiles"),)))


@pytest.mark.parametrize("tile", TRANSFORMS)
def test_the_matrices_compute_a_convolution(tile: int) -> None:
    """``A((G g) * (B d))`` is ``d`` convolved with ``g``, up to rounding."""
    t = TRANSFORMS[tile]
    rng = np.random.default_rng(tile)
    d, g = rng.standard_normal(tile + 2), rng.standard_normal(3)
    a, b, w = (np.asarray(m) for m in (t.result, t.data, t.weights))
    assert np.allclose(a @ ((w @ g) * (b @ d)), [d[k : k + 3] @ g for k in range(tile)], atol=1e-13)


@pytest.mark.parametrize("tile", TRANSFORMS)
def test_the_error_stays_within_the_bound(tile: int) -> None:
    """The stated bound holds, and is not so loose that it says nothing."""
    c = conv(channels=64, filters=8, size=(16, 16), relu=False)
    schedule = Schedule((Winograd(reduction(c), tile, "tiles"),))
    bound = error_bound(c.workload, schedule)
    assert bound is not None
    assert 1 < amplification(schedule) < 300
    assert amplification(parse("")) == 1.0
    assert error_bound(c.workload, parse("")) is None
    out, _ = run(c, schedule)
    terms = oracle(c.workload, {n: np.abs(a) for n, a in c.arrays.items()})  # the sums of the magnitudes
    worst = float((np.abs(out - c.expected) / terms).max())
    assert bound / 10_000 < worst <= bound


@each_target
def test_it_can_be_forbidden(target: Target) -> None:
    c = conv(channels=64, filters=64, size=(28, 28))
    names = [s.name for s in space(c.workload, target, "direct").sketches]
    assert names
    assert not [n for n in names if n.startswith("winograd")]
    assert "winograd" in str(default_for(c.workload, target).schedule)
    assert "winograd" not in str(default_for(c.workload, target, "direct").schedule)
    assert Policy(algorithms="direct").identity() != Policy().identity()
    with pytest.raises(ValueError, match="algorithms: expected one of any, direct"):
        Policy(algorithms="fast")


SPECIAL = [(np.nan,), (np.inf,), (-np.inf,), (np.inf, -np.inf, np.nan), (3e38,), (-1e30, 2e30)]


@pytest.mark.parametrize("values", SPECIAL)
@pytest.mark.parametrize(("size", "tile"), [((9, 14), 4), ((9, 14), 2), ((23,), 4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_no_ordinary_number_stays_where_it_is(
    values: tuple[float, ...], size: tuple[int, ...], tile: int, layout: str
) -> None:
    """FAULTS 5: one NaN spread to a whole tile (1024 instead of 576 outputs). At corners, edges and inside; numbers whose transforms
    overflow too. All of it is what the sum as it is written gives."""
    c = conv(channels=5, filters=6, size=size)
    x = c.arrays["x0"].copy()
    flat = x.reshape(5, -1)
    for k, v in enumerate(values):
        flat[k, [0, flat.shape[1] - 1, flat.shape[1] // 2 + k][k % 3]] = v
    special = Case(c.workload, {**c.arrays, "x0": x}, oracle(c.workload, {**c.arrays, "x0": x}))
    schedule = Schedule((Winograd(reduction(c), tile, layout),))
    for target in runnable(2):
        out, _ = run(special, schedule, 2, target)
        with np.errstate(all="ignore"):
            direct = run(special, parse(""), 2, target)[0]
        np.testing.assert_array_equal(np.isnan(out), np.isnan(direct))
        np.testing.assert_allclose(out, direct, rtol=1e-4, atol=1e-4)
        if np.isnan(values[0]):
            assert 0 < np.isnan(out).sum() <= 6 * 3 ** len(size)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_weights_are_looked_at_too(value: float, constant: bool) -> None:
    """FAULTS 5, another member: once, where they are constant."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 4, 10, 10)).astype(np.float32), rng.standard_normal((5, 4, 3, 3)).astype(np.float32)
    w[2, 1, 0, 2] = value

    def make(g: Graph) -> Tensor:
        return ops.conv(g.input("x", x.shape), g.constant(w) if constant else g.input("w", w.shape), pads=(1, 1, 1, 1))

    c = case(make, {"x": x, "w": w})
    name = next(s.output for s in c.workload.stages.values() if s.reducer)
    out, program = run(c, Schedule((Winograd(name, 4, "tiles"),)))
    direct = run(c, parse(""))[0]
    np.testing.assert_array_equal(np.isnan(out), np.isnan(direct))
    np.testing.assert_allclose(out, direct, rtol=1e-5, atol=1e-5)
    assert any(b.name.endswith(MOST) for b in program.packed) == constant


def test_a_default_compile_keeps_nan_where_it_is() -> None:
    """FAULTS 5, as a user sees it: 3x3 outputs of each of 64 channels, not a tile of them."""
    rng = np.random.default_rng(0)
    g = Graph()
    w = g.constant(rng.standard_normal((64, 64, 3, 3)).astype(np.float32))
    g.output(ops.conv(g.input("x", (1, 64, 56, 56)), w, pads=(1, 1, 1, 1)))
    model = compile_graph(g, host(2))
    assert "winograd" in model.compiled.kernels[0].schedule
    x = rng.standard_normal((1, 64, 56, 56)).astype(np.float32)
    x[0, 3, 21, 30] = np.nan
    assert np.isnan(model(x)[0]).sum() == 64 * 9


def test_the_check_is_printed() -> None:
    """What a kernel does with other numbers stands in its program."""
    c = conv(channels=5, filters=6, size=(9, 14))
    program = str(check(c, Schedule((Winograd(reduction(c), 4, "channels"),))))
    assert f"{reduction(c)}_0_most[0] < {LARGEST['float32']}" in program
    assert "else:" in program


@pytest.mark.parametrize("tile", TRANSFORMS)
@pytest.mark.parametrize(
    ("body", "dtype", "special"),
    [
        (lambda v: unary("exp", v), "float32", 200),
        (lambda v: 1.0 / v, "float32", 0),
        (lambda v: v * v * v, "float32", 1e20),
        (lambda v: cast(v, "float32"), "int32", 7),
    ],
)
def test_operands_that_are_computed_are_looked_at_themselves(
    body: Callable[[Expr], Expr], dtype: str, special: float, tile: int
) -> None:
    """FAULTS 5, another member: ordinary elements of which ``exp`` or a division makes infinities, and elements that are integers."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(1, 4, (5, 9, 12)).astype(dtype), rng.standard_normal((6, 5, 3, 3)).astype(np.float32)
    x[2, 5, 6] = special

    def make(g: Graph) -> Tensor:
        a, b = g.input("x", x.shape, dtype), g.constant(w)
        return g.compute(
            (6, 7, 10),
            lambda o, i, j, c, k, m: body(a[c, i + k, j + m]) * b[o, c, k, m],
            reduce=(5, 3, 3),
            reducer="sum",
        )

    c = case(make, {"x": x, "w": w})
    out, direct = run(c, Schedule((Winograd(reduction(c), tile, "tiles"),)))[0], run(c, parse(""))[0]
    assert (dtype == "int32") == np.isfinite(direct).all()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(direct))
    np.testing.assert_allclose(out, direct, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("border", [np.nan, np.inf, 1e37])
def test_a_border_is_looked_at_unless_its_constant_is_ordinary(border: float) -> None:
    """FAULTS 5, another member: what is padded with is transformed too."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 5, 8, 9)).astype(np.float32), rng.standard_normal((6, 5, 3, 3)).astype(np.float32)
    c = case(
        lambda g: ops.conv(ops.pad(g.input("x", x.shape), (0, 0, 2, 2), (0, 0, 2, 2), border), g.constant(w)), {"x": x}
    )
    out, direct = run(c, Schedule((Winograd(reduction(c), 4, "tiles"),)))[0], run(c, parse(""))[0]
    np.testing.assert_array_equal(np.isnan(out), np.isnan(direct))
    np.testing.assert_allclose(out, direct, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["reflect", "relu"])
def test_what_is_computed_before_the_windows_has_a_buffer_for_each_part(mode: str) -> None:
    """Check, algorithm and direct form compute it each; of buffers of one name only one would be passed, and all behind it shifted."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 5, 8, 9)).astype(np.float32), rng.standard_normal((6, 5, 3, 3)).astype(np.float32)

    def make(g: Graph) -> Tensor:
        a = g.input("x", x.shape)
        return ops.conv(
            ops.relu(a) if mode == "relu" else ops.pad(a, (0, 0, 2, 2), (0, 0, 2, 2), mode=mode), g.constant(w, "w")
        )

    c = case(make, {"x": x, "w": w})
    schedule = Schedule((Winograd(reduction(c), 4, "tiles"),))
    names = build(c.workload, schedule, host()).layout.names
    assert len(set(names)) == len(names)
    check(c, schedule)
    x[0, 2, 3, 3] = np.nan
    special = Case(c.workload, {**c.arrays, "x0": x}, oracle(c.workload, {**c.arrays, "x0": x}))
    check(special, schedule)
