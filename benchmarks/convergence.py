"""How long the tuner takes until it is near what it will end with: live searches from nothing, several seeds.

    python benchmarks/convergence.py                              # 17 operators, 5 seeds, one thread
    python benchmarks/convergence.py --ops softmax_512x1024 --seeds 3 --time 20 --json convergence.json

Each search starts with an empty store. "Near" is at most 5 % slower than the best single measurement: of the same search ("of
its own"), or of all searches of the operator ("of all seeds"), which tells whether some search missed what another found.
Seconds count from the start of a run, with starting the workers and measuring the device's noise.
Exit codes: 0 ok, 2 usage, 4 nothing valid was found for an operator, 130 interrupted.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import common
from benchmarks.workloads import SUITES, Workload, suite
from tilewright.results import Event

NEAR = 1.05
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One search: seconds since its start and nanoseconds of every measurement, in order (infinity for a failure)."""

    elapsed_s: tuple[float, ...]
    time_ns: tuple[float, ...]

    @property
    def best_ns(self) -> float:
        """The fastest measurement."""
        return min(self.time_ns, default=math.inf)

    def near(self, best_ns: float) -> tuple[int, float] | None:
        """Measurements, and seconds, until one was near ``best_ns``; None if none was."""
        return next(
            (
                (k + 1, s)
                for k, (s, ns) in enumerate(zip(self.elapsed_s, self.time_ns, strict=True))
                if ns <= NEAR * best_ns
            ),
            None,
        )


def search(workload: Workload, target: tilewright.Target, seed: int, budget: float) -> Run:
    """Tune from nothing. Raises TuneError if no candidate was valid, KeyboardInterrupt."""
    seen: list[tuple[float, float]] = []

    def listen(event: Event) -> None:
        seen.append((event.elapsed_s, event.outcome.median_ns or math.inf))

    with tempfile.TemporaryDirectory() as folder, tilewright.Store(Path(folder) / "records.sqlite") as store:
        graph = workload.graph(workload.arrays())
        result = tilewright.tune(graph, target, store, tilewright.Budget(budget), seed=seed, listener=listen)
    if result.interrupted:
        raise KeyboardInterrupt
    return Run(tuple(s for s, _ in seen), tuple(ns for _, ns in seen))


def row(workload: Workload, threads: int, runs: Sequence[Run]) -> Row:
    """Figures of an operator's searches: for both meanings of near, a list with an entry for each seed."""
    best = min(r.best_ns for r in runs)
    return {
        "op": workload.name,
        "threads": threads,
        "best_ns": [r.best_ns for r in runs],
        "measured": [len(r.time_ns) for r in runs],
        "own": [r.near(r.best_ns) for r in runs],
        "all": [r.near(best) for r in runs],
    }


def spread(values: Sequence[float | None], digits: int = 0) -> str:
    """Median and range; a search that never came near counts as the longest."""
    found = sorted(math.inf if v is None else v for v in values)
    texts = [
        "never" if v == math.inf else f"{v:.{digits}f}" for v in (statistics.median_high(found), found[0], found[-1])
    ]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for people: median over the seeds, and range."""
    headers = ["operator", "threads", "best", "spread of bests", "measured"]
    headers += ["5 % of its own: measurements", "seconds", "5 % of all seeds: measurements", "seconds"]
    cells = []
    for r in rows:
        best = min(r["best_ns"])
        line = [
            r["op"],
            str(r["threads"]),
            f"{common.ms_text(best / 1e6)} ms",
            f"{100 * (max(r['best_ns']) / best - 1):.0f} %",
        ]
        line += [spread(r["measured"])]
        for kind in ("own", "all"):
            line += [spread([None if near is None else near[0] for near in r[kind]])]
            line += [spread([None if near is None else near[1] for near in r[kind]], 1)]
        cells.append(line)
    return headers, cells


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="peers")
    parser.add_argument("--ops", type=common.names, default=None, metavar="NAME,...", help="only these operators")
    parser.add_argument(
        "--threads", type=common.thread_counts, default=(1,), metavar="N,...", help="thread counts (default: 1)"
    )
    parser.add_argument("--seeds", type=common.positive, default=5, help="searches of each operator (default: 5)")
    parser.add_argument(
        "--time", type=common.seconds, default=30.0, metavar="SECONDS", help="of each search (default: 30)"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args(argv)
    known = suite(arguments.suite)
    unknown = [n for n in arguments.ops or [] if n not in known]
    if unknown:
        parser.error(f"argument --ops: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    if not arguments.time:
        parser.error("argument --time: expected more than 0 seconds; got 0")
    arguments.workloads = [known[n] for n in arguments.ops or known]
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Everything that was asked for; returns the exit code."""
    report: dict[str, Any] = {**common.provenance(), "rows": [], "failed": {}}
    rows: list[Row] = report["rows"]
    for threads in arguments.threads:
        target = tilewright.Target.host(threads)
        for workload in arguments.workloads:
            try:
                runs = [search(workload, target, seed, arguments.time) for seed in range(arguments.seeds)]
            except tilewright.TuneError as error:
                common.say(f"{workload.name}: {error}")
                report["failed"][f"{workload.name}, {common.threads_text(threads)}"] = str(error)
                continue
            rows.append(row(workload, threads, runs))
            common.say(" | ".join(table(rows[-1:])[1][0]))
            common.write_json(arguments.json, report)
    common.show_table("Until near the best", *table(rows), arguments.markdown)
    return common.EXIT_CHECK if report["failed"] else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    return common.program(run, parse(argv))


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
