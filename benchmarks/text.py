"""Figures for people, and tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def threads_text(threads: int) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def ms_text(ms: float | None) -> str:
    """Milliseconds with three digits; a dash for none."""
    if ms is None:
        return "-"
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; all but the first column are set to the right."""
    rule = "|".join(["---", *["---:"] * (len(headers) - 1)])
    return [f"| {' | '.join(headers)} |", f"|{rule}|", *(f"| {' | '.join(r)} |" for r in rows)]


def markdown(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under a heading."""
    return "\n".join([f"### {title}", "", *table_lines(headers, rows), ""])
