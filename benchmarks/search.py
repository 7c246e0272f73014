"""Search strategies on one space that is measured as a whole, so that what a strategy missed is known.

    python benchmarks/search.py --table matmul.json     # measures once, then replays
    python benchmarks/search.py --table t.json --space conv_64x56_k3_bias_relu --cold --markdown
    python benchmarks/search.py --table t.json --space matmul_512 --for 50   # in pieces: resumes where it stopped

The space is thinned evenly to ``--limit`` points, all are measured, and each strategy then searches it by replay
with several seeds. Regret after k measurements is how much slower the best found so far is than the best there is;
"within 5 %" is how many measurements, and how many seconds of building, checking, timing and ranking, it takes until
the best so far is at most 5 % slower than the best there is. Strategies start from the default schedule, as the tuner
does, or with ``--cold`` without it. Exit codes: 0 ok, 2 usage, 3 the table is not complete yet, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import common, workloads
from benchmarks.measured_space import Table, measure, points, read, request, thinned
from tilewright.display import time_text
from tilewright.graph import ops
from tilewright.graph.graph import Graph
from tilewright.learning import Learner
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.space import space
from tilewright.search_space.strategies import make_strategy
from tilewright.search_space.strategy import SearchConfig
from tilewright.tasks import default_candidate, extract

COMPARED = ("ranked", "random", "optuna")
AFTER = (8, 16, 32, 64)
MOST = 128
"""Measurements of a search."""
NEAR = 1.05
BATCH = 8


def matmul_graph(n: int = 128) -> Graph:
    """A square product."""
    g = Graph()
    g.output(ops.matmul(g.input("a", (n, n)), g.input("b", (n, n))))
    return g


def conv_graph(channels: int = 16, size: int = 28, out: int = 32) -> Graph:
    """A padded 3×3 convolution."""
    g = Graph()
    x, w = g.input("x", (1, channels, size, size)), g.input("w", (out, channels, 3, 3))
    g.output(ops.relu(ops.conv(x, w, pads=(1, 1, 1, 1))))
    return g


GRAPHS: Mapping[str, Callable[[], Graph]] = {"matmul": matmul_graph, "conv": conv_graph}


def graph_of(name: str) -> Graph:
    """One of the small graphs here, or an operator of ``benchmarks/ops.py``. Raises ValueError for another name."""
    if name in GRAPHS:
        return GRAPHS[name]()
    known = workloads.suite("peers")
    if name not in known:
        raise ValueError(f"space: expected one of {', '.join([*GRAPHS, *known])}; got {name!r}")
    return known[name].graph(known[name].arrays())


@dataclass(frozen=True)
class Search:
    """What one search found: the best nanoseconds, and the seconds spent, after each measurement."""

    best_ns: tuple[float, ...]
    spent_s: tuple[float, ...]

    def reached(self, limit_ns: float) -> int | None:
        """Measurements until the best was at most ``limit_ns``; None if it never was."""
        return next((k + 1 for k, ns in enumerate(self.best_ns) if ns <= limit_ns), None)


def search(table: Table, name: str, seed: int, trials: int, cold: bool = False) -> Search:
    """Replay one search of a strategy. Its own work counts as processor time, so that other programs do not matter."""
    began = time.process_time()
    learner = Learner(seed)
    strategy = make_strategy(name, table.space, learner.predict_ns, SearchConfig(seed=seed))
    runner = table.runner()
    best: list[float] = []
    spent: list[float] = []

    def measure(candidate: Candidate) -> None:
        outcome = runner.measure_one(request(candidate))
        time_ns = math.inf if outcome.median_ns is None else outcome.median_ns
        learner.add(candidate, table.space.workload.hash, time_ns)
        strategy.tell(candidate, time_ns)
        best.append(min(time_ns, best[-1] if best else math.inf))
        spent.append(runner.spent_s + time.process_time() - began)

    default = default_candidate(table.space)
    if not cold:
        measure(default)
    while len(best) < trials:
        asked = strategy.ask(min(BATCH, trials - len(best)))
        if not asked:
            break
        for candidate in asked:
            if cold or candidate.key != default.key:
                measure(candidate)
        learner.refit()
    return Search(tuple(best), tuple(spent))


def searches(table: Table, name: str, seeds: int, trials: int = MOST, cold: bool = False) -> list[Search]:
    """One search for each seed."""
    trials = min(trials, len(points(table.space)))
    return [search(table, name, seed, trials, cold) for seed in range(seeds)]


def regrets(table: Table, runs: Sequence[Search], after: Sequence[int] = AFTER) -> list[float]:
    """Median regret over searches, after each number of measurements (a space that is used up stays at what it reached)."""
    return [
        statistics.median(run.best_ns[min(k, len(run.best_ns)) - 1] / table.best_ns - 1 for run in runs) for k in after
    ]


def until_near(table: Table, runs: Sequence[Search]) -> tuple[list[float], list[float]]:
    """Measurements and seconds of each search until its best is within 5 % (infinite where it never was), ascending."""
    counts = [run.reached(NEAR * table.best_ns) for run in runs]
    seconds = [run.spent_s[k - 1] if k else math.inf for run, k in zip(runs, counts, strict=True)]
    return sorted(math.inf if k is None else float(k) for k in counts), sorted(seconds)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="matmul", help="matmul, conv, or an operator of ops.py (default: matmul)")
    parser.add_argument(
        "--table", type=Path, default=None, metavar="FILE", help="measurements: read, completed, written"
    )
    parser.add_argument("--limit", type=common.positive, default=300, help="most points (default: 300)")
    parser.add_argument("--seeds", type=common.positive, default=5, help="searches of each strategy (default: 5)")
    parser.add_argument("--threads", type=common.positive, default=1, help="threads of the kernels (default: 1)")
    parser.add_argument("--strategies", type=common.names, default=list(COMPARED), help=", ".join(COMPARED))
    parser.add_argument("--cold", action="store_true", help="do not start from the default schedule")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=common.seconds,
        default=math.inf,
        metavar="S",
        help="measure for at most so long, then write the table and stop",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as it is in docs/performance.md")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the numbers as JSON")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> int:
    """Measure or load, then compare. Raises ValueError and TableError for what cannot be used."""
    target = tilewright.Target.host(arguments.threads)
    (task,) = extract(graph_of(arguments.space), target)
    small = thinned(space(task.workload, target), arguments.limit)
    path = arguments.table
    known = read(path, small) if path is not None and path.exists() else {}
    wanted = {str(c.schedule) for c in points(small)}
    if wanted - known.keys():
        table = measure(small, known, arguments.seconds)
        if path is not None:
            table.save(path)
        if wanted - table.outcomes.keys():
            common.say(f"{len(table.outcomes)} of {len(wanted)} points measured; run again to go on")
            return 3
    else:
        table = Table(small, {s: known[s] for s in wanted})
    found = {n: searches(table, n, arguments.seeds, MOST, arguments.cold) for n in arguments.strategies}
    report(arguments, task.workload.describe(), table, found)
    return 0


def _ranged(values: Sequence[float], digits: int) -> str:
    """Median and range of sorted numbers."""

    def text(x: float) -> str:
        return "never" if math.isinf(x) else f"{x:.{digits}f}"

    return f"{text(statistics.median(values))} ({text(values[0])} to {text(values[-1])})"


def report(arguments: argparse.Namespace, what: str, table: Table, found: Mapping[str, Sequence[Search]]) -> None:
    """Print the comparison, and write it down if asked to."""
    ok = [o.median_ns for o in table.outcomes.values() if o.median_ns is not None]
    default = table.outcomes[str(default_candidate(table.space).schedule)].median_ns
    shown = "failed" if default is None else f"{100 * (default / table.best_ns - 1):.1f} % slower"
    near = sum(ns <= NEAR * table.best_ns for ns in ok)
    title = (
        f"{arguments.space} ({what}), {common.threads_text(arguments.threads)}: {len(table.outcomes)} points, {len(ok)} valid, "
        f"best {time_text(min(ok))}, median {time_text(statistics.median(ok))}, {near} within 5 %, default {shown}; "
        f"{arguments.seeds} seeds, started {'cold' if arguments.cold else 'from the default'}"
    )
    headers = ["strategy", "measurements to within 5 %", "seconds", *[f"regret after {k}" for k in AFTER]]
    rows = []
    numbers: dict[str, Any] = {}
    for name, runs in found.items():
        counts, seconds = until_near(table, runs)
        regret = regrets(table, runs)
        rows.append([name, _ranged(counts, 0), _ranged(seconds, 1), *[f"{100 * r:.1f} %" for r in regret]])
        finite = [None if math.isinf(k) else k for k in counts]
        numbers[name] = {"measurements": finite, "regret": regret}
    common.show_table(title, headers, rows, arguments.markdown)
    common.write_json(arguments.json, {"points": len(table.outcomes), "after": AFTER, "found": numbers})


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    try:
        return common.program(run, arguments)
    except ValueError as error:
        common.say(f"error: {error}")
        return common.EXIT_USAGE


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
