"""Operators tuned by TVM's MetaSchedule and by us, with the same number of trials or seconds, then timed in turn.

    python benchmarks/tvm.py --tvm-python ~/tvm/bin/python --trials 64
    python benchmarks/tvm.py --tvm-python ~/tvm/bin/python --ops matmul_512 --time 60 --threads 2,1

TVM lives in an interpreter of its own, so that its dependencies stay out of ours. To make one:

    python3 -m venv ~/tvm
    ~/tvm/bin/pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 \\
        numpy scipy xgboost-cpu psutil cloudpickle tornado

Both sides start from nothing, take the same inputs, and are checked against NumPy in float64. Constant weights are
constants for us and arguments for TVM. Results go to stdout, progress to stderr.
Exit codes: 0 ok, 2 usage or no TVM, 4 a result of ours was wrong or nothing valid was found, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tilewright
from benchmarks import common
from benchmarks.remote import ANSWER_S, Remote
from benchmarks.serve import Lacking
from benchmarks.workloads import SUITES, Workload, suite
from tilewright.display import TuneDisplay, print_table
from tilewright.measure import device_lock

OPS = {
    "peers": [
        "matmul_512",
        "matmul_1024",
        "gemm_bias_gelu",
        "batch_matmul_12",
        "conv_64x56_k3_bias_relu",
        "conv_256x14_1024_k1",
        "depthwise_144x56_k3",
        "softmax_512x1024",
    ],
}
"""What is compared unless told otherwise; of other suites all."""
TRIALS = 64
SIDE = "benchmarks.tvm_side"
TRIAL_S = 30.0
"""TVM gives up on a trial after about as long; a search is given up after that for each."""
INSTALL = (
    "python3 -m venv ~/tvm && ~/tvm/bin/pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 numpy scipy "
    "xgboost-cpu psutil cloudpickle tornado, then --tvm-python ~/tvm/bin/python"
)
Row = dict[str, Any]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with 2 for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = tilewright.Target.host().threads
    add = parser.add_argument
    add("--suite", choices=SUITES, default="peers")
    add("--ops", type=common.names, default=None, metavar="NAME,...", help=f"default: {', '.join(OPS['peers'])}")
    add("--tvm-python", default=sys.executable, metavar="PATH", help="the interpreter that has TVM (default: this one)")
    add("--threads", type=common.thread_counts, default=[cores], metavar="N,...", help="thread counts (default: all)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--trials", type=common.positive, default=None, help=f"measurements a side (default: {TRIALS})")
    budget.add_argument("--time", type=common.seconds, default=None, metavar="SECONDS", help="seconds a side instead")
    add("--rounds", type=common.positive, default=7, help="rounds of the comparison (default: 7)")
    add("--json", type=Path, default=None, metavar="FILE", help="also write the rows as JSON")
    add("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args(argv)
    known = suite(arguments.suite)
    wanted = arguments.ops or OPS.get(arguments.suite, list(known))
    unknown = [n for n in wanted if n not in known]
    if unknown:
        parser.error(f"argument --ops: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    if arguments.time == 0:
        parser.error("argument --time: expected more than 0 seconds; got 0")
    if arguments.time is None and arguments.trials is None:
        arguments.trials = TRIALS
    arguments.workloads = [known[n] for n in wanted]
    return arguments


def open_tvm(python: str, threads: int) -> Remote:
    """TVM set to a number of threads. Raises Lacking where it cannot be had."""
    return Remote("tvm", SIDE, ["--threads", str(threads)], python, {"TVM_NUM_THREADS": str(threads)})


def tune_ours(
    workload: Workload, arrays: dict[str, common.Array], threads: int, arguments: argparse.Namespace
) -> tuple[tilewright.Executable, dict[str, Any]]:
    """Tune with records of its own that are forgotten afterwards. Raises TuneError if nothing valid was found."""
    target = tilewright.Target.host(threads)
    graph = workload.graph(arrays)
    with tempfile.TemporaryDirectory() as folder, tilewright.Store(Path(folder) / "records.sqlite") as store:
        start = time.perf_counter()
        with TuneDisplay() as display:
            budget = tilewright.Budget(arguments.time, arguments.trials)
            result = tilewright.tune(graph, target, store, budget, listener=display.show)
        if result.interrupted:
            raise KeyboardInterrupt
        spent = time.perf_counter() - start
        return tilewright.compile(graph, target, store), {"tuning_s": spent, "trials": result.trials}


def tune_tvm(
    tvm: Remote, workload: Workload, arrays: dict[str, common.Array], arguments: argparse.Namespace
) -> dict[str, Any]:
    """The same on the other side, while no tuner of ours measures. Raises Lacking."""
    limit = ANSWER_S + (arguments.time or TRIAL_S * arguments.trials)
    with device_lock():
        cpu = tilewright.Target.host().cpu
        return tvm.prepare(workload, arrays, limit, cpu=cpu, trials=arguments.trials, seconds=arguments.time)


def measure(workload: Workload, threads: int, tvm: Remote, arguments: argparse.Namespace) -> Row:
    """One row: tune both sides, check both, time both in turn."""
    arrays = {n: common.aligned_copy(a) for n, a in workload.arrays().items()}
    ours, our_search = tune_ours(workload, arrays, threads, arguments)
    feeds = {i.name: arrays[i.name] for i in workload.inputs if not i.constant}
    sides = [common.our_side("ours", ours, feeds)]
    default = tilewright.compile(workload.graph(arrays), tilewright.Target.host(threads))
    sides.append(common.our_side("default", default, feeds))
    notes: dict[str, str] = {}
    tvm_search: dict[str, Any] = {}
    try:
        tvm_search = tune_tvm(tvm, workload, arrays, arguments)
        sides.append(tvm.side())
    except Lacking as error:
        notes["tvm"] = str(error)
    expected = workload.reference(arrays)
    errors = {}
    for side in sides:
        side.call()
        errors[side.name] = common.relative_error(side.results()[0], expected)
    if errors.get("tvm", 0.0) > common.TOLERANCE:
        notes["tvm"] = f"wrong result (error {errors['tvm']:.1e})"
        sides.pop()
    compared = common.side_by_side(sides, arguments.rounds, reference=common.reference_kernel(threads))
    times = compared.ms()
    return {
        "op": workload.name,
        "suite": workload.suite,
        "threads": threads,
        "ours_ms": times["ours"],
        "default_ms": times["default"],
        "tvm_ms": times.get("tvm"),
        **compared.against("ours", [n for n in times if n == "tvm"]),
        "ours": our_search,
        "tvm": tvm_search,
        "error": errors["ours"],
        "errors": errors,
        "notes": notes,
    }


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells for people. The last line is the geometric mean."""
    headers = ["operator", "ours ms", "TVM ms", "TVM / ours", "default ms", "ours: trials", "ours: tuning s"]
    headers += ["TVM: trials", "TVM: tuning s", "ours: error", "TVM: error"]
    cells = []
    for r in rows:
        tvm_error = r["errors"].get("tvm")
        cells.append(
            [
                r["op"],
                common.ms_text(r["ours_ms"]),
                common.ms_text(r["tvm_ms"]),
                common.ratio_text(r),
                common.ms_text(r["default_ms"]),
                str(r["ours"]["trials"]),
                f"{r['ours']['tuning_s']:.0f}",
                str(r["tvm"].get("trials", "-")),
                f"{r['tvm']['tuning_s']:.0f}" if r["tvm"] else "-",
                f"{r['error']:.0e}",
                "-" if tvm_error is None else f"{tvm_error:.0e}",
            ]
        )
    mean = common.geometric_mean(r["ratio"] for r in rows if r["ratio"] is not None)
    if mean is not None and len(rows) > 1:
        cells.append(["geometric mean", "", "", f"{mean:.2f}", *[""] * 7])
    return headers, cells


