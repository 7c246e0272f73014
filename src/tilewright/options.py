"""What the commands of the command line share: options, their parsers, and how errors become exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tilewright.compiled import ModelError
from tilewright.compiler import MissError
from tilewright.graph.dtypes import GraphError
from tilewright.measure import DeviceError
from tilewright.schedules.jit import CompileError
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.target import Target, TargetError
from tilewright.tuner import TuneError
from tilewright.tuning_logs import StoreError, default_path

EXIT_USAGE, EXIT_NO_CANDIDATE, EXIT_CHECK, EXIT_MISS, EXIT_DEVICE, EXIT_INTERRUPTED = 2, 3, 4, 5, 6, 130

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


def parse_shapes(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
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


SHAPE = click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=parse_shapes,
    metavar="NAME=SIZES",
    help="Bind an input's shape: x=1,3,48,192.",
)
TARGET = click.option(
    "--target", "target_name", default="host", show_default=True, help="Hardware target (see 'device')."
)
THREADS = click.option(
    "--threads", type=click.IntRange(1), help="Threads that kernels use (default: the target's cores)."
)
STORE = click.option(
    "--store", "store_path", metavar="PATH|URL", help="Where records are kept (default: the user's data folder)."
)
CACHE = click.option(
    "--cache",
    type=click.Choice(["hot", "cold", "rotating"]),
    default="hot",
    show_default=True,
    help="Where a timed kernel finds its data: in the same buffers as the call before (hot), nowhere in the caches (cold), in copies "
    "that together exceed them (rotating). Records of each are apart.",
)
ALGORITHMS = click.option(
    "--algorithms",
    type=click.Choice(["any", "direct"]),
    default="any",
    show_default=True,
    help="'direct' forbids algorithms that magnify rounding errors (Winograd's convolutions).",
)
ON_MISS = {
    name: click.option(
        "--on-miss",
        type=click.Choice(["fallback", "warn", "error"]),
        default=name,
        show_default=True,
        help="A kernel without a record that applies: take its default schedule (fallback), and say so (warn), or stop (error).",
    )
    for name in ("warn", "fallback")
}
"""By what is done if nothing is said."""
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def target_of(name: str, threads: int | None) -> Target:
    """The target of ``--target`` and ``--threads``."""
    target = Target.load(name)
    return target if threads is None else target.with_threads(threads)


def store_exists(store_path: str | None) -> bool:
    """Whether the store is a file that is there already, so that reading it may be read-only."""
    if store_path is not None and "://" in store_path:
        return False
    return (Path(store_path) if store_path is not None else default_path()).is_file()
