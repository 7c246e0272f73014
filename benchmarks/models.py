"""Models, side by side with onnxruntime (and OpenVINO where it is installed), from the records of a store.

    python benchmarks/models.py --time 120     # tune each for 120 s, then compare
    python benchmarks/models.py --models classifier --profile # where the time of our model goes

Some models are taken from pip packages that carry them (``pip install --no-deps rapidocr-onnxruntime nudenet
ddddocr``); those that are not installed are left out. Others are well-known networks that ``built_models.py`` writes
(needs ``onnx``). Exit codes: 0 ok, 2 usage or no model, 4 an output differs
from onnxruntime's, 130 interrupted.
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
from benchmarks.common import Side
from benchmarks.kernel_profile import KINDS, contraction_flops, kernel_times, kinds_text
from benchmarks.model_suite import MODELS, feeds_for
from benchmarks.peers import PEERS, Lacking, OnnxRuntimePeer, OpenVinoPeer, make_peers

DEFAULT_PEERS = ["onnxruntime", "openvino"]
AGREEMENT = 1e-3
"""Largest difference from onnxruntime by the norm of an output: both compute in float32."""
SHOWN = 15
Row = dict[str, Any]


def measure(
    name: str,
    threads: int,
    arguments: argparse.Namespace,
    peers: Sequence[OnnxRuntimePeer | OpenVinoPeer],
    roofline: common.Roofline,
) -> Row:
    """One row: tune if asked to, compile, check, compare."""
    model = MODELS[name]
    path = model.path()
    target = tilewright.Target.host(threads)
    graph = tilewright.load(path, model.shapes)
    with common.open_store(arguments.store) as store:
        tuned = common.tune(graph, target, store, arguments.time)
        ours = tilewright.compile(graph, target, store)
    feeds = feeds_for(model, ours)
    sides: list[Side] = [common.our_side("ours", ours, feeds)]
    sides.append(common.our_side("default", tilewright.compile(graph, target), feeds))
    notes: dict[str, str] = {}
    for peer in peers:
        try:
            sides.append(peer.model(path, feeds))
        except Lacking as error:
            notes[peer.name] = str(error)
    for side in sides:
        side.call()
    results = {s.name: s.results() for s in sides}
    errors = {
        n: common.norm_error(r, results["onnxruntime"])
        for n, r in results.items()
        if "onnxruntime" in results and n != "onnxruntime"
    }
    compared = common.side_by_side(sides, arguments.rounds, reference=common.reference_kernel(threads))
    times = compared.ms()
    found = {n: ms for n, ms in times.items() if n not in ("ours", "default")}
    flops = contraction_flops(graph, target)
    covered, kernels = ours.compiled.coverage()
    row: Row = {
        "model": name,
        "file": path.name,
        "threads": threads,
        "ours_ms": times["ours"],
        "default_ms": times["default"],
        "peers": found,
        **compared.against("ours", list(found)),
        "gflop": flops / 1e9,
        "fma_share": flops / times["ours"] / 1e6 / roofline.gflops(threads),
        "error": errors.get("ours"),
        "errors": errors,
        "from_records": [covered, kernels],
        "tuning_s": tuned.seconds,
        "trials": tuned.trials,
        "notes": notes,
    }
    if arguments.profile:
        row["profile"] = kernel_times(graph, target, ours)
        row["kinds"] = {k: sum(r["share"] for r in row["profile"] if r["kind"] == k) for k in KINDS}
    return row


def table(rows: Sequence[Row], peers: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for people."""
    shown = [p for p in peers if any(p in r["peers"] for r in rows)]
    headers = ["model", "ours ms", *[f"{p} ms" for p in shown], "best peer / ours", "default ms", "GFLOP"]
    headers += ["of FMA peak", "error", "from records", "tuning s"]
    profiled = any("kinds" in r for r in rows)
    headers += ["time in"] if profiled else []
    cells = [
        [
            r["model"],
            common.ms_text(r["ours_ms"]),
            *[common.ms_text(r["peers"].get(p)) for p in shown],
            common.ratio_text(r),
            common.ms_text(r["default_ms"]),
            f"{r['gflop']:.3f}",
            f"{100 * r['fma_share']:.0f} %",
            "-" if r["error"] is None else f"{r['error']:.0e}",
            "{}/{}".format(*r["from_records"]),
            f"{r['tuning_s']:.0f}",
            *([kinds_text(r.get("kinds", {}))] if profiled else []),
        ]
        for r in rows
    ]
    mean = common.geometric_mean(r["ratio"] for r in rows if r["ratio"] is not None)
    if mean is not None and len(rows) > 1:
        cells.append(["geometric mean", "", *[""] * len(shown), f"{mean:.2f}", *[""] * (6 + profiled)])
    return headers, cells


