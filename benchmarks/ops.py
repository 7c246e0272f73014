"""Operators, side by side: tune each within a time budget, compile it from the records, check every side
against NumPy in float64, then time all sides in interleaved rounds.

    python benchmarks/ops.py                                  # 17 operators on all cores and on one
    python benchmarks/ops.py --ops matmul_512,softmax_512x1024 --time 20
    python benchmarks/ops.py --suite kernelbench --threads 2 --json rows.json

Records are kept, so that a second run only compares. Results go to stdout, progress to stderr.
Exit codes: 0 ok, 2 usage, 4 a result of ours was wrong or nothing valid was found, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import common
from benchmarks.peers import PEERS, Lacking, Peer, open_peers
from benchmarks.workloads import SUITES, Workload, suite
from tilewright.schedules.pool import region_cost_ns

DEFAULT_PEERS = ["numpy", "torch", "onnxruntime"]
Row = dict[str, Any]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="peers")
    parser.add_argument("--ops", type=common.names, default=None, metavar="NAME,...", help="only these operators")
    parser.add_argument(
        "--peers", type=common.names, default=DEFAULT_PEERS, metavar="NAME,...", help=f"of {', '.join(PEERS)}"
    )
    parser.add_argument("--no-tune", action="store_true", help="compare default schedules; needs no records")
    parser.add_argument("--list", action="store_true", help="print the operators of the suite and stop")
    common.add_shared_arguments(parser, 60.0)
    arguments = parser.parse_args(argv)
    known = suite(arguments.suite)
    for option, given, expected in (
        ("--ops", arguments.ops or [], known),
        ("--peers", arguments.peers, PEERS),
    ):
        unknown = [n for n in given if n not in expected]
        if unknown:
            parser.error(f"argument {option}: expected some of {', '.join(expected)}; got {', '.join(unknown)}")
    arguments.workloads = [known[n] for n in arguments.ops or known]
    return arguments


def measure(
    workload: Workload,
    threads: int,
    arguments: argparse.Namespace,
    peers: Sequence[Peer],
    roofline: common.Roofline,
) -> Row:
    """One row: tune, compile, check, compare."""
    target = tilewright.Target.host(threads)
    arrays = {n: common.aligned_copy(a) for n, a in workload.arrays().items()}
    graph = workload.graph(arrays)
    expected = workload.reference(arrays)
    with common.open_store(arguments.store) as store:
        tuned = common.tune(graph, target, store, 0 if arguments.no_tune else arguments.time)
        ours = tilewright.compile(graph, target, None if arguments.no_tune else store)
    feeds = {i.name: arrays[i.name] for i in workload.inputs if not i.constant}
    sides = [common.our_side("ours", ours, feeds)]
    if not arguments.no_tune:
        sides.append(common.our_side("default", tilewright.compile(graph, target), feeds))
    notes: dict[str, str] = {}
    for peer in peers:
        try:
            sides.append(peer.side(workload, arrays))
        except (Lacking, NotImplementedError) as error:
            notes[peer.name] = str(error)
    errors: dict[str, float] = {}
    for side in sides:
        side.call()
        errors[side.name] = common.relative_error(side.results()[0], expected)
    del expected
    fair = [s for s in sides if errors[s.name] <= common.TOLERANCE or s.name == "ours"]
    notes |= {s.name: f"wrong result (error {errors[s.name]:.1e})" for s in sides if s not in fair}
    compared = common.side_by_side(fair, arguments.rounds, reference=common.reference_kernel(threads))
    times = compared.ms()
    found = {n: ms for n, ms in times.items() if n not in ("ours", "default")}
    floor = roofline.floor_ms(workload.flops, workload.read_bytes, workload.written_bytes, threads)
    covered, kernels = ours.compiled.coverage()
    return {
        "op": workload.name,
        "suite": workload.suite,
        "threads": threads,
        "ours_ms": times["ours"],
        "peers": found,
        **compared.against("ours", list(found)),
        "floor_ms": floor,
        "floor_share": floor / times["ours"],
        "error": errors["ours"],
        "errors": errors,
        "tuning_s": tuned.seconds,
        "trials": tuned.trials,
        "default_ms": times["ours"] if arguments.no_tune else times.get("default"),
        "from_records": [covered, kernels],
        "flops": workload.flops,
        "bytes": workload.nbytes,
        "region_ns": region_cost_ns(threads) if threads > 1 else None,
        "notes": notes,
    }


def table(rows: Sequence[Row], peers: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for people. The last line is the geometric mean."""
    shown = [p for p in peers if any(p in r["peers"] for r in rows)]
    headers = ["operator", "ours ms", *[f"{p} ms" for p in shown], "best peer / ours"]
    headers += ["default ms", "of floor", "error", "tuning s", "trials"]
    cells = []
    for r in rows:
        best = [
            f"**{common.ms_text(r['peers'].get(p))}**" if p == r["best_peer"] else common.ms_text(r["peers"].get(p))
            for p in shown
        ]
        cells.append(
            [
                r["op"],
                common.ms_text(r["ours_ms"]),
                *best,
                common.ratio_text(r),
                common.ms_text(r["default_ms"]),
                f"{100 * r['floor_share']:.0f} %",
                f"{r['error']:.0e}",
                f"{r['tuning_s']:.0f}",
                str(r["trials"]),
            ]
        )
    mean = common.geometric_mean(r["ratio"] for r in rows if r["ratio"] is not None)
    share = common.geometric_mean(r["floor_share"] for r in rows)
    if mean is not None and share is not None and len(rows) > 1:
        cells.append(["geometric mean", "", *[""] * len(shown), f"{mean:.2f}", "", f"{100 * share:.0f} %", "", "", ""])
    return headers, cells


