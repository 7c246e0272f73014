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
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import common, workloads
from tilewright.display import print_table, time_text
from tilewright.graph import ops
from tilewright.graph.graph import Graph
from tilewright.learning import Learner
from tilewright.measure import LocalRunner, Outcome, ReplayRunner, Request
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Param, Sketch, enumerate_points
from tilewright.search_space.space import Space, space
from tilewright.search_space.strategies import make_strategy
from tilewright.search_space.strategy import SearchConfig
from tilewright.tasks import default_candidate, extract

COMPARED = ("ranked", "random", "optuna")
AFTER = (8, 16, 32, 64)
MOST = 128
"""Measurements of a search."""
NEAR = 1.05
BATCH = 8
FORMAT = 1


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


class TableError(ValueError):
    """A table of measurements that cannot be used."""


def thinned(whole: Space, limit: int) -> Space:
    """The space with values of parameters left out, evenly, until it has at most ``limit`` legal points; what the
    default schedule uses stays. Raises ValueError if that is not possible."""
    sketches = list(whole.sketches)
    counts = [len(enumerate_points(s).rows) for s in sketches]
    while sum(counts) > limit:
        order = sorted(range(len(sketches)), key=lambda k: -counts[k])
        cut = next(((k, c) for k in order if (c := _fewer(sketches[k])) is not None), None)
        if cut is None:
            raise ValueError(f"limit: expected at least the {sum(counts)} points that cannot be left out; got {limit}")
        k, sketch = cut
        sketches[k], counts[k] = sketch, len(enumerate_points(sketch).rows)
    return Space(whole.workload, whole.target, tuple(s for s, n in zip(sketches, counts, strict=True) if n))


def _fewer(sketch: Sketch) -> Sketch | None:
    """Without half of the values of the parameter that has most."""
    k = max(range(len(sketch.params)), key=lambda n: len(sketch.params[n].values), default=-1)
    if k < 0 or len(sketch.params[k].values) < 2:
        return None
    p = sketch.params[k]
    keep = sketch.preferred.get(p.name, p.values[0])
    start = p.values.index(keep) % 2 if keep in p.values else 0
    params = list(sketch.params)
    params[k] = Param(p.name, p.values[start::2], p.reason)
    return replace(sketch, params=tuple(params))


def points(of: Space) -> list[Candidate]:
    """The default, which need not be among the values that are searched, and every legal point."""
    found = [default_candidate(of)]
    found += [Candidate(s, tuple(int(v) for v in row)) for s in of.sketches for row in enumerate_points(s).rows]
    return list({str(c.schedule): c for c in found}.values())


def request(candidate: Candidate) -> Request:
    """What is measured."""
    target = candidate.sketch.target.to_json()
    return Request(candidate.sketch.workload.text, str(candidate.schedule), target)


@dataclass(frozen=True)
class Table:
    """Every point of a space with its outcome."""

    space: Space
    outcomes: dict[str, Outcome]
    """By printed schedule."""

    @property
    def best_ns(self) -> float:
        """The best time there is."""
        return min(o.median_ns for o in self.outcomes.values() if o.median_ns is not None)

    def runner(self) -> ReplayRunner:
        """A device that answers from the table."""
        return ReplayRunner({(self.space.workload.hash, s): o for s, o in self.outcomes.items()})

    def save(self, path: Path) -> None:
        """Write it down."""
        data = {
            "format": FORMAT,
            "workload": self.space.workload.text,
            "target": self.space.target.fingerprint(),
            "outcomes": [{"schedule": s, "outcome": o.to_dict()} for s, o in self.outcomes.items()],
        }
        common.write_json(path, data)


def read(path: Path, of: Space) -> dict[str, Outcome]:
    """The outcomes in a table, which need not be complete. Raises TableError for a table of something else."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["workload"] != of.workload.text:
            raise TableError(f"{path}: expected a table of {of.workload.describe()}; it is of something else")
        return {str(o["schedule"]): Outcome.from_dict(o["outcome"]) for o in data["outcomes"]}
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise TableError(f"{path}: expected a table written by this program ({error!r})") from error


def load(path: Path, of: Space) -> Table:
    """Read a table. Raises TableError unless it holds every point of the space."""
    outcomes = read(path, of)
    wanted = [str(c.schedule) for c in points(of)]
    missing = sum(s not in outcomes for s in wanted)
    if missing:
        raise TableError(
            f"{path}: {missing} of {len(wanted)} points are missing: it was made with another limit, target or "
            "version, or not to its end; run again to measure them"
        )
    return Table(of, {s: outcomes[s] for s in wanted})


def measure(of: Space, known: Mapping[str, Outcome], seconds: float = math.inf) -> Table:
    """Measure every point that is not known yet, whatever it takes, or as many as the seconds allow (so that a table can be
    measured in pieces)."""
    start = time.monotonic()
    candidates = points(of)
    outcomes = {s: known[s] for c in candidates if (s := str(c.schedule)) in known}
    with LocalRunner(of.target) as runner:
        runner.preflight()
        for k, c in enumerate(candidates):
            text = str(c.schedule)
            if text not in outcomes:
                if time.monotonic() - start > seconds:
                    break
                outcomes[text] = runner.measure_one(request(c), again=True)
                if k % 50 == 0:
                    common.say(f"{k} of {len(candidates)} points measured")
    return Table(of, outcomes)


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
    if arguments.markdown:
        print(common.markdown(title, headers, rows))
    else:
        print_table(title, headers, rows)
    common.write_json(arguments.json, {"points": len(table.outcomes), "after": AFTER, "found": numbers})


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    try:
        return run(arguments)
    except ValueError as error:
        common.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
