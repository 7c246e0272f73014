"""Scans and selections: what they mean, in every form that a schedule gives them, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright
from helpers import Case, case, check, check_sketches, each_target, run, values
from tilewright.graph import Graph, GraphError, Tensor, ops
from tilewright.graph.ordered import Scan, Select
from tilewright.graph.read_workload import from_json
from tilewright.graph.stage import Stage
from tilewright.graph.workload import to_json
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.target import Target
from tilewright.search_space.space import space

Array = NDArray[Any]
RNG = np.random.default_rng(0)
TYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ACROSS = "split t0 i2 4\nvectorize t0 i2.1\norder t0 i0.0 i2.0 i1.0 i2.1\nparallel t0 2"
ALONG = "split t0 i1 8\nvectorize t0 i1.1\norder t0 i0.0 i2.0 i1.0 i1.1\nparallel t0 2"
BLOCKS = "split t0 i1 24 8\nvectorize t0 i1.2\norder t0 i0.0 i1.0 i2.0 i1.1 i1.2\nparallel t0 1"
PARTS = "rfactor t0 i1 10\nsplit t0_scan i1b 4\nvectorize t0_scan i1b.1\norder t0_scan i0.0 i1a.0 i2.0 i1b.0 i1b.1"


def compiled(build: Callable[[Tensor], Tensor | tuple[Tensor, ...]], x: Array, threads: int = 1) -> list[Array]:
    """The outputs of a compiled operator on ``x``."""
    g = Graph()
    made = build(g.input("x", x.shape, x.dtype.name))
    for t in made if isinstance(made, tuple) else (made,):
        g.output(t)
    return tilewright.compile(g, Target.host(threads))(x)


def scan(reducer: str, exclusive: bool, reverse: bool, dtype: str = "float32") -> Case:
    """A scan along the middle one of three dimensions."""
    shape = (3, 50, 7)
    data = {"x": values(RNG, shape, dtype, whole=True, top=1 if reducer == "prod" else 4)}

    def make(g: Graph) -> Tensor:
        return ops.cumulative(g.input("x", shape, dtype), reducer, 1, exclusive, reverse)

    return case(make, data, exact=True)


def accumulated(x: Array, reducer: str, exclusive: bool, reverse: bool) -> Array:
    """A scan along axis 1 by NumPy, element by element."""
    out = np.empty_like(x)
    f = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[reducer]
    running = np.full_like(x[:, 0], {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}[reducer])
    order = range(x.shape[1])
    for k in reversed(order) if reverse else order:
        following = f(running, x[:, k])
        out[:, k] = running if exclusive else following
        running = following
    return out


# ---------------------------------------------------------------- scans


@pytest.mark.parametrize(("exclusive", "reverse"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_a_scan_keeps_every_prefix(reducer: str, exclusive: bool, reverse: bool) -> None:
    """FAULTS 17: every attribute of CumSum and CumProd, and running maxima, under every form of schedule."""
    c = scan(reducer, exclusive, reverse)
    want = accumulated(c.arrays["x0"].astype(np.float64), reducer, exclusive, reverse)
    np.testing.assert_array_equal(c.expected, want.reshape(c.expected.shape))
    for steps in ("", ACROSS, ALONG, BLOCKS, PARTS):
        check(c, steps, threads=2)


@pytest.mark.parametrize("dtype", [t for t in TYPES if t not in ("float32",)])
def test_scans_of_every_type_wrap_as_numpy(dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 100, (4, 300)).astype(dtype)
    (y,) = compiled(lambda t: ops.cumulative_sum(t, 1), x)
    np.testing.assert_array_equal(y, np.cumsum(x, 1, dtype=dtype))


def test_scans_of_one_element_and_of_a_constant() -> None:
    """A row of one element is its own prefix; an exclusive one is the identity."""
    x = np.array([[3.0], [np.nan]], np.float32)
    np.testing.assert_array_equal(compiled(lambda t: ops.cumulative_sum(t, 1), x)[0], x)
    np.testing.assert_array_equal(compiled(lambda t: ops.cumulative_prod(t, 1, True), x)[0], np.ones((2, 1)))
    g = Graph()
    t = ops.cumulative_sum(g.constant(np.arange(6, dtype=np.float32)), 0)
    g.output(ops.add(g.input("x", (6,)), t))
    np.testing.assert_array_equal(tilewright.compile(g)(np.zeros(6, np.float32))[0], [0, 1, 3, 6, 10, 15])


def test_scans_pass_on_nan_and_infinities_from_where_they_stand() -> None:
    x = np.ones((2, 40), np.float32)
    x[0, 7], x[0, 30], x[1, 3] = np.inf, np.nan, -np.inf
    want = np.cumsum(x, 1)
    for steps in ("", "split t0 i1 8\nvectorize t0 i1.1", "rfactor t0 i1 10"):
        c = case(lambda g: ops.cumulative_sum(g.input("x", (2, 40, 1)), 1), {"x": x[..., None]})
        np.testing.assert_array_equal(run(c, steps)[0].reshape(2, 40), want)


def test_a_long_row_is_linear_work() -> None:
    """FAULTS 17: CumSum of 1x1000000 did not end."""
    x = np.random.default_rng(0).integers(-3, 4, (1, 1_000_000)).astype(np.float32)
    for threads in (1, 2):
        np.testing.assert_array_equal(compiled(lambda t: ops.cumulative_sum(t, 1), x, threads)[0], np.cumsum(x, 1))


# ---------------------------------------------------------------- selections


def best(x: Array, k: int, largest: bool) -> Array:
    """Positions along the last axis in NumPy's order of sorting, the first of equal values first."""
    if not largest:
        forwards: Array = np.argsort(x, axis=-1, kind="stable")
        return forwards[..., :k]
    backwards: Array = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    found: Array = x.shape[-1] - 1 - backwards[..., ::-1]
    return found[..., :k]


