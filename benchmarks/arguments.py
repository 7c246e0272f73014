"""Arguments that the benchmarks have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

import platformdirs

import tilewright


def names(text: str) -> list[str]:
    """``a,b`` as a list without repeats. Raises ArgumentTypeError for an empty one."""
    out = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not out:
        raise argparse.ArgumentTypeError(f"expected names joined by commas; got {text!r}")
    return out


def thread_counts(text: str) -> list[int]:
    """``2,1`` as a list of numbers of at least 1."""
    parts = names(text)
    if not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"expected thread counts joined by commas (2,1); got {text!r}")
    return [int(p) for p in parts]


def seconds(text: str) -> float:
    """A number of seconds, at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number of seconds of at least 0; got {text!r}")
    return value


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1; got {text!r}")
    return int(text)


def default_store() -> Path:
    """Where benchmarks keep their records: apart from the user's own."""
    return Path(platformdirs.user_cache_dir("tilewright")) / "benchmarks.sqlite"


def add_shared_arguments(parser: argparse.ArgumentParser, tuning: float) -> None:
    """Options that operators and models have in common."""
    cores = tilewright.Target.host().threads
    counts = sorted({cores, 1}, reverse=True)
    parser.add_argument(
        "--threads",
        type=thread_counts,
        default=counts,
        metavar="N,...",
        help="thread counts (default: all, and 1)",
    )
    parser.add_argument(
        "--time",
        type=seconds,
        default=tuning,
        metavar="SECONDS",
        help=f"tuning time of each (default: {tuning:.0f})",
    )
    parser.add_argument(
        "--store",
        type=Path,
        default=None,
        help=f"where records are kept and found (default: {default_store()})",
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--rounds", type=positive, default=7, help="rounds of the comparison (default: 7)")