def show_profile(row: Row, arguments: argparse.Namespace) -> None:
    """The most costly kernels of a model."""
    headers = ["node", "kind", "workload", "runs", "ms each", "share", "GFLOP/s", "schedule"]
    cells = [
        [
            r["node"][:40],
            r["kind"],
            r["workload"],
            str(r["runs"]),
            f"{r['ms']:.4f}",
            f"{100 * r['share']:.1f} %",
            f"{r['gflops']:.1f}",
            r["source"],
        ]
        for r in row["profile"][:SHOWN]
    ]
    common.show_table(
        f"{row['model']}, {common.threads_text(row['threads'])}: kernels one by one", headers, cells, arguments.markdown
    )


def run(arguments: argparse.Namespace) -> int:
    """Everything that was asked for; returns the exit code."""
    common.share_openmp()
    roofline = common.Roofline(arguments.threads)
    report: dict[str, Any] = {
        **common.provenance(),
        "peers": {},
        "ceilings": roofline.as_json(),
        "rows": [],
    }
    wrong = False
    for threads in arguments.threads:
        peers, absent = make_peers(arguments.peers, threads)
        for name, why in absent.items():
            common.say(f"{threads} threads, without {name}: {why}")
        runners = [p for p in peers if isinstance(p, OnnxRuntimePeer | OpenVinoPeer)]
        report["peers"] |= {p.name: p.version for p in runners}
        rows: list[Row] = []
        for name in arguments.models:
            row = measure(name, threads, arguments, runners, roofline)
            rows.append(row)
            report["rows"].append(row)
            wrong |= row["error"] is not None and row["error"] > AGREEMENT
            common.say(
                f"{name}, {common.threads_text(threads)}: ours {common.ms_text(row['ours_ms'])} ms, "
                + ", ".join(f"{n} {common.ms_text(ms)}" for n, ms in row["peers"].items())
                + "".join(f"; {n}: {text}" for n, text in row["notes"].items())
            )
            common.write_json(arguments.json, report)
        title = f"{tilewright.Target.host().model}, {common.threads_text(threads)}, median ms"
        common.show_table(title, *table(rows, arguments.peers), arguments.markdown)
        for row in rows if arguments.profile else []:
            show_profile(row, arguments)
    return common.EXIT_CHECK if wrong else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    able = [n for n, p in PEERS.items() if issubclass(p, OnnxRuntimePeer | OpenVinoPeer)]
    parser.add_argument("--models", type=common.names, default=None, metavar="NAME,...", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--peers", type=common.names, default=DEFAULT_PEERS, metavar="NAME,...", help=f"of {', '.join(able)}"
    )
    parser.add_argument("--profile", action="store_true", help="also time our kernels one by one")
    common.add_shared_arguments(parser, 0.0)
    arguments = parser.parse_args(argv)
    for option, given, expected in (("--models", arguments.models or [], MODELS), ("--peers", arguments.peers, able)):
        unknown = [n for n in given if n not in expected]
        if unknown:
            parser.error(f"argument {option}: expected some of {', '.join(expected)}; got {', '.join(unknown)}")
    here = {n for n, m in MODELS.items() if m.installed()}
    for name in arguments.models or MODELS:
        if name not in here:
            common.say(f"without {name}: pip install --no-deps {MODELS[name].package}")
    arguments.models = [n for n in arguments.models or MODELS if n in here]
    if not arguments.models:
        parser.error(
            "no model is installed: pip install --no-deps rapidocr-onnxruntime nudenet ddddocr; pip install onnx"
        )
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    return common.program(run, arguments)


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