def with_ties(dtype: str, shape: tuple[int, ...]) -> Array:
    """Many equal values and, of floating-point types, NaN, infinities and zeros of both signs."""
    x = np.random.default_rng(2).integers(0, 90, shape).astype(dtype)
    if dtype.startswith("float"):
        x -= 45
        flat = x.reshape(-1)
        flat[::17], flat[5::29], flat[6::31], flat[::11], flat[1::13] = np.nan, np.inf, -np.inf, -0.0, 0.0
    elif not dtype.startswith("u"):
        x -= np.asarray(45, dtype)
    return x


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_selection_sorts_as_numpy(dtype: str, largest: bool) -> None:
    """FAULTS 3 and 17: every type, ties by position, NaN above all numbers, every k."""
    x = with_ties(dtype, (3, 210))
    for k in (1, 2, 7, 64, 209, 210):
        got = compiled(lambda t, k=k: ops.top_k(t, k, 1, largest), x)  # type: ignore[misc]
        where = best(x, k, largest)
        np.testing.assert_array_equal(got[1], where)
        np.testing.assert_array_equal(got[0], np.take_along_axis(x, where, 1))


def test_nan_hide_no_number() -> None:
    """FAULTS 3: TopK of [4, 7, nan, nan] with k = 4 lost the 7."""
    x = np.array([[4, 7, np.nan, np.nan]], np.float32)
    got = compiled(lambda t: ops.top_k(t, 4), x)
    np.testing.assert_array_equal(got[0], [[np.nan, np.nan, 7, 4]])
    np.testing.assert_array_equal(got[1], [[2, 3, 1, 0]])
    got = compiled(lambda t: ops.top_k(t, 3, largest=False), x)
    np.testing.assert_array_equal(got[0], [[4, 7, np.nan]])


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_selections_along_every_axis(axis: int) -> None:
    x = with_ties("float32", (4, 9, 6))
    got = compiled(lambda t: ops.top_k(t, 3, axis), x, threads=2)
    where = np.moveaxis(best(np.moveaxis(x, axis, -1), 3, True), -1, axis)
    np.testing.assert_array_equal(got[1], where)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, where, axis))


