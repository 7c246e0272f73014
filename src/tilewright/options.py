"""What the commands of the command line share: options, their parsers, and how errors become exit codes."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from tilewright import signals
from tilewright.compiled import ModelError
from tilewright.compiler import MissError
from tilewright.display import ClosedPipeError, tell
from tilewright.files import WriteError
from tilewright.graph.dtypes import GraphError
from tilewright.measure import DeviceError, memory_text
from tilewright.schedules.jit import CompileError
from tilewright.schedules.steps import ScheduleError
from tilewright.schedules.target import MOST_THREADS, Target, TargetError
from tilewright.search_space.strategy import LARGEST_SEED
from tilewright.tuner import TuneError
from tilewright.tuning_logs import Store, StoreError

EXIT_USAGE, EXIT_NO_CANDIDATE, EXIT_CHECK, EXIT_MISS, EXIT_DEVICE, EXIT_CLOSED_PIPE = 2, 3, 4, 5, 6, 141

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
    (WriteError, EXIT_USAGE),
)


LONGEST_SIZE = 18
"""Digits of a size: larger ones are no 64-bit numbers."""


def reported(command: Callable[..., Any]) -> Callable[..., Any]:
    """Known errors and interrupts become one message and an exit code; anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except tuple(kind for kind, _ in _EXIT_CODES) as error:
            code = next(c for kind, c in _EXIT_CODES if isinstance(error, kind))
            tell(f"error: {error}")
            sys.exit(code)
        except MemoryError as error:
            tell(f"error: not enough memory: {error or 'an allocation failed'}; {memory_text()}")
            sys.exit(EXIT_USAGE)
        except ClosedPipeError:
            sys.exit(EXIT_CLOSED_PIPE)
        except KeyboardInterrupt:
            sys.exit(signals.exit_code())

    return wrapped


def parse_shapes(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """``x=1,3,48,192`` as a mapping."""
    out: dict[str, tuple[int, ...]] = {}
    for text in values:
        name, sign, sizes = text.rpartition("=")
        parts = sizes.split(",") if sizes else []
        if not sign or not name or not all(_is_size(p.strip()) for p in parts):
            shown = text if len(text) < 100 else f"{text[:100]}…"
            raise click.BadParameter(
                f"expected NAME=SIZE,SIZE,… with sizes of at least 1 and at most {LONGEST_SIZE} digits (x=1,3,48,192); "
                f"got {shown!r}"
            )
        if name in out:
            raise click.BadParameter(f"input {name!r} is given twice")
        out[name] = tuple(int(p) for p in parts)
    return out


def parse_values(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, list[bool | int | float]]:
    """``sr=16000`` or ``axes=1,2`` as a mapping; the importer gives the numbers the type and shape of the input."""
    out: dict[str, list[bool | int | float]] = {}
    for text in values:
        name, sign, numbers = text.rpartition("=")
        parsed = [_number(p.strip()) for p in numbers.split(",")]
        if not sign or not name or None in parsed:
            raise click.BadParameter(f"expected NAME=NUMBER,NUMBER,… (sr=16000, or true and false); got {text!r}")
        if name in out:
            raise click.BadParameter(f"input {name!r} is given twice")
        out[name] = [p for p in parsed if p is not None]
    return out


def _number(text: str) -> bool | int | float | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def refuse_bindings(
    model: str, shapes: Mapping[str, object], values: Mapping[str, object], threads: int | None
) -> None:
    """Raise ModelError for ``--shape``, ``--value`` or ``--threads`` with a compiled model, for which they are settled."""
    if shapes or values or threads is not None:
        raise ModelError(
            f"{model} is compiled already, for its shapes, values and threads; "
            "give --shape, --value and --threads to 'tilewright compile'"
        )


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= LONGEST_SIZE and int(text) > 0


def finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """A number that is one."""
    if not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number; got {value}")
    return value


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
VALUE = click.option(
    "--value",
    "values",
    multiple=True,
    callback=parse_values,
    metavar="NAME=NUMBERS",
    help="Give an input a constant value: sr=16000. It is an input no more.",
)
SEED = click.IntRange(0, LARGEST_SEED)
TARGET = click.option(
    "--target", "target_name", default="host", show_default=True, help="Hardware target (see 'device')."
)
THREADS = click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    help=f"Threads that kernels use, at most {MOST_THREADS} (default: the target's cores).",
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


def store_to_read(store_path: str | None) -> Store:
    """The store of ``--store`` for a command that only reads: nothing is made, and that there is no store yet is said once."""
    store = Store(store_path, read_only=True, missing_ok=True)
    if store.missing:
        tell(f"note: there is no store at {store.path_text}, so there are no records")
    return store
