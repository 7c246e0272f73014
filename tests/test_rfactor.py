"""Reductions in parts: every size gives what the reduction means, and the space uses them where there are few outputs."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, each_target, run, values
from tilewright.cost_model.prior import prior_ns
from tilewright.graph.expr import maximum
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.steps import RFactor, ScheduleError
from tilewright.schedules.target import Target
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.search_space.space import space
from tilewright.tasks import applies, default_candidate

RNG = np.random.default_rng(0)


def product(m: int, n: int, k: int, epilogue: bool = False, dtype: str = "float32") -> Case:
    """A product, followed by an activation where there is an epilogue."""

    def make(g: Graph) -> Tensor:
        a, b = g.input("a", (m, k), dtype), g.input("b", (k, n), dtype)
        y = g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], (k,), "sum")
        return g.compute((m, n), lambda i, j: maximum(y[i, j] * 2, 1)) if epilogue else y

    data = {"a": values(RNG, (m, k), dtype, whole=True), "b": values(RNG, (k, n), dtype, whole=True)}
    return case(make, data, exact=True)


def reduced(reducer: str, dtype: str, shape: tuple[int, ...] = (3, 14, 5)) -> Case:
    """A tensor reduced over all but its first axis."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", shape, dtype)
        return g.compute(shape[:1], lambda i, *r: x[(i, *r)], shape[1:], reducer)

    return case(make, {"x": values(RNG, shape, dtype, whole=True, top=1 if reducer == "prod" else 4)}, exact=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 11])
@pytest.mark.parametrize("epilogue", [False, True])
def test_products_of_a_prime_depth(size: int, epilogue: bool) -> None:
    check(product(5, 9, 23, epilogue), f"rfactor t0 r0 {size}")


KINDS = [(r, d) for r in ("sum", "prod", "max", "min") for d in ("float32", "float64", "int32")]


@pytest.mark.parametrize(("reducer", "dtype"), [*KINDS, ("max", "bool"), ("min", "bool")])
@pytest.mark.parametrize("size", [4, 7])
def test_every_reducer(reducer: str, dtype: str, size: int) -> None:
    check(reduced(reducer, dtype), f"rfactor t0 r0 {size}")


def test_tiles_of_parts() -> None:
    """Parts are stages like any other: tiled, packed, in parallel; the rest is summed in the loop that adds it."""
    steps = """
    rfactor t0 r0 7
    at t0_sum t0 tile
    at t0_rest t0 tile
    split t0_part i1 4
    split t0_part i2 8
    order t0_part i0.0 i1.0 i2.0 i1.1 i2.1
    parallel t0_part 2
    unroll t0_part i1.1
    vectorize t0_part i2.1
    split t0_part_acc r0b 2
    order t0_part_acc r0b.0 r0b.1 i1.1 i2.1
    pack t0_part_acc 1 i2.0 r0b.0 r0b.1 i2.1
    split t0 i1 8
    vectorize t0 i1.1
    """
    check(product(6, 19, 23), steps, threads=2)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("rfactor t9 r0 2", "expected a stage of"),
        ("rfactor t0 i0 2", "expected a reduction axis of"),
        ("rfactor t0 r0 0", "expected a size of which there are two in 23"),
        ("rfactor t0 r0 12", "expected a size of which there are two in 23"),
        ("rfactor t0 r0 4\nrfactor t0 r0 4", "expected one step for a stage"),
    ],
)
def test_what_does_not_apply_is_refused(steps: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        run(product(5, 9, 23), steps)


def parts(c: Case, target: Target, threads: int = 2) -> list[Sketch]:
    """The sketches of a workload that reduce in parts."""
    return [s for s in space(c.workload, target.with_threads(threads)).sketches if s.name.startswith("parts")]


def turned(m: int, n: int, k: int) -> Case:
    """A product whose factors both lie along the sum, written the other way round than it walks."""

    def make(g: Graph) -> Tensor:
        a, b = g.input("a", (m, k)), g.input("b", (n, k))
        y = g.compute((m, n), lambda i, j, r: a[i, r] * b[j, r], (k,), "sum")
        return g.compute((n, m), lambda j, i: y[i, j] + 1)

    return case(make, {"a": values(RNG, (m, k), whole=True), "b": values(RNG, (n, k), whole=True)}, exact=True)


def everything(reducer: str, shape: tuple[int, ...], dtype: str = "float32") -> Case:
    """A tensor reduced to one number."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", shape, dtype)
        return g.compute((), lambda *r: x[r], shape, reducer)

    return case(make, {"x": values(RNG, shape, dtype, whole=True)}, exact=True)


CASES = {
    "product": lambda: product(9, 21, 4099),
    "epilogue": lambda: product(7, 24, 5003, epilogue=True),
    "even": lambda: product(8, 16, 4096, epilogue=True),
    "turned": lambda: turned(5, 9, 4099),
    "one row": lambda: product(1, 17, 9001),
    "doubles": lambda: product(6, 5, 4099, dtype="float64"),
    "sum": lambda: everything("sum", (70001,)),
    "sum of three axes": lambda: everything("sum", (67, 31, 37)),
    "short outer axes": lambda: everything("sum", (2, 3, 40009)),
    "largest": lambda: everything("max", (301, 307), "int32"),
    "rows": lambda: reduced("min", "float32", (3, 257, 129)),
}


@pytest.mark.slow
@each_target
@pytest.mark.parametrize("name", CASES)
def test_candidates_are_right(name: str, target: Target) -> None:
    """A sample of each sketch, and what the prior likes best, with remainders everywhere."""
    c = CASES[name]()
    sketches = parts(c, target)
    assert sketches
    rng = np.random.default_rng(1)
    for s in sketches:
        rows = enumerate_points(s, 20_000).rows
        best = np.argsort(prior_ns(s, rows), kind="stable")[:1]
        for k in (*best, *rng.choice(len(rows), 2, replace=False)):
            candidate = Candidate(s, tuple(int(x) for x in rows[k]))
            assert applies(candidate), f"{s.name} {s.row(rows[k])}: what the constraints let pass is refused"
            check(c, candidate.schedule, 2, target)


@pytest.mark.parametrize(
    "c", [everything("sum", (1_000_003,)), everything("max", (67, 131, 137)), product(1, 17, 100_003)]
)
@each_target
def test_few_outputs_are_reduced_in_parts_by_default(c: Case, target: Target) -> None:
    default = default_candidate(space(c.workload, target.with_threads(2)))
    assert default.sketch.name.startswith("parts")
    check(c, default.schedule, 2, target)


@each_target
def test_parts_are_for_several_threads_and_few_outputs(target: Target) -> None:
    assert not parts(CASES["sum"](), target, threads=1)
    assert not parts(product(512, 512, 512), target), "enough tiles of outputs for both threads"
    assert not parts(everything("sum", (300,)), target), "too short for threads"
    assert not parts(reduced("sum", "float32", (4096, 64)), target), "enough rows for both threads"


@pytest.mark.slow
@each_target
def test_the_rest_of_parts_is_small(target: Target) -> None:
    """What fixed steps reduce is a small share of it, whatever the extent of the axis."""
    for extent in (64, 67, 97, 1009, 12289, 70001):
        for s in parts(everything("sum", (extent, 1031)), target):
            step = next(x for x in s.template if isinstance(x, RFactor))
            whole = extent if step.axis == "r0" else 1031
            assert whole % step.size <= whole // 32