@pytest.mark.parametrize("order", ["up", "down", "equal", "shuffled"])
def test_a_long_row_in_any_order(order: str) -> None:
    """FAULTS 17: TopK of 1x100000 took a second. In a row that only rises every value is kept for a while."""
    x = np.arange(100_000, dtype=np.float32)
    x = {"up": x, "down": x[::-1], "equal": 0 * x, "shuffled": np.random.default_rng(0).permutation(x)}[order]
    x = np.ascontiguousarray(x[None])
    got = compiled(lambda t: ops.top_k(t, 100), x)
    np.testing.assert_array_equal(got[1], best(x, 100, True))


@pytest.mark.parametrize(
    "steps",
    [
        "",
        "split t0 r0 16\nvectorize t0 r0.1\nparallel t0 1",
        "split t0 r0 32 8\nunroll t0 r0.1\nvectorize t0 r0.2\nsplit t0 i0 2\norder t0 i0.0 i0.1 r0.0 r0.1 r0.2\nparallel t0 1",
    ],
)
def test_selections_by_vectors_of_rows_with_a_rest(steps: str) -> None:
    x = with_ties("float32", (5, 203))
    c = case(lambda g: ops.top_k(g.input("x", (5, 203)), 11)[1], {"x": x}, exact=True)
    check(c, steps, threads=2)


# ---------------------------------------------------------------- spaces, records, refusals


@pytest.mark.slow
@each_target
def test_every_sketch_applies(target: Target) -> None:
    """Every form that the space offers is right, in parts and with rests too."""

    def row(g: Graph) -> Tensor:
        return ops.cumulative_sum(g.input("x", (1, 65536)), 1)

    long = case(row, {"x": values(RNG, (1, 65536), whole=True, top=2)}, exact=True)
    wide = case(
        lambda g: ops.cumulative_sum(g.input("x", (300, 200)), 0),
        {"x": values(RNG, (300, 200), whole=True)},
        exact=True,
    )
    few = case(lambda g: ops.top_k(g.input("x", (64, 1000)), 5)[1], {"x": values(RNG, (64, 1000))}, exact=True)
    forms = set()
    for c in (long, wide, few):
        sketches = [
            s for s in space(c.workload, target.with_threads(2)).sketches if s.name != "fallback" and s.size >= 4
        ]
        check_sketches(c, sketches, 2, target)
        forms |= {s.name.split(":")[-1] for s in sketches} | {s.name.split(":")[0] for s in sketches if ":" in s.name}
    assert {"along", "across", "select", "parts2", "parts4"} <= forms


@pytest.mark.parametrize("make", [lambda t: ops.cumulative_sum(t, 1, True), lambda t: ops.top_k(t, 3)[1]])
def test_ordered_reductions_survive_a_record(make: Callable[[Tensor], Tensor]) -> None:
    """What is stored is the same workload again, and its attributes are part of the key."""
    w = case(lambda g: make(g.input("x", (4, 9))), {"x": values(RNG, (4, 9))}).workload
    other = case(lambda g: ops.cumulative_sum(g.input("x", (4, 9)), 1), {"x": values(RNG, (4, 9))}).workload
    assert from_json(to_json(w)) == w
    assert from_json(to_json(w)).hash == w.hash != other.hash


