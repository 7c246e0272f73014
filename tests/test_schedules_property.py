"""The property everything rests on: any graph under any schedule gives what the graph means.

A schedule is either refused with a :class:`ScheduleError` or right; nothing else is accepted (no broken
program, no error of LLVM, no crash, no byte written outside the output). Graphs and schedules come from
seeds, so a failure names its seed: ``random_case(seed)`` makes the graph and the schedule is printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from helpers import Case, case, check, difference, host, run, runnable
from random_graphs import ordered_case, random_case
from random_schedules import composed, point
from tilewright.graph.expr import Expr, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.read_workload import from_json
from tilewright.graph.workload import to_json
from tilewright.schedules.steps import Schedule, ScheduleError, parse
from tilewright.schedules.winograd import amplification
from tilewright.search_space.space import space

BATCHES = 24
POINTS = 16
COMPOSED = 16
MOST_TRIES = 120
Make = Callable[[Case, np.random.Generator, int], Schedule]


def from_the_space(c: Case, rng: np.random.Generator, threads: int) -> Schedule:
    """A legal point of a sketch."""
    return point(c.workload, rng, threads)[1]


def from_steps(c: Case, rng: np.random.Generator, threads: int) -> Schedule:
    """Steps that no sketch made."""
    return composed(c.workload, rng)


def agrees(seed: int, make: Make, graph: Callable[[int], Case] = random_case) -> bool:
    """Whether the schedule of a seed applies; fails if it applies and is wrong."""
    rng = np.random.default_rng(seed)
    c = graph(seed)
    threads = int(rng.choice([1, 1, 2, 3]))
    schedule = make(c, rng, threads)
    print(f"{graph.__name__}({seed}), {threads} threads, {schedule}\n")  # shown if anything below fails
    assert parse(str(schedule)) == schedule
    for target in runnable(threads):
        try:
            out, program = run(c, schedule, threads, target)
        except ScheduleError:
            return False
        wrong = difference(c, out, amplification(schedule))
        assert wrong is None, f"{graph.__name__}({seed}), {target.cpu}: {wrong}\n{schedule}\nprogram:\n{program}"
    return True


def right_pairs(first: int, wanted: int, make: Make, graph: Callable[[int], Case] = random_case) -> Counter[bool]:
    """Pairs tried from seed ``first`` on until ``wanted`` were run: how many applied and how many were
    refused."""
    seen: Counter[bool] = Counter()
    for seed in range(first, first + MOST_TRIES):
        seen[agrees(seed, make, graph)] += 1
        if seen[True] == wanted:
            return seen
    pytest.fail(f"seeds {first} to {first + MOST_TRIES}: only {seen[True]} of {MOST_TRIES} schedules applied")


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_point_of_a_space_gives_what_the_graph_means(batch: int) -> None:
    seen = right_pairs(1000 * batch, POINTS, from_the_space)
    assert seen[False] <= POINTS, "most points that a space calls legal are refused"


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_steps_composed_at_random_are_refused_or_right(batch: int) -> None:
    right_pairs(1000 * batch + 500, COMPOSED, from_steps)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
@pytest.mark.parametrize("make", [from_the_space, from_steps])
def test_ordered_reductions_give_what_they_mean(batch: int, make: Make) -> None:
    """Scans and selections under points of their spaces and under steps composed at random."""
    right_pairs(1000 * batch + 700, POINTS, make, ordered_case)


@pytest.mark.parametrize("shape", [(3, 2), (5, 40), (40, 5)])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_sketch_of_a_normalisation_applies(shape: tuple[int, int], axis: int) -> None:
    """An axis that some stage reduces is not a row, even if every stage walks it."""
    n = shape[axis]
    small = tuple(1 if k == axis else e for k, e in enumerate(shape))

    def make(g: Graph) -> Tensor:
        def total(t: Tensor) -> Tensor:
            return g.compute(small, lambda i, j, r: t[(r, j) if axis == 0 else (i, r)], (n,), "sum")

        def row(t: Tensor, i: Expr, j: Expr) -> Expr:
            return t[(0, j) if axis == 0 else (i, 0)] * (1.0 / n)

        x = g.input("x", shape)
        e = g.compute(shape, lambda i, j: unary("tanh", x[i, j]))
        mean = total(e)
        d = g.compute(shape, lambda i, j: e[i, j] - row(mean, i, j))
        variance = total(g.compute(shape, lambda i, j: d[i, j] * d[i, j]))
        return g.compute(shape, lambda i, j: d[i, j] * unary("rsqrt", row(variance, i, j) + 1e-3))

    c = case(make, {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)})
    for sketch in space(c.workload, host()).sketches:
        check(c, sketch.schedule(sketch.preferred))


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_survive_a_record(seed: int) -> None:
    """What is stored is the same workload again."""
    w = random_case(seed).workload
    assert from_json(to_json(w)) == w
    assert from_json(to_json(w)).hash == w.hash
