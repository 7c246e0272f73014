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
from helpers import Case, difference, run
from random_graphs import random_case
from random_schedules import composed, point

from tilewright.graph.workload import from_json, to_json
from tilewright.schedules.steps import Schedule, ScheduleError, parse

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


def agrees(seed: int, make: Make) -> bool:
    """Whether the schedule of a seed applies; fails if it applies and is wrong."""
    rng = np.random.default_rng(seed)
    c = random_case(seed)
    threads = int(rng.choice([1, 1, 2, 3]))
    schedule = make(c, rng, threads)
    print(f"random_case({seed}), {threads} threads, {schedule}\n")  # shown if anything below fails
    assert parse(str(schedule)) == schedule
    try:
        out, program = run(c, schedule, threads)
    except ScheduleError:
        return False
    wrong = difference(c, out)
    assert wrong is None, f"random_case({seed}): {wrong}\nschedule:\n{schedule}\nprogram:\n{program}"
    return True


def right_pairs(first: int, wanted: int, make: Make) -> Counter[bool]:
    """Pairs tried from seed ``first`` on until ``wanted`` were run: how many applied and how many were
    refused."""
    seen: Counter[bool] = Counter()
    for seed in range(first, first + MOST_TRIES):
        seen[agrees(seed, make)] += 1
        if seen[True] == wanted:
            return seen
    pytest.fail(f"seeds {first} to {first + MOST_TRIES}: only {seen[True]} of {MOST_TRIES} schedules applied")


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_point_of_a_space_gives_what_the_graph_means(batch: int) -> None:
    seen = right_pairs(1000 * batch, POINTS, from_the_space)
    assert seen[False] <= POINTS, "most points that a space calls legal are refused"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_steps_composed_at_random_are_refused_or_right(batch: int) -> None:
    right_pairs(1000 * batch + 500, COMPOSED, from_steps)


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_survive_a_record(seed: int) -> None:
    """What is stored is the same workload again."""
    w = random_case(seed).workload
    assert from_json(to_json(w)) == w
    assert from_json(to_json(w)).hash == w.hash