def test_a_record_with_another_form_is_refused() -> None:
    w = case(lambda g: ops.top_k(g.input("x", (4, 9)), 3)[1], {"x": values(RNG, (4, 9))}).workload
    for wrong in (["scan", "sum", 0, 1, 0], ["select", "yes"], ["sort"], [], ["scan", "mean", 1, False, False]):
        data = to_json(w)
        data["nodes"][0]["reducer"] = wrong
        with pytest.raises(GraphError):
            from_json(data)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: ops.top_k(t, 10), r"top_k: expected k of 1..9; got 10"),
        (lambda t: ops.top_k(t, 2, 5), r"top_k: expected an axis of -2..1; got 5"),
        (lambda t: ops.cumulative_sum(t, 2), r"cumulative sum: expected an axis of -2..1; got 2"),
        (lambda t: ops.cumulative_sum(ops.isnan(t), 1), r"expected numbers; got bool"),
        (lambda t: ops.cumulative(t, "mean", 1), r"expected a reducer of sum, prod, max, min"),
        (lambda t: own(t, Scan("sum", 0), (5, 9)), r"expected 9 results along axis i0; got 5"),
        (lambda t: own(t, Scan("sum", 7), (9,)), r"one of 1 axes"),
        (lambda t: own(t, Select(True), (12,)), r"expected at most 9 results along axis i0; got 12"),
        (lambda t: own(t, Select(True), ()), r"expected an axis that the results"),
        (lambda t: own(t, Scan("sum", 0), (9, 9)), r"the body uses i0, the axis that the results"),
    ],
)
def test_what_has_no_meaning_is_refused(build: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build(Graph().input("x", (4, 9)))


def own(t: Tensor, form: Scan | Select, shape: tuple[int, ...]) -> Tensor:
    """An ordered reduction written by hand over the last axis of ``t``; of two dimensions it reads by the first."""
    return t.graph.compute(shape, lambda *i: t[i[0] % 4 if len(i) == 3 else 0, i[-1]], (9,), form)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("parallel t0 2", "loop i1.0 is scanned; rfactor scans parts of it"),
        ("vectorize t0 i1.0", "expected the innermost loop, as its lanes are scanned in order"),
        ("vectorize t0 i0.0", "expected a loop inside those of i1, which is scanned"),
        ("rfactor t0 i0 2", "expected i1, the axis that is scanned"),
        ("rfactor t0 i1 3", "expected a size that divides 50"),
        ("rfactor t0 i1 50", "expected a size that divides 50"),
        ("stream t0", "are for reductions and maps that keep no order"),
        ("divide t0 i1 5", "its axes are walked as they are"),
        ("inline t0", "it is the output of the workload"),
        ("block t0", "expected a stage without a reduction"),
    ],
)
def test_schedules_that_lose_the_order_are_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        run(scan("sum", False, False), steps)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("order t0 r0.0 i0.0", "expected the loops of r0, along which is selected, inside all others"),
        ("vectorize t0 i0.0", "expected a loop of r0, along which is selected"),
        ("split t0 r0 12\nvectorize t0 r0.1", "expected vectors of a power of two of lanes"),
        ("split t0 r0 128 16\nvectorize t0 r0.2\nunroll t0 r0.1", "at most 64 values at a time"),
        ("rfactor t0 r0 20", "a selection is not made in parts"),
        ("pack t0 1 root r0.0", "are for reductions and maps that keep no order"),
    ],
)
def test_schedules_of_selections_are_refused(steps: str, message: str) -> None:
    c = case(lambda g: ops.top_k(g.input("x", (5, 200)), 3)[1], {"x": values(RNG, (5, 200))})
    with pytest.raises(ScheduleError, match=message):
        run(c, steps)


def test_one_step_of_points_is_one_evaluation_of_the_body() -> None:
    """Cost is linear in the row, whatever is listed."""
    w = case(lambda g: ops.top_k(g.input("x", (5, 200)), 3)[1], {"x": values(RNG, (5, 200))}).workload
    s = scan("sum", False, False).workload
    assert [n.points for n in w.nodes if isinstance(n, Stage)] == [1000]
    assert [n.points for n in s.nodes if isinstance(n, Stage)] == [3 * 50 * 7]
