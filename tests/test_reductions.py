"""Reductions that read memory once: producers computed inside a reduction's loops, streams of packed weights, columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import TARGETS, Case, case, check, named, values
from tilewright.cost_model.prior import prior_ns
from tilewright.graph import ops
from tilewright.graph.expr import unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.workload import canonical
from tilewright.schedules.steps import ScheduleError
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.search_space.space import space
from tilewright.tasks import default_for

RNG = np.random.default_rng(0)


def exponentials(rows: int = 5, columns: int = 43) -> Case:
    """``e / sum(e)`` with ``e = exp(x)``: the rows are read back after they were summed."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (rows, columns))
        e = g.compute((rows, columns), lambda i, j: unary("exp", x[i, j]))
        s = g.compute((rows,), lambda i, k: e[i, k], reduce=(columns,), reducer="sum")
        return g.compute((rows, columns), lambda i, j: e[i, j] / s[i])

    return case(make, {"x": values(RNG, (rows, columns))})


GUEST = "at t0 t1 tile\nat t1 t2 i0.0\n"
GUESTS = {
    "elements": GUEST,
    "lanes": GUEST + "split t1 i1 8\nvectorize t1 i1.1",
    "separate accumulators": GUEST + "split t1 i1 16 4\nunroll t1 i1.1\nspread t1 i1.1\nvectorize t1 i1.2",
    "threads": GUEST + "parallel t2 1\nsplit t1 i1 8\nvectorize t1 i1.1",
    "blocks of the reduction": "at t0 t1 tile\nat t1 t2 root\nsplit t1 i1 8\norder t1 i1.0 i0.0 i1.1\nvectorize t1 i1.1",
    "a strip of rows": "at t0 t1 tile\nat t1 t2 i0.0\nsplit t2 i0 4\norder t2 i0.0 i1.0 i0.1\nvectorize t2 i0.1\norder t1 i1.0 i0.1",
}


@pytest.mark.parametrize("text", GUESTS.values(), ids=GUESTS)
def test_a_producer_inside_all_loops_of_a_reduction(text: str) -> None:
    program = check(exponentials(), text, threads=2)
    assert str(program).count("exp(") <= 3, "it is computed once: in full tiles, a short one, and the rest"


PLACES = {
    "rows": "at t0 t2 i0.0\nat t1 t2 i0.0\nsplit t0 i1 8\nvectorize t0 i1.1\nsplit t2 i1 8\nvectorize t2 i1.1\nparallel t2 1",
    "everything": "at t0 t2 root\nat t1 t2 root",
    "as a guest": GUEST + "split t1 i1 8\nvectorize t1 i1.1",
}


@pytest.mark.parametrize("text", PLACES.values(), ids=PLACES)
def test_rows_stored_where_the_output_will_be(text: str) -> None:
    program = check(exponentials(), text + "\ninplace t0", threads=2)
    assert "t0.buf" not in str(program)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at t0 t2 i0.0\nat t1 t2 i0.0\ninplace t1", "expected a stage without a reduction"),
        ("at t0 t2 root\nat t1 t2 i0.0\ninplace t0", "expected t1, which reads it, at the same loop"),
        ("at t0 t2 root\nat t1 t2 root\ninplace t2", "expected a stage computed inside another"),
    ],
)
def test_a_place_that_is_needed_twice_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(exponentials(), text)


def test_another_element_of_the_output_is_no_place() -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (35,))
        a = g.compute((35,), lambda i: x[i] * 2)
        return g.compute((35,), lambda i: a[i] + a[(-i) + 34])

    with pytest.raises(ScheduleError, match="read just the element that it writes"):
        check(case(make, {"x": values(RNG, (35,))}), "at t0 t1 root\ninplace t0")


@pytest.mark.parametrize("special", [0.0, np.inf, -np.inf, np.nan, 3e38])
def test_exponentials_below_a_maximum(special: float) -> None:
    """The cheaper exponential gives what the other gives, for every kind of row."""
    rows = values(RNG, (3, 21)) * np.float32(30)
    rows[1, 4] = special
    rows[2] = -np.inf if special == -np.inf else rows[2]

    def make(g: Graph) -> Tensor:
        x = g.input("x", (3, 21))
        m = g.compute((3,), lambda i, k: x[i, k], reduce=(21,), reducer="max")
        e = g.compute((3, 21), lambda i, j: unary("exp", x[i, j] - m[i]))
        s = g.compute((3,), lambda i, k: e[i, k], reduce=(21,), reducer="sum")
        return g.compute((3, 21), lambda i, j: e[i, j] / s[i])

    c = case(make, {"x": rows})
    for name in TARGETS:
        for s in space(c.workload, named(name)).sketches:
            check(c, s.schedule(dict(s.preferred)), target=named(name))
    low = check(c, "at t0 t3 i0.0\nat t1 t3 i0.0\nat t2 t3 i0.0\ninplace t1")
    assert "exp_falling" in str(low)


