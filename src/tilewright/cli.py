"""The command line. Results on stdout, progress on stderr; exit codes:
0 ok, 2 usage or bad input, 3 no valid candidate, 4 a check failed (scripts under examples), 5 a record is missing, 6 the device is
unavailable or too noisy, 130 interrupted (what was measured is kept)."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright import __version__
from tilewright.api import compile as compile_model
from tilewright.api import compile_for, load, records_lookup
from tilewright.cli_info import best_command, device_command, records_group
from tilewright.compiled import save
from tilewright.compiler import compile_graph
from tilewright.display import TuneDisplay
from tilewright.graph.graph import Graph
from tilewright.measure import Policy
from tilewright.options import (
    ALGORITHMS,
    CACHE,
    EXIT_INTERRUPTED,
    JSON,
    ON_MISS,
    SHAPE,
    STORE,
    TARGET,
    THREADS,
    parse_seconds,
    reported,
    store_exists,
    target_of,
)
from tilewright.runtime import Executable, random_input
from tilewright.runtime import load as load_compiled
from tilewright.schedules.target import Target
from tilewright.search_space.strategies import STRATEGIES
from tilewright.tune_report import EndToEnd, print_tuning, tuning_json
from tilewright.tuner import Budget, tune
from tilewright.tuning_logs import Store


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tilewright")
def main() -> None:
    """Tune operator graphs for the machine at hand, keep what was learnt, apply it when compiling."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)


@main.command("tune")
@click.argument("model", type=click.Path())
@SHAPE
@TARGET
@THREADS
@click.option(
    "--time", "seconds", default="2m", show_default=True, callback=parse_seconds, help="Time budget: 90s, 5m, 1h."
)
@click.option("--trials", type=click.IntRange(1), help="Stop after so many measurements.")
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="ranked", show_default=True, help="What proposes candidates."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--max-noise",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Refuse a device on which a kernel differs from itself by more than this share (0.05: 5 %).",
)
@CACHE
@ALGORITHMS
@STORE
@JSON
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
    algorithms: str,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Tune MODEL (an ONNX file). The same command resumes; Ctrl-C keeps everything measured."""
    target = target_of(target_name, threads)
    graph = load(model, shapes)
    with Store(store_path) as store, TuneDisplay() as display:
        result = tune(
            graph,
            target,
            store,
            Budget(seconds, trials),
            strategy=strategy,
            seed=seed,
            policy=Policy(cache=cache, algorithms=algorithms),
            listener=display.show,
            max_noise=max_noise,
        )
        path = store.path_text
        ends = (
            None
            if result.interrupted
            else _end_to_end(graph, target, store, Policy(cache=cache, algorithms=algorithms))
        )
    if as_json:
        click.echo(json.dumps(tuning_json(result, ends, path)))
    else:
        print_tuning(result, ends, path)
    if result.interrupted:
        sys.exit(EXIT_INTERRUPTED)


def _end_to_end(graph: Graph, target: Target, store: Store, policy: Policy) -> EndToEnd:
    """The whole model with default schedules and with the store's records, on the same inputs, in interleaved rounds."""
    lookups = (None, records_lookup(store, target, policy))
    models = [compile_graph(graph, target, lookup, algorithms=policy.algorithms) for lookup in lookups]
    rng = np.random.default_rng(0)
    inputs = [random_input(p, rng) for p in models[0].inputs]
    for m in models:
        m.bind(inputs, m.allocate())
    samples = np.asarray([[m.time(0.1) for m in models] for _ in range(5)])
    default, tuned = np.median(samples, axis=0) * 1e9
    return EndToEnd(float(default), float(tuned), float(np.median(samples[:, 0] / samples[:, 1])))


@main.command("compile")
@click.argument("model", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="Model file to write (.tw).")
@SHAPE
@TARGET
@THREADS
@ON_MISS["warn"]
@CACHE
@ALGORITHMS
@STORE
@reported
def compile_command(
    model: str,
    output: str,
    shapes: dict[str, tuple[int, ...]],
    target_name: str,
    threads: int | None,
    on_miss: str,
    cache: str,
    algorithms: str,
    store_path: str | None,
) -> None:
    """Compile MODEL with the best records; nothing is measured."""
    target = target_of(target_name, threads)
    with Store(store_path, read_only=store_exists(store_path)) as store:
        compiled = compile_for(
            model, target, store, shapes=shapes, on_miss=on_miss, policy=Policy(cache=cache, algorithms=algorithms)
        )
    save(compiled, output)
    covered, total = compiled.coverage()
    click.echo(f"{output}: {total} kernels, {covered} from records; arena {compiled.arena_bytes / 1e6:.1f} MB")


def executable_of(
    model: str, shapes: dict[str, tuple[int, ...]], threads: int | None, store_path: str | None, on_miss: str
) -> Executable:
    """A ``.tw`` file as it is, or an ONNX file compiled on the fly from the records."""
    if model.endswith(".tw"):
        return load_compiled(model)
    with Store(store_path, read_only=store_exists(store_path)) as store:
        return compile_model(model, target_of("host", threads), store, shapes=shapes, on_miss=on_miss)


@main.command("run")
@click.argument("model", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input (default: random values).")
@click.option("--output-dir", type=click.Path(file_okay=False), help="Write the outputs there, one .npy each.")
@SHAPE
@THREADS
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random inputs.")
@ON_MISS["fallback"]
@STORE
@reported
def run_command(
    model: str,
    inputs: tuple[str, ...],
    output_dir: str | None,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    seed: int,
    on_miss: str,
    store_path: str | None,
) -> None:
    """Run a compiled model (.tw) or an ONNX file once."""
    executable = executable_of(model, shapes, threads, store_path, on_miss)
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
        click.echo(
            f"{port.name}: {port.dtype} {list(port.shape)}  mean {flat.mean():.6g}  min {flat.min():.6g}  max {flat.max():.6g}"
        )
        if output_dir is not None:
            folder = Path(output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in port.name)
            np.save(folder / f"{safe}.npy", value)


@main.command("bench")
@click.argument("model", type=click.Path())
@click.option("--time", "seconds", default="2s", show_default=True, callback=parse_seconds, help="How long to measure.")
@SHAPE
@THREADS
@ON_MISS["fallback"]
@STORE
@JSON
@reported
def bench_command(
    model: str,
    seconds: float,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    on_miss: str,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Time a compiled model (.tw) or an ONNX file: median of calls on the same arrays."""
    executable = executable_of(model, shapes, threads, store_path, on_miss)
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
        click.echo(
            f"median {median * 1e3:.3f} ms, {executable.compiled.target.threads} threads, {covered}/{total} kernels tuned"
        )


for _command in (best_command, records_group, device_command):
    main.add_command(_command)

if __name__ == "__main__":
    main()