def run(arguments: argparse.Namespace) -> int:
    """Everything that was asked for; returns the exit code."""
    common.share_openmp()
    roofline = common.Roofline(arguments.threads)
    report: dict[str, Any] = {
        **common.provenance(),
        "peers": {},
        "absent": {},
        "ceilings": roofline.as_json(),
        "rows": [],
        "failed": {},
        "geometric_mean": {},
    }
    wrong = False
    for threads in arguments.threads:
        with open_peers(arguments.peers, threads) as (peers, absent):
            report["peers"] |= {p.name: p.version for p in peers}
            for name, why in absent.items():
                common.say(f"{threads} threads, without {name}: {why}")
                report["absent"][f"{name}, {threads} threads"] = why
            rows: list[Row] = []
            for workload in arguments.workloads:
                try:
                    row = measure(workload, threads, arguments, peers, roofline)
                except tilewright.TuneError as error:
                    common.say(f"{workload.name}: {error}")
                    report["failed"][f"{workload.name}, {threads} threads"] = str(error)
                    wrong = True
                    continue
                rows.append(row)
                report["rows"].append(row)
                wrong |= row["error"] > common.TOLERANCE
                peers_text = ", ".join(f"{n} {common.ms_text(ms)}" for n, ms in row["peers"].items())
                common.say(
                    f"{workload.name}, {common.threads_text(threads)}: ours {common.ms_text(row['ours_ms'])} ms, {peers_text}; error "
                    f"{row['error']:.0e}" + "".join(f"; {n}: {text}" for n, text in row["notes"].items())
                )
                mean = common.geometric_mean(r["ratio"] for r in rows if r["ratio"] is not None)
                report["geometric_mean"][str(threads)] = mean
                common.write_json(arguments.json, report)
        show(rows, threads, arguments)
    common.write_json(arguments.json, report)
    return common.EXIT_CHECK if wrong else 0


def show(rows: Sequence[Row], threads: int, arguments: argparse.Namespace) -> None:
    """A table on stdout."""
    headers, cells = table(rows, arguments.peers)
    title = f"{tilewright.Target.host().model}, {common.threads_text(threads)}, median ms"
    common.show_table(title, headers, cells, arguments.markdown)


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    if arguments.list:
        for w in arguments.workloads:
            print(f"{w.name}  {w.flops / 1e6:.1f} MFLOP  {w.nbytes / 1e6:.1f} MB")
        return 0
    return common.program(run, arguments)


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
