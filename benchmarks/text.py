"""Figures for people, and tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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


UNDECIDED = "`?`: the 95 % interval contains 1, or there were fewer than 6 rounds: neither side is shown to be faster."


def ratio_text(row: Mapping[str, Any]) -> str:
    """The ratio of a row with its interval, and a mark where that is wider than what the ratio claims; a dash for none."""
    if row["ratio"] is None:
        return "-"
    mark = "" if row["decided"] else " ?"
    return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f}){mark}"
