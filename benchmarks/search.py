"""Search strategies on one space that is measured as a whole, so that what a strategy missed is known.

    python benchmarks/search.py --table matmul.json     # measures once, then replays
    python benchmarks/search.py --table conv.json --space conv --seeds 11

The space is thinned evenly to ``--limit`` points, all are measured, and each strategy then searches it by replay
with several seeds. Regret after k measurements is how much slower the best found so far is than the best there is.
All strategies start from the default schedule. Exit codes: 0 ok, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import common
from tilewright.display import print_table, time_text
from tilewright.graph import ops
from tilewright.graph.graph import Graph
from tilewright.learning import Learner
from tilewright.measure import LocalRunner, Outcome, ReplayRunner, Request
from tilewright.search_space.sketch import Param, Sketch, enumerate_points
from tilewright.search_space.space import Space, space
from tilewright.search_space.strategies import Candidate, SearchConfig, make_strategy
from tilewright.tasks import default_candidate, extract

COMPARED = ("ranked", "random", "optuna")
AFTER = (8, 16, 32, 64)
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
    return list({c.key: c for c in found}.values())


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


def load(path: Path, of: Space) -> Table:
    """Read a table. Raises TableError unless it holds every point of the space."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["workload"] != of.workload.text:
            raise TableError(f"{path}: expected a table of {of.workload.describe()}; it is of something else")
        outcomes = {str(o["schedule"]): Outcome.from_dict(o["outcome"]) for o in data["outcomes"]}
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise TableError(f"{path}: expected a table written by this program ({error!r})") from error
    wanted = [str(c.schedule) for c in points(of)]
    missing = sum(s not in outcomes for s in wanted)
    if missing:
        raise TableError(
            f"{path}: {missing} of {len(wanted)} points are missing: it was made with another limit, target or "
            "version; remove it to measure again"
        )
    return Table(of, {s: outcomes[s] for s in wanted})


def measured(of: Space) -> Table:
    """Measure every point, whatever it takes."""
    candidates = points(of)
    outcomes: dict[str, Outcome] = {}
    with LocalRunner(of.target) as runner:
        runner.preflight()
        for k, c in enumerate(candidates):
            text = str(c.schedule)
            if text not in outcomes:
                outcomes[text] = runner.measure_one(request(c), again=True)
            if k % 25 == 0:
                common.say(f"{k} of {len(candidates)} points measured")
    return Table(of, outcomes)


def search(table: Table, name: str, seed: int, trials: int) -> list[float]:
    """Best nanoseconds after each measurement of a strategy."""
    learner = Learner(seed)
    strategy = make_strategy(name, table.space, learner.predict_ns, SearchConfig(seed=seed))
    runner = table.runner()
    best: list[float] = []

    def measure(candidate: Candidate) -> None:
        outcome = runner.measure_one(request(candidate))
        time_ns = math.inf if outcome.median_ns is None else outcome.median_ns
        learner.add(candidate, table.space.workload.hash, time_ns)
        strategy.tell(candidate, time_ns)
        best.append(min(time_ns, best[-1] if best else math.inf))

    default = default_candidate(table.space)
    measure(default)
    learner.refit(force=True)
    while len(best) < trials:
        asked = [c for c in strategy.ask(min(BATCH, trials - len(best))) if c.key != default.key]
        if not asked:
            break
        for candidate in asked:
            measure(candidate)
        learner.refit()
    return best


def regrets(table: Table, name: str, seeds: int, after: Sequence[int] = AFTER) -> list[float]:
    """Median regret of a strategy over seeds, after each number of measurements (a space that is used up stays
    at what it reached)."""
    trials = min(max(after), len(points(table.space)))
    runs = [search(table, name, seed, trials) for seed in range(seeds)]
    return [statistics.median(run[min(k, len(run)) - 1] / table.best_ns - 1 for run in runs) for k in after]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", choices=tuple(GRAPHS), default="matmul")
    parser.add_argument("--table", type=Path, default=None, metavar="FILE", help="measurements: read, or written")
    parser.add_argument("--limit", type=common.positive, default=300, help="most points (default: 300)")
    parser.add_argument("--seeds", type=common.positive, default=5, help="searches of each strategy (default: 5)")
    parser.add_argument("--threads", type=common.positive, default=1, help="threads of the kernels (default: 1)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the numbers as JSON")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    """Measure or load, then compare. Raises ValueError and TableError for what cannot be used."""
    target = tilewright.Target.host(arguments.threads)
    (task,) = extract(GRAPHS[arguments.space](), target)
    small = thinned(space(task.workload, target), arguments.limit)
    if arguments.table is not None and arguments.table.exists():
        table = load(arguments.table, small)
    else:
        table = measured(small)
        if arguments.table is not None:
            table.save(arguments.table)
    found = {name: regrets(table, name, arguments.seeds) for name in COMPARED}
    ok = [o.median_ns for o in table.outcomes.values() if o.median_ns is not None]
    title = (
        f"{task.workload.describe()}, {arguments.threads} threads: {len(table.outcomes)} points, {len(ok)} valid, "
        f"best {time_text(min(ok))}, median {time_text(statistics.median(ok))}; "
        f"median regret of {arguments.seeds} seeds"
    )
    headers = ["strategy", *[f"after {k}" for k in AFTER]]
    print_table(title, headers, [[n, *[f"{100 * r:.1f} %" for r in values]] for n, values in found.items()])
    common.write_json(arguments.json, {"points": len(table.outcomes), "after": AFTER, "regret": found})


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    try:
        run(arguments)
    except ValueError as error:
        common.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
