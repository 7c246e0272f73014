"""The command line. Results on stdout, progress on stderr; exit codes:
0 ok, 2 usage or bad input, 3 no valid candidate, 4 a check failed (scripts under examples), 5 a record is missing, 6 the device is unavailable or too noisy,
130 interrupted (what was measured is kept)."""

from __future__ import annotations

import functools
import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright import __version__
from tilewright.api import compile as compile_model
from tilewright.api import compile_for, load, records_lookup
from tilewright.compiler import MissError, compile_graph
from tilewright.display import TuneDisplay, print_table, time_text
from tilewright.graph.dtypes import GraphError
from tilewright.graph.graph import Graph
from tilewright.measure import DeviceError, Policy, measure_ceilings
from tilewright.runtime import Executable, ModelError, random_input
from tilewright.runtime import load as load_compiled
from tilewright.runtime import save
from tilewright.schedules.jit import CompileError, llvm_version
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.target import Target, TargetError
from tilewright.search_space.strategies import STRATEGIES
from tilewright.tasks import extract
from tilewright.tuner import Budget, TuneError, tune
from tilewright.tuning_logs import Hit, Store, StoreError, export_jsonl, import_jsonl

EXIT_USAGE, EXIT_NO_CANDIDATE, EXIT_MISS, EXIT_DEVICE, EXIT_INTERRUPTED = 2, 3, 5, 6, 130

_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (MissError, EXIT_MISS),
    (TuneError, EXIT_NO_CANDIDATE),
    (DeviceError, EXIT_DEVICE),
    (GraphError, EXIT_USAGE),
    (TargetError, EXIT_USAGE),
    (StoreError, EXIT_USAGE),
    (ModelError, EXIT_USAGE),
    (ScheduleError, EXIT_USAGE),
    (CompileError, EXIT_DEVICE),
    (ImportError, EXIT_USAGE),
)


def reported(command: Callable[..., Any]) -> Callable[..., Any]:
    """Known errors become one message and an exit code; anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except tuple(kind for kind, _ in _EXIT_CODES) as error:
            code = next(c for kind, c in _EXIT_CODES if isinstance(error, kind))
            click.echo(f"error: {error}", err=True)
            sys.exit(code)

    return wrapped


def parse_shapes(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``x=1,3,48,192`` as a mapping."""
    out: dict[str, tuple[int, ...]] = {}
    for text in values:
        name, sign, sizes = text.rpartition("=")
        parts = sizes.split(",") if sizes else []
        if not sign or not name or not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
            raise click.BadParameter(f"expected NAME=SIZE,SIZE,… with sizes of at least 1 (x=1,3,48,192); got {text!r}")
        if name in out:
            raise click.BadParameter(f"input {name!r} is given twice")
        out[name] = tuple(int(p) for p in parts)
    return out


def parse_seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """``90``, ``90s``, ``5m`` or ``1.5h`` in seconds."""
    if text is None:
        return None
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    number = text[:-1] if unit else text
    try:
        seconds = float(number) * (unit or 1.0)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise click.BadParameter(f"expected a time above 0 such as 90s, 5m or 1h; got {text!r}")
    return seconds