def test_two_reductions_to_one_number() -> None:
    """The logarithm of a sum of exponentials is one kernel without a row in memory."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (5, 43))
        m = g.compute((5,), lambda i, k: x[i, k], reduce=(43,), reducer="max")
        s = g.compute((5,), lambda i, k: unary("exp", x[i, k] - m[i]), reduce=(43,), reducer="sum")
        return g.compute((5,), lambda i: unary("log", s[i]) + m[i])

    c = case(make, {"x": values(RNG, (5, 43))})
    s = sketch(c, "rows[v=reduced", threads=2)
    for row in some(s):
        assert "exp_falling" in str(check(c, s.schedule(row), threads=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GUEST + "split t0 i1 8", "has no loops of its own"),
        ("at t0 t1 i0.0\nat t1 t2 i0.0", "expected tile, inside all loops of t1"),
        ("at t0 t2 i0.0\nat t1 t0 tile\n", "t0 is used before|computed inside itself|expected"),
    ],
)
def test_a_guest_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(exponentials(), text)


def test_a_guest_with_other_axes_than_its_host_is_refused() -> None:
    def make(g: Graph) -> Tensor:
        x, y = g.input("x", (5,)), g.input("y", (5, 7))
        e = g.compute((5,), lambda k: unary("exp", x[k]))
        s = g.compute((7,), lambda j, k: e[k] * y[k, j], reduce=(5,), reducer="sum")
        return g.compute((7, 5), lambda j, k: e[k] - s[j])

    with pytest.raises(ScheduleError, match="expected the axes"):
        check(case(make, {"x": values(RNG, (5,)), "y": values(RNG, (5, 7))}), "at t0 t1 tile\nat t1 t2 root")


def sketch(c: Case, name: str, threads: int = 1, lanes: int = 4) -> Sketch:
    """The sketch of that name on a machine with caches so small that everything is large."""
    small = replace(named("zen3", threads), vector_bits=32 * lanes, l1d_bytes=256, l2_bytes=512)
    return next(s for s in space(c.workload, small).sketches if s.name.startswith(name))


def some(s: Sketch, count: int = 12) -> list[dict[str, int]]:
    """Some points of a sketch, the preferred one first."""
    rows = enumerate_points(s).rows
    picked = np.random.default_rng(0).choice(len(rows), min(count, len(rows)), replace=False)
    return [dict(s.preferred), *(s.row(rows[k]) for k in picked)]


def matrix(rows: int, columns: int = 37, inner: int = 29) -> Case:
    """A few rows times a constant matrix."""
    x, w = values(RNG, (rows, inner), whole=True), values(RNG, (inner, columns), whole=True)

    def make(g: Graph) -> Tensor:
        a, b = g.input("x", (rows, inner)), g.constant(w)
        return g.compute((rows, columns), lambda i, j, k: a[i, k] * b[k, j], reduce=(inner,), reducer="sum")

    return case(make, {"x": x}, exact=True)


@pytest.mark.parametrize("rows", [1, 3])
def test_streams_of_a_packed_matrix(rows: int) -> None:
    c = matrix(rows)
    s = sketch(c, "streams", threads=2)
    for row in some(s):
        check(c, s.schedule(row), threads=2)


def test_a_matrix_that_many_rows_use_is_not_streamed() -> None:
    with pytest.raises(StopIteration):
        sketch(matrix(40), "streams")


@pytest.mark.parametrize("reducer", ["sum", "max", "min"])
def test_columns(reducer: str) -> None:
    x = values(RNG, (3, 13, 37), whole=True)

    def make(g: Graph) -> Tensor:
        a = g.input("x", (3, 13, 37))
        return g.compute((3, 37), lambda i, j, k: a[i, k, j], reduce=(13,), reducer=reducer)

    c = case(make, {"x": x}, exact=True)
    s = sketch(c, "columns", threads=2)
    for row in some(s):
        check(c, s.schedule(row), threads=2)


def test_several_streams_are_expected_to_be_faster_than_one() -> None:
    """A matrix in memory: the prior knows that one stream of it is slow."""
    c = matrix(1, 4096, 4096)
    s = next(s for s in space(c.workload, named("zen3")).sketches if s.name.startswith("streams"))
    one, four = (prior_ns(s, np.array([[{"v": 8, "t": t, "u": 1}[p.name] for p in s.params]])) for t in (1, 4))
    assert four[0] < 0.8 * one[0]


def test_sums_over_a_middle_axis_are_read_in_long_runs() -> None:
    """Rows of a tensor in the last cache that are added up in columns of a line or two: each step begins elsewhere."""
    target = replace(named("zen3"), l1d_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    g = Graph()
    out = ops.reduce_sum(g.input("x", (8, 512, 511)), [1])
    g.output(out)
    w, _ = canonical(g.nodes, out.name, g.types, g.constants)
    assert default_for(w, target).sketch.name.startswith("columns")
