"""The command line. Results on stdout, progress on stderr; exit codes:
0 ok, 2 usage, bad input, or an output that cannot be written, 3 no valid candidate, 4 a check failed (scripts under examples),
5 a record is missing, 6 the device is unavailable or too noisy, 130 interrupted (what was measured is kept), 141 nobody reads the
output."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from typing import Any

import click
import numpy as np

from tilewright import __version__, signals
from tilewright.api import compile as compile_model
from tilewright.api import compile_for, load, records_lookup
from tilewright.array_files import given_inputs, output_files, write_array
from tilewright.cli_info import best_command, device_command, records_group
from tilewright.compiler import compile_graph
from tilewright.display import TuneDisplay, say
from tilewright.files import refuse_unwritable
from tilewright.graph.graph import Graph
from tilewright.measure import Policy
from tilewright.model_file import save
from tilewright.options import (
    ALGORITHMS,
    CACHE,
    EXIT_NO_CANDIDATE,
    JSON,
    ON_MISS,
    SEED,
    SHAPE,
    STORE,
    TARGET,
    THREADS,
    VALUE,
    finite,
    parse_seconds,
    refuse_bindings,
    reported,
    store_to_read,
    target_of,
)
from tilewright.runtime import Executable, random_input
from tilewright.runtime import load as load_compiled
from tilewright.schedules.target import Target
from tilewright.search_space.strategies import STRATEGIES
from tilewright.tune_report import EndToEnd, print_tuning, tuning_json, warn
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
@VALUE
@TARGET
@THREADS
@click.option(
    "--time", "seconds", default="2m", show_default=True, callback=parse_seconds, help="Time budget: 90s, 5m, 1h."
)
@click.option("--trials", type=click.IntRange(1), help="Stop after so many measurements.")
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="ranked", show_default=True, help="What proposes candidates."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--max-noise",
    type=click.FloatRange(0, min_open=True),
    callback=finite,
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
    values: dict[str, list[bool | int | float]],
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
    graph = load(model, shapes, values)
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
        ends = None
        if not result.interrupted:
            try:
                ends = _end_to_end(graph, target, store, Policy(cache=cache, algorithms=algorithms))
            except KeyboardInterrupt:  # what the run found is told all the same
                result = replace(result, interrupted=True, stopped="interrupted")
    if as_json:
        say(json.dumps(tuning_json(result, ends, path)))
    else:
        print_tuning(result, ends, path)
    warn(result)
    if result.interrupted:
        sys.exit(signals.exit_code())
    if result.fruitless:
        sys.exit(EXIT_NO_CANDIDATE)


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
@VALUE
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
    values: dict[str, list[bool | int | float]],
    target_name: str,
    threads: int | None,
    on_miss: str,
    cache: str,
    algorithms: str,
    store_path: str | None,
) -> None:
    """Compile MODEL with the best records; nothing is measured."""
    target = target_of(target_name, threads)
    refuse_unwritable(output)
    with store_to_read(store_path) as store:
        compiled = compile_for(
            model,
            target,
            store,
            shapes=shapes,
            values=values,
            on_miss=on_miss,
            policy=Policy(cache=cache, algorithms=algorithms),
        )
    save(compiled, output)
    covered, total = compiled.coverage()
    say(f"{output}: {total} kernels, {covered} from records; arena {compiled.arena_bytes / 1e6:.1f} MB")


def executable_of(
    model: str,
    shapes: dict[str, tuple[int, ...]],
    values: dict[str, list[bool | int | float]],
    threads: int | None,
    store_path: str | None,
    on_miss: str,
) -> Executable:
    """A ``.tw`` file as it is, or an ONNX file compiled on the fly from the records."""
    if model.endswith(".tw"):
        refuse_bindings(model, shapes, values, threads)
        return load_compiled(model)
    with store_to_read(store_path) as store:
        return compile_model(model, target_of("host", threads), store, shapes=shapes, values=values, on_miss=on_miss)


@main.command("run")
@click.argument("model", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input (default: random values).")
@click.option("--output-dir", type=click.Path(file_okay=False), help="Write the outputs there, one .npy each.")
@SHAPE
@VALUE
@THREADS
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the random inputs.")
@ON_MISS["fallback"]
@STORE
@reported
def run_command(
    model: str,
    inputs: tuple[str, ...],
    output_dir: str | None,
    shapes: dict[str, tuple[int, ...]],
    values: dict[str, list[bool | int | float]],
    threads: int | None,
    seed: int,
    on_miss: str,
    store_path: str | None,
) -> None:
    """Run a compiled model (.tw) or an ONNX file once."""
    executable = executable_of(model, shapes, values, threads, store_path, on_miss)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {p.name: random_input(p, rng) for p in executable.inputs}
    arrays |= given_inputs(inputs, list(arrays))
    files = output_files(output_dir, [p.name for p in executable.outputs]) if output_dir is not None else []
    outputs = executable.run(arrays)
    for file, value in zip(files, outputs, strict=False):
        write_array(file, value)
    for port, value in zip(executable.outputs, outputs, strict=True):
        flat = value.astype(np.float64).ravel()
        say(
            f"{port.name}: {port.dtype} {list(port.shape)}  mean {flat.mean():.6g}  min {flat.min():.6g}  max {flat.max():.6g}"
        )


@main.command("bench")
@click.argument("model", type=click.Path())
@click.option("--time", "seconds", default="2s", show_default=True, callback=parse_seconds, help="How long to measure.")
@SHAPE
@VALUE
@THREADS
@ON_MISS["fallback"]
@STORE
@JSON
@reported
def bench_command(
    model: str,
    seconds: float,
    shapes: dict[str, tuple[int, ...]],
    values: dict[str, list[bool | int | float]],
    threads: int | None,
    on_miss: str,
    store_path: str | None,
    as_json: bool,
) -> None:
    """Time a compiled model (.tw) or an ONNX file: median of calls on the same arrays."""
    executable = executable_of(model, shapes, values, threads, store_path, on_miss)
    median = executable.time(seconds)
    covered, total = executable.compiled.coverage()
    if as_json:
        say(
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
        say(
            f"median {median * 1e3:.4g} ms, {executable.compiled.target.threads} threads, {covered}/{total} kernels tuned"
        )


for _command in (best_command, records_group, device_command):
    main.add_command(_command)
