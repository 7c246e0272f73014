"""Factors that each thread packs for itself, a block of vectors at a time."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check, check_sketches, each_target, values
from tilewright.cost_model.analysis import analyse
from tilewright.graph.expr import Expr
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.steps import Order, Pack, Parallel
from tilewright.schedules.target import Target
from tilewright.search_space.candidate import Candidate, legal
from tilewright.search_space.sketch import Sketch
from tilewright.search_space.space import space
from tilewright.tasks import default_candidate

RNG = np.random.default_rng(0)


def product(
    m: int, n: int, k: int, batch: int = 0, turned: bool = False, constant: bool = False, long: bool = False
) -> Case:
    """A product, in a batch, with the second factor (``turned``) or the first (``long``) the other way round, or known beforehand."""
    lead = (batch,) if batch else ()
    first = (*lead, k, m) if long else (*lead, m, k)
    second = (*lead, n, k) if turned else (*lead, k, n)
    weights = values(RNG, second, whole=True)

    def make(g: Graph) -> Tensor:
        a = g.input("a", first)
        b = g.constant(weights) if constant else g.input("b", second)

        def term(*axes: Expr) -> Expr:
            *outer, i, j, r = axes
            return a[(*outer, r, i) if long else (*outer, i, r)] * (b[(*outer, j, r)] if turned else b[(*outer, r, j)])

        return g.compute((*lead, m, n), term, (k,), "sum")

    return case(make, {"a": values(RNG, first, whole=True), "b": weights}, exact=True)


def panels(c: Case, target: Target) -> list[Sketch]:
    """The sketches of a workload that pack panels."""
    return [s for s in space(c.workload, target).sketches if "panel" in s.name]


CASES = {
    "product": lambda: product(29, 43, 50),
    "turned": lambda: product(35, 53, 22, turned=True),
    "batch": lambda: product(26, 37, 19, batch=3),
    "long steps": lambda: product(67, 41, 23, long=True),
    "few columns": lambda: product(61, 9, 33),
}


@pytest.mark.slow
@each_target
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_candidates_are_right(name: str, threads: int, target: Target) -> None:
    """A sample of each sketch, and what the prior likes best, with remainders everywhere."""
    c = CASES[name]()
    sketches = panels(c, target.with_threads(threads))
    assert sketches
    check_sketches(c, sketches, threads, target)


@each_target
def test_the_loop_over_panels_is_the_last_parallel_one(target: Target) -> None:
    """Axes that are in both factors stay outside; the blocks of the repeated axis read one panel after the other."""
    s = panels(product(200, 300, 100, batch=4), target.with_threads(2))[0]
    loops = next(x.loops for x in s.template if isinstance(x, Order))
    pack = next(x for x in s.template if isinstance(x, Pack))
    count = next(x.count for x in s.template if isinstance(x, Parallel))
    assert loops[:3] == ("i0.0", "i2.0", "i1.0")
    assert pack.loop == loops[count - 1] == "i2.0"


@each_target
def test_constant_factors_are_packed_before_any_call(target: Target) -> None:
    """Panels would be packed again and again."""
    assert not panels(product(64, 64, 64, constant=True), target.with_threads(2))


@each_target
def test_large_products_on_several_threads_pack_panels(target: Target) -> None:
    """What one thread packs before the loops the others fetch from its cache: the default packs panels, but for one thread."""
    c = product(512, 512, 512)
    assert "panel" in default_candidate(space(c.workload, target.with_threads(2))).sketch.name
    assert "panel" not in default_candidate(space(c.workload, target)).sketch.name


@each_target
def test_what_is_preferred_is_legal_on_short_axes(target: Target) -> None:
    """A block as large as a short axis, and no larger: otherwise the nearest legal point is one of other registers."""
    for m, n in ((64, 64), (5, 40), (200, 9)):
        for s in space(product(m, n, 300).workload, target.with_threads(2)).sketches:
            if s.name.startswith("tile"):
                row = np.array([[s.preferred[p.name] for p in s.params]])
                assert legal(s, row)[0], f"{s.name}: {s.row(row[0])}"


@each_target
def test_packing_again_costs(target: Target) -> None:
    """A factor that does not depend on an axis outside the loop it is packed at is packed for each of its values."""
    weights = values(RNG, (40, 96), whole=True)

    def make(g: Graph) -> Tensor:
        a, b = g.input("a", (5, 40, 64)), g.input("b", (40, 96))
        return g.compute((5, 64, 96), lambda o, i, j, r: a[o, r, i] * b[r, j], (40,), "sum")

    c = case(make, {"a": values(RNG, (5, 40, 64), whole=True), "b": weights}, exact=True)
    s = next(s for s in panels(c, target.with_threads(2)) if "v=i2" in s.name)
    row = np.array([[s.preferred[p.name] for p in s.params]])
    model = analyse(s, row).phases[-1].model
    assert float(np.max(model.pack_bytes)) == 5 * weights.nbytes
    check(c, Candidate(s, tuple(int(x) for x in row[0])).schedule, 2, target)


@each_target
def test_a_factor_that_the_reduction_walks_in_long_steps_is_packed_too(target: Target) -> None:
    """A transposed first factor of long rows; not one whose rows are read on and on, nor one of short steps."""
    both = [s for s in panels(product(67, 41, 23, long=True), target) if "pack=01" in s.name]
    assert both
    assert all(len([p for p in s.template if isinstance(p, Pack)]) == 2 for s in both)
    for other in (product(67, 41, 23), product(12, 41, 23, long=True)):
        assert not [s for s in panels(other, target) if "pack=01" in s.name]