def compare(threads: int, arguments: argparse.Namespace, report: dict[str, Any]) -> list[Row]:
    """The rows of a thread count, which are added to the report one by one. Raises Lacking without TVM."""
    rows: list[Row] = []
    for workload in arguments.workloads:
        with open_tvm(arguments.tvm_python, threads) as tvm:  # a new one each time: an operator may end it
            report["peers"] = {"tvm": tvm.version}
            try:
                row = measure(workload, threads, tvm, arguments)
            except tilewright.TuneError as error:
                common.say(f"{workload.name}: {error}")
                report["failed"][f"{workload.name}, {common.threads_text(threads)}"] = str(error)
                continue
        rows.append(row)
        report["rows"].append(row)
        common.say(
            f"{row['op']}, {common.threads_text(threads)}: ours {common.ms_text(row['ours_ms'])} ms, TVM "
            f"{common.ms_text(row['tvm_ms'])}" + "".join(f"; {n}: {text}" for n, text in row["notes"].items())
        )
        common.write_json(arguments.json, report)
    return rows


def run(arguments: argparse.Namespace) -> int:
    """Everything that was asked for; returns the exit code."""
    common.share_openmp()
    budget = {"trials": arguments.trials, "seconds": arguments.time}
    report: dict[str, Any] = {**common.provenance(), **budget, "peers": {}, "rows": [], "failed": {}}
    for threads in arguments.threads:
        try:
            rows = compare(threads, arguments, report)
        except Lacking as error:
            common.say(f"{error}\nTo have TVM: {INSTALL}")
            return common.EXIT_USAGE
        title = f"{tilewright.Target.host().model}, {common.threads_text(threads)}, median ms"
        headers, cells = table(rows)
        if arguments.markdown:
            print(common.markdown(title, headers, cells))
        else:
            print_table(title, headers, cells)
    common.write_json(arguments.json, report)
    wrong = report["failed"] or any(r["error"] > common.TOLERANCE for r in report["rows"])
    return common.EXIT_CHECK if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    arguments = parse(argv)
    return common.program(run, arguments)


if __name__ == "__main__":
    common.restart_clean()
    sys.exit(main())
