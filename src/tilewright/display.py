"""What people see: progress on stderr (a live line on a terminal, plain lines otherwise), results and tables on stdout.

A result that cannot be written is an error. Progress that nobody reads is not: a run goes on without its terminal.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tilewright.files import WriteError
from tilewright.tuner import Event
from tilewright.tuning_logs import NO_VERDICT

PLAIN_EVERY_S = 10.0


class ClosedPipeError(Exception):
    """Who read the results has closed the pipe."""


def say(text: str) -> None:
    """A result on stdout. Raises ClosedPipeError if nobody reads it, WriteError if it cannot be written."""
    try:
        click.echo(text)
    except BrokenPipeError as error:
        raise ClosedPipeError from error
    except OSError as error:
        raise WriteError(f"cannot write to the standard output: {error.strerror or error}") from error


def tell(text: str) -> None:
    """A note, a warning or an error on stderr, if anybody reads it."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def time_text(ns: float | None) -> str:
    """Nanoseconds for people: ``12.3 us``."""
    if ns is None or not math.isfinite(ns):
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 100 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.0f} ns"


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout. Raises as :func:`say` does."""
    table = Table(title=title, title_justify="left", show_header=any(headers))
    for k, h in enumerate(headers):
        table.add_column(h, overflow="fold", justify="left" if k < 2 else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=140)
    with console.capture() as drawn:
        console.print(table)
    say(drawn.get().removesuffix("\n"))


class TuneDisplay:
    """Progress of a tuning run. Counts finished measurements, never started ones."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._last = 0.0
        self._failed = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._live.stop()

    def show(self, event: Event) -> None:
        """Report one finished measurement."""
        if not event.outcome.ok and event.outcome.status not in NO_VERDICT:
            self._failed += 1
        took = time_text(event.outcome.median_ns) if event.outcome.ok else event.outcome.status
        text = (
            f"{event.elapsed_s:6.0f} s  {event.trials:5d} measured, {self._failed} failed   {event.task.workload.describe()}: "
            f"{took}, best {time_text(event.best_ns)}"
        )
        if self._live is not None:
            self._live.update(Text(text))
        elif event.elapsed_s - self._last >= PLAIN_EVERY_S or event.trials == 1:
            self._last = event.elapsed_s
            tell(text)
