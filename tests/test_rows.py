"""Rows that are looked up or reflected are copied as vectors (FAULTS 20): the place of a row is found once, one load reads either of
two places, and an axis is cut where its place changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from helpers import Case, case, check, check_sketches, each_target, host, named, values
from tilewright.frames import IndexOutsideError
from tilewright.graph import ops
from tilewright.graph.affine import affine, parted
from tilewright.graph.expr import Const, Expr, Load, select, var
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.traverse import loads
from tilewright.schedules.invariant import invariants
from tilewright.schedules.kernel import build
from tilewright.schedules.nest import Loop, Store
from tilewright.schedules.steps import Schedule, parse
from tilewright.schedules.target import Target
from tilewright.search_space.space import space
from tilewright.tasks import default_for

Golden = Callable[[str], None]
RNG = np.random.default_rng(20)
ROW_AXIS, J = var("i"), var("j")
ROW = Load("int64", "ids", (ROW_AXIS,))
AROUND = [(0, 0), (0, 0), (3, 2), (5, 1)]


def looked_up(rows: int = 40, width: int = 70, count: int = 23, axis: int = 0) -> Case:
    def make(g: Graph) -> Tensor:
        return ops.gather(g.input("x", (rows, width)), g.input("ids", (count,), "int64"), axis)

    size = (rows, width)[axis]
    return case(make, {"x": values(RNG, (rows, width)), "ids": RNG.integers(-size, size, count)})


def nested(g: Graph) -> Tensor:
    """Rows of three dimensions by indices of two."""
    return ops.gather(g.input("x", (9, 4, 7)), g.input("ids", (3, 5), "int64"), 0)


def inner(g: Graph) -> Tensor:
    """Rows in the middle."""
    return ops.gather(g.input("x", (4, 9, 33)), g.input("ids", (15,), "int64"), 1)


def tuples(g: Graph) -> Tensor:
    """Rows that two numbers find."""
    return ops.gather_nd(g.input("x", (9, 9, 40)), ops.reshape(g.input("ids", (30,), "int64"), (15, 2)))


def turned(g: Graph) -> Tensor:
    """Rows that become columns."""
    return ops.transpose(ops.gather(g.input("x", (9, 40)), g.input("ids", (35,), "int64"), 0))


def chain(g: Graph) -> Tensor:
    """Rows with something computed, and a table of places."""
    x, ids = g.input("x", (9, 40)), g.input("ids", (20,), "int64")
    return ops.mul(ops.add(ops.gather(x, ids), ops.gather(x, ops.add(ids, 1))), 0.5)


def summed(g: Graph) -> Tensor:
    """A sum over rows that are looked up."""
    x, ids = g.input("x", (9, 40)), g.input("ids", (20,), "int64")
    return ops.reduce_sum(ops.gather(x, ids), [1])


def each(g: Graph) -> Tensor:
    """Every element is looked up."""
    return ops.gather_elements(g.input("x", (9, 40)), ops.reshape(g.input("ids", (80,), "int64"), (2, 40)), 0)


def masked(g: Graph) -> Tensor:
    """Rows that are looked up under a condition that differs from element to element."""
    x, ids = g.input("x", (9, 40)), g.input("ids", (20,), "int64")
    return g.compute((20, 40), lambda i, j: select(j.lt(13), x[ids[i], j], x[i - i, j] * 2))


def diagonal(g: Graph) -> Tensor:
    """A place that moves with the axis beside it."""
    x, ids = g.input("x", (900,)), g.input("ids", (20,), "int64")
    return g.compute((20, 20), lambda i, j: x[ids[j] * 20 + i + j])


FORMS: list[Callable[[Graph], Tensor]] = [nested, inner, tuples, turned, chain, summed, each, masked, diagonal]


def data_of(make: Callable[[Graph], Tensor]) -> dict[str, Any]:
    g = Graph()
    make(g)
    return {
        n: RNG.integers(0, 8, g.types[n].shape) if g.types[n].dtype == "int64" else values(RNG, g.types[n].shape)
        for n in g.inputs
    }


@pytest.mark.parametrize("make", FORMS)
def test_every_schedule_of_rows_that_are_looked_up(make: Callable[[Graph], Tensor]) -> None:
    c = case(make, data_of(make))
    for threads in (1, 2):
        check_sketches(c, space(c.workload, host(threads)).sketches, threads, host(threads))


@pytest.mark.parametrize("axis", [0, 1])
def test_every_schedule_of_gather(axis: int) -> None:
    c = looked_up(axis=axis)
    check_sketches(c, space(c.workload, host(2)).sketches, 2, host(2))


def test_an_index_in_parts() -> None:
    """What is affine, and what is not."""
    e = (ROW % 7) * 40 + J * 2 + (ROW_AXIS + 3)
    found = parted(e)
    assert affine(e) is None
    assert list(found.parts.values()) == [ROW % 7]
    assert (found.form.coefficient("j"), found.form.coefficient("i"), found.form.const) == (2, 1, 3)
    assert [found.form.coefficient(n) for n in found.parts] == [40]
    assert parted(found.expr()) == found
    assert parted(J * 2 + 1).parts == {}
    assert parted(ROW - ROW).parts == {}  # what cancels is none
    assert parted(ROW * ROW + J).form.coefficient("j") == 1


def test_a_row_is_found_once_before_its_loop() -> None:
    x = Load("float32", "x", (ROW * 40 + J,))

    def found(value: Expr) -> list[Expr]:
        return invariants(Loop("j", Const("int64", 8), "serial", Store("y", J, value), 8))

    assert found(x + 1.0) == [ROW]
    assert found(Load("float32", "x", (Load("int64", "ids", (J,)) * 40 + ROW_AXIS,))) == []  # it moves
    assert found(select(J.lt(3), x, x * 2.0)) == []  # perhaps nobody asks for it
    assert found(Load("float32", "x", (Load("int64", "y", (ROW_AXIS,)) * 40 + J,))) == []  # it is written


def text_of(c: Case, schedule: Schedule) -> str:
    return "\n".join(build(c.workload, schedule, named("zen3")).lowered.functions)


def test_a_row_is_moved_as_vectors() -> None:
    """By default: no element by itself, and a place for each row."""
    c = looked_up(width=128)
    schedule = default_for(c.workload, named("zen3")).schedule
    text = text_of(c, schedule)
    assert "insertelement" not in text
    assert text.count("load i64") == 1
    assert "vectorize t0 i1" in str(schedule)


def scattered(places: Any, reduction: str = "none", width: int = 40) -> Callable[[Graph], Tensor]:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (30, width))
        u = g.input("u", (len(places), width))
        return ops.scatter_constant(x, u, np.asarray(places)[:, None] * width + np.arange(width), reduction)

    return make


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_of_rows_with_rows_given_twice(reduction: str) -> None:
    """The last of two wins, or both count."""
    places = [3, 29, 0, 3, 17, 3]
    c = case(scattered(places, reduction), {"x": values(RNG, (30, 40)), "u": values(RNG, (6, 40))})
    updates = next(a for a in c.arrays.values() if a.shape == (6, 40)).astype(np.float64)
    expected = next(a for a in c.arrays.values() if a.dtype == np.float32 and a.shape == (30, 40)).astype(np.float64)
    for place, row in zip(places, updates, strict=True):
        old = expected[place]
        expected[place] = {
            "none": row, "add": old + row, "mul": old * row, "max": np.maximum(old, row), "min": np.minimum(old, row)
        }[reduction]  # fmt: skip
    assert np.allclose(c.expected, expected, atol=1e-12)
    check_sketches(c, space(c.workload, host(2)).sketches, 2, host(2))


def test_tables_of_scatter_are_of_rows() -> None:
    g = Graph()
    ops.scatter_constant(g.input("x", (30, 4, 5)), g.input("u", (2, 4, 5)), np.arange(600).reshape(30, 20)[[7, 3]])
    assert [a.shape for a in g.constants.values()] == [(30,)]
    g = Graph()
    ops.scatter_constant(g.input("x", (30, 4)), g.input("u", (2, 4)), np.arange(120).reshape(30, 4)[[7, 3]][:, ::-1])
    assert [a.shape for a in g.constants.values()] == [(30, 4)]  # rows the other way round are elements


def test_scatter_of_elements_is_right_too() -> None:
    def make(g: Graph) -> Tensor:
        return ops.scatter_constant(
            g.input("x", (6, 11)), g.input("u", (9,)), np.array([5, 3, 65, 5, 0, 12, 13, 14, 3])
        )

    c = case(make, {"x": values(RNG, (6, 11)), "u": values(RNG, (9,))})
    check_sketches(c, space(c.workload, host(1)).sketches, 1, host(1))


def test_one_load_reads_either_of_two_places() -> None:
    c = case(scattered([3, 29, 0]), {"x": values(RNG, (30, 40)), "u": values(RNG, (3, 40))})
    text = text_of(c, parse("split t0 i1 40\nvectorize t0 i1.1"))
    assert text.count("load <32 x float>") == 1
    assert ", ptr @tw_zeros" not in "".join(line for line in text.splitlines() if "float" in line)


def test_two_places_that_are_walked_differently() -> None:
    """Both are read, each where it is asked for."""

    def make(g: Graph) -> Tensor:
        x, y, k = g.input("x", (9, 16)), g.input("y", (9, 40)), g.input("k", (9,), "int64")
        return g.compute((9, 16), lambda i, j: select(k[i].gt(3), x[i, j], y[i, j * 2]))

    c = case(make, {"x": values(RNG, (9, 16)), "y": values(RNG, (9, 40)), "k": np.arange(9)})
    check_sketches(c, space(c.workload, host(1)).sketches, 1, host(1))


def padded(shape: tuple[int, ...], around: list[tuple[int, int]], mode: str) -> Case:
    def make(g: Graph) -> Tensor:
        before, after = [b for b, _ in around], [a for _, a in around]
        return ops.pad(g.input("x", shape), before, after, mode=mode)

    c = case(make, {"x": values(RNG, shape)})
    (x,) = (a for a in c.arrays.values() if a.dtype == np.float32)
    assert np.array_equal(c.expected, np.pad(x, around, mode=mode))  # type: ignore[call-overload]
    return c


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    ("shape", "around"),
    [
        ((2, 3, 9, 37), AROUND),
        ((1, 2, 8, 300), AROUND),
        ((50,), [(7, 0)]),
        ((5, 6), [(9, 13), (14, 20)]),  # more than once around
        ((1, 70), [(0, 0), (0, 4)]),
        ((3, 1), [(2, 1), (0, 0)]),
    ],
)
def test_every_schedule_of_pads(shape: tuple[int, ...], around: list[tuple[int, int]], mode: str) -> None:
    c = padded(shape, around, mode)
    for threads in (1, 2):
        check_sketches(c, space(c.workload, host(threads)).sketches, threads, host(threads))


def test_reflected_rows(golden: Golden) -> None:
    c = padded((3, 20, 60), [(0, 0), (2, 2), (2, 2)], "reflect")
    golden(str(check(c, "split t0 i2 16 8\nparallel t0 1\nvectorize t0 i2.2")))


def test_rows_that_are_rolled(golden: Golden) -> None:
    def make(g: Graph) -> Tensor:
        x = g.input("x", (4, 50))
        return ops.gather(x, g.constant(np.roll(np.arange(50), 11)), 1)

    c = case(make, {"x": values(RNG, (4, 50))})
    golden(str(check(c, "split t0 i1 8\nvectorize t0 i1.1")))


def test_an_axis_that_is_parallel_inside_another_is_whole() -> None:
    c = padded((3, 4, 90), [(0, 0), (0, 0), (2, 2)], "reflect")
    check(c, "split t0 i2 16 8\nparallel t0 2\nvectorize t0 i2.2", threads=2)
    check(padded((90,), [(2, 2)], "reflect"), "split t0 i0 16 8\nparallel t0 1\nvectorize t0 i0.2", threads=2)


def test_bytes_that_must_move_of_a_gather() -> None:
    """The rows that are read, not all there are."""
    w = looked_up(1000, 64, 10).workload
    assert w.min_bytes == 10 * 8 + 2 * 10 * 64 * 4
    assert looked_up(10, 64, 1000).workload.min_bytes == 1000 * 8 + 10 * 64 * 4 + 1000 * 64 * 4
    assert len(loads(w.stages[w.output].body)) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_outside_is_still_an_error(threads: int) -> None:
    """Also where the row is found before the loop that copies it."""
    g = Graph()
    g.output(ops.gather(g.input("x", (50, 700)), g.input("ids", (300,), "int64")), "y")
    model = tilewright.compile(g, host(threads))
    x, ids = values(RNG, (50, 700)), RNG.integers(-50, 50, 300)
    assert np.array_equal(model(x, ids)[0], x[ids])
    ids[123] = 50
    with pytest.raises(IndexOutsideError, match=r"expected an index from 0 to 49 .*; got 50"):
        model(x, ids)
    ids[123] = 49
    assert np.array_equal(model(x, ids)[0], x[ids])


@each_target
def test_a_short_row_is_one_vector(target: Target) -> None:
    """Where it takes up to eight registers; a longer one is a loop."""
    row = 8 * target.lanes("float32")
    for width, whole in ((row, True), (row + 1, False)):
        first = str(default_for(looked_up(width=width).workload, target).schedule).splitlines()[0]
        assert first.startswith("split t0 i1 ")
        assert (int(first.split()[-1]) == width) == whole