_SHAPE = click.option(
    "--shape", "shapes", multiple=True, callback=parse_shapes, metavar="NAME=SIZES", help="Bind an input's shape: x=1,3,48,192."
)
_TARGET = click.option("--target", "target_name", default="host", show_default=True, help="Hardware target (see 'device').")
_THREADS = click.option("--threads", type=click.IntRange(1), help="Threads that kernels use (default: the target's cores).")
_STORE = click.option("--store", "store_path", metavar="PATH|URL", help="Where records are kept (default: the user's data folder).")
_CACHE = click.option(
    "--cache", type=click.Choice(["hot", "cold", "rotating"]), default="hot", show_default=True, help="Cache policy of the records."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_SEED = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the search.")


def _target(name: str, threads: int | None) -> Target:
    target = Target.load(name)
    return target if threads is None else target.with_threads(threads)


def _is_compiled(path: str) -> bool:
    return path.endswith(".tw")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilewright")
def main() -> None:
    """Tune operator graphs for the machine at hand, keep what was learnt, apply it when compiling."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)


@main.command("tune")
@click.argument("model", type=click.Path())
@_SHAPE
@_TARGET
@_THREADS
@click.option("--time", "seconds", default="2m", show_default=True, callback=parse_seconds, help="Time budget: 90s, 5m, 1h.")
@click.option("--trials", type=click.IntRange(1), help="Most measurements.")
@click.option("--strategy", type=click.Choice(STRATEGIES), default="ranked", show_default=True)
@_SEED
@click.option("--max-noise", type=float, default=1.0, show_default=True, help="Refuse a device that differs more from itself.")
@_CACHE
@_STORE
@_JSON
@reported
def tune_command(
    model: str,
    shapes: dict[str, tuple[int, ...]],
    target_name: str,
    threads: int | None,
    seconds: float,
    trials: int | None,
    strategy: str,
    seed: int,
    max_noise: float,
    cache: str,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Tune MODEL (an ONNX file). The same command resumes; Ctrl-C keeps everything measured."""
    target = _target(target_name, threads)
    graph = load(model, shapes)
    with Store(store_path) as store, TuneDisplay() as display:
        result = tune(
            graph,
            target,
            store,
            Budget(seconds, trials),
            strategy=strategy,
            seed=seed,
            policy=Policy(cache=cache),
            listener=display.show,
            max_noise=max_noise,
        )
        path = store.path_text
        ends = None if result.interrupted else _end_to_end(graph, target, store, Policy(cache=cache))
    if as_json:
        click.echo(json.dumps(_tune_json(result, ends, path)))
    else:
        rows = [
            (
                t.task.origin[:32],
                t.task.workload.describe(),
                str(t.task.weight),
                time_text(t.default_ns),
                time_text(t.best_ns),
                f"{t.default_ns / t.best_ns:.2f}x",
                str(t.measured),
            )
            for t in sorted(result.tasks, key=lambda t: -t.task.weight * t.best_ns)[:20]
        ]
        print_table("kernels (the 20 that cost most)", ("node", "workload", "runs", "default", "best", "gain", "trials"), rows)
        failed: dict[str, int] = {}
        for t in result.tasks:
            for status, n in t.failures.items():
                failed[status] = failed.get(status, 0) + n
        click.echo(
            f"{result.trials} measurements in {result.seconds:.0f} s ({result.stopped}); failures: "
            + (", ".join(f"{n} {s}" for s, n in failed.items()) or "none")
        )
        click.echo(f"sum of kernels: default {time_text(result.default_ns)}, best {time_text(result.best_ns)}")
        if ends is not None:
            click.echo(f"end to end:     default {time_text(ends[0])}, tuned {time_text(ends[1])}  ({ends[0] / ends[1]:.2f}x)")
        if result.noise > 0.1:
            click.echo(f"warning: a kernel differed from itself by {result.noise:.0%} before the run; other programs are busy", err=True)
        click.echo(f"records: {path}")
    if result.interrupted:
        sys.exit(EXIT_INTERRUPTED)


def _end_to_end(graph: Graph, target: Target, store: Store, policy: Policy) -> tuple[float, float]:
    """Nanoseconds of the whole model with default schedules and with the store's records, interleaved."""
    models = [compile_graph(graph, target), compile_graph(graph, target, records_lookup(store, target, policy))]
    samples = [[m.time(0.15) for m in models] for _ in range(3)]
    default, tuned = np.median(np.asarray(samples), axis=0) * 1e9
    return float(default), float(tuned)


def _finite(value: float) -> float | None:
    """JSON has no infinity: a task without a time is null."""
    return value if math.isfinite(value) else None


def _tune_json(result: Any, ends: tuple[float, float] | None, path: str) -> dict[str, Any]:
    return {
        "run": result.run_id,
        "records": path,
        "trials": result.trials,
        "seconds": result.seconds,
        "stopped": result.stopped,
        "interrupted": result.interrupted,
        "noise": result.noise,
        "default_ns": _finite(result.default_ns),
        "best_ns": _finite(result.best_ns),
        "end_to_end_ns": None if ends is None else {"default": ends[0], "tuned": ends[1]},
        "tasks": [
            {
                "workload": t.task.workload.hash,
                "describe": t.task.workload.describe(),
                "origin": t.task.origin,
                "weight": t.task.weight,
                "default_ns": _finite(t.default_ns),
                "best_ns": _finite(t.best_ns),
                "measured": t.measured,
                "known": t.known,
                "failures": t.failures,
            }
            for t in result.tasks
        ],
    }


@main.command("compile")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="Model file to write (.tw).")
@_SHAPE
@_TARGET
@_THREADS
@click.option("--on-miss", type=click.Choice(["fallback", "warn", "error"]), default="warn", show_default=True)
@_CACHE
@_STORE
@reported
def compile_command(
    model: str,
    output: str,
    shapes: dict[str, tuple[int, ...]],
    target_name: str,
    threads: int | None,
    on_miss: str,
    cache: str,
    store_path: str | None,
) -> None:
    """Compile MODEL with the best records; nothing is measured."""
    target = _target(target_name, threads)
    with Store(store_path, read_only=_exists(store_path)) as store:
        compiled = compile_for(model, target, store, shapes=shapes, on_miss=on_miss, policy=Policy(cache=cache))
    save(compiled, output)
    covered, total = compiled.coverage()
    click.echo(f"{output}: {total} kernels, {covered} from records; arena {compiled.arena_bytes / 1e6:.1f} MB")


def _exists(store_path: str | None) -> bool:
    """Whether the store is a file that is there already, so that reading it may be read-only."""
    from tilewright.tuning_logs import default_path

    if store_path is not None and "://" in store_path:
        return False
    return (Path(store_path) if store_path is not None else default_path()).is_file()


def _executable(model: str, shapes: dict[str, tuple[int, ...]], threads: int | None, store_path: str | None) -> Executable:
    """A ``.tw`` file as it is, or an ONNX file compiled on the fly from the records."""
    if _is_compiled(model):
        return load_compiled(model)
    with Store(store_path, read_only=_exists(store_path)) as store:
        return compile_model(model, _target("host", threads), store, shapes=shapes)


@main.command("run")
@click.argument("model", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input (default: random values).")
@click.option("--output-dir", type=click.Path(file_okay=False), help="Write the outputs there, one .npy each.")
@_SHAPE
@_THREADS
@_SEED
@_STORE
@reported
def run_command(
    model: str,
    inputs: tuple[str, ...],
    output_dir: str | None,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    seed: int,
    store_path: str | None,
) -> None:
    """Run a compiled model (.tw) or an ONNX file once."""
    executable = _executable(model, shapes, threads, store_path)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {p.name: random_input(p, rng) for p in executable.inputs}
    for text in inputs:
        name, _, path = text.partition("=")
        if name not in arrays or not path:
            raise click.BadParameter(f"--input: expected NAME=FILE.npy with a name of {sorted(arrays)}; got {text!r}")
        try:
            arrays[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise click.BadParameter(f"--input {name}: cannot read {path}: {error}") from error
    for port, value in zip(executable.outputs, executable.run(arrays), strict=True):
        flat = value.astype(np.float64).ravel()
        click.echo(f"{port.name}: {port.dtype} {list(port.shape)}  mean {flat.mean():.6g}  min {flat.min():.6g}  max {flat.max():.6g}")
        if output_dir is not None:
            folder = Path(output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in port.name)
            np.save(folder / f"{safe}.npy", value)


@main.command("bench")
@click.argument("model", type=click.Path())
@click.option("--time", "seconds", default="2s", show_default=True, callback=parse_seconds, help="How long to measure.")
@_SHAPE
@_THREADS
@_STORE
@_JSON
@reported
def bench_command(
    model: str,
    seconds: float,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Time a compiled model (.tw) or an ONNX file: median of calls on the same arrays."""
    executable = _executable(model, shapes, threads, store_path)
    median = executable.time(seconds)
    covered, total = executable.compiled.coverage()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "median_ms": median * 1e3,
                    "threads": executable.compiled.target.threads,
                    "kernels": total,
                    "from_records": covered,
                }
            )
        )
    else:
        click.echo(f"median {median * 1e3:.3f} ms, {executable.compiled.target.threads} threads, {covered}/{total} kernels tuned")


@main.command("best")
@click.argument("model", type=click.Path())
@_SHAPE
@_TARGET
@_THREADS
@_CACHE
@_STORE
@_JSON
@reported
def best_command(
    model: str,
    shapes: dict[str, tuple[int, ...]],
    target_name: str,
    threads: int | None,
    cache: str,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Show the best record of every kernel of MODEL, or why there is none (exit code 5 if any is missing)."""
    target = _target(target_name, threads)
    graph = load(model, shapes)
    rows: list[dict[str, Any]] = []
    with Store(store_path, read_only=_exists(store_path)) as store:
        for task in extract(graph, target):
            w = task.workload
            found = store.best(w.hash, target.fingerprint(), Policy(cache=cache).identity(), family=w.family, workload=w.text)
            row: dict[str, Any] = {"workload": w.hash, "describe": w.describe(), "origin": task.origin, "weight": task.weight}
            if isinstance(found, Hit):
                row |= {"time_ns": found.time_ns, "sketch": found.record.sketch, "schedule": found.record.schedule}
            else:
                row |= {"missing": list(found.reasons)}
            rows.append(row)
    if as_json:
        click.echo(json.dumps(rows))
    else:
        print_table(
            "best records",
            ("workload", "what", "runs", "best", "sketch"),
            [
                (
                    r["workload"],
                    r["describe"],
                    str(r["weight"]),
                    time_text(r["time_ns"]) if "time_ns" in r else "-",
                    r.get("sketch") or "missing: " + "; ".join(r["missing"]),
                )
                for r in rows
            ],
        )
    if any("missing" in r for r in rows):
        sys.exit(EXIT_MISS)


@main.group("records")
def records_group() -> None:
    """List, export and import tuning records."""


@records_group.command("list")
@_STORE
@_JSON
@reported
def records_list(store_path: str | None, as_json: bool) -> None:
    """One line for each workload in the store."""
    if store_path is not None and "://" not in store_path and not Path(store_path).is_file():
        raise StoreError(f"no store at {store_path}: expected the file that 'tilewright tune --store' wrote")
    with Store(store_path, read_only=_exists(store_path)) as store:
        summary, path = store.summary(), store.path_text
    if as_json:
        click.echo(
            json.dumps(
                [
                    {
                        "workload": s.key.workload_hash,
                        "target": s.key.target_hash,
                        "counts": dict(s.counts),
                        "best_ns": s.best_ns,
                        "default_ns": s.default_ns,
                    }
                    for s in summary
                ]
            )
        )
        return
    rows = [
        (
            s.key.workload_hash,
            s.key.target_hash[:8],
            ", ".join(f"{n} {k}" for k, n in s.counts.items()),
            time_text(s.default_ns),
            time_text(s.best_ns),
        )
        for s in summary
    ]
    print_table(path, ("workload", "target", "measurements", "default", "best"), rows)


@records_group.command("path")
@_STORE
@reported
def records_path(store_path: str | None) -> None:
    """Where the records are kept."""
    with Store(store_path, read_only=_exists(store_path)) as store:
        click.echo(store.path_text)


@records_group.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
@_STORE
@reported
def records_export(file: str, store_path: str | None) -> None:
    """Write all records to FILE as JSON Lines."""
    with Store(store_path, read_only=_exists(store_path)) as store:
        click.echo(f"{export_jsonl(store, file)} records to {file}")


@records_group.command("import")
@click.argument("file", type=click.Path(dir_okay=False))
@_STORE
@reported
def records_import(file: str, store_path: str | None) -> None:
    """Add the records of FILE (JSON Lines). Bad lines are set aside and counted, never fatal."""
    with Store(store_path) as store:
        try:
            report = import_jsonl(store, file)
        except OSError as error:
            raise StoreError(f"cannot read {file}: {error.strerror or error}") from error
    click.echo(f"{report.added} added, {report.duplicates} known already, {report.quarantined} set aside")
    if report.quarantined:
        click.echo(f"bad lines are in {report.quarantine_path}", err=True)
        for text in report.first_errors:
            click.echo(f"  {text}", err=True)


@main.command("device")
@_TARGET
@_THREADS
@click.option("--ceilings/--no-ceilings", default=True, show_default=True, help="Measure peak rates (a few seconds; host only).")
@_JSON
@reported
def device_command(target_name: str, threads: int | None, ceilings: bool, as_json: bool) -> None:
    """Describe a target, and measure what this machine can do at most."""
    target = _target(target_name, threads)
    measured = measure_ceilings(target) if ceilings and target_name == "host" else None
    if as_json:
        data: dict[str, Any] = {"target": json.loads(target.to_json()), "known": list(Target.names()), "llvm": llvm_version()}
        if measured is not None:
            data["ceilings"] = measured.to_dict()
        click.echo(json.dumps(data))
        return
    rows = [
        ("model", target.model),
        ("code for", f"{target.triple} {target.cpu}, LLVM {llvm_version()}"),
        ("vectors", f"{target.vector_bits} bits, {target.vector_registers} registers"),
        ("caches", f"L1 {target.l1d_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB, L3 {target.l3_bytes >> 20} MiB"),
        ("cores, threads", f"{target.cores}, {target.threads}"),
        ("fingerprint", target.fingerprint_hash()),
        ("known targets", ", ".join(Target.names())),
    ]
    if measured is not None:
        rows += [(f"peak {k}", v) for k, v in measured.rows()]
    print_table(f"target {target.name}", ("", ""), rows)


if __name__ == "__main__":
    main()
