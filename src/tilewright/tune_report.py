"""What a finished tuning run is told as: tables for people, JSON for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.display import print_table, say, tell, time_text
from tilewright.results import TuneResult


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """Nanoseconds of the whole model with default and with tuned schedules, and the gain: the median of the ratios within rounds,
    which the speed of the machine leaves alone."""

    default_ns: float
    tuned_ns: float
    gain: float


Ends = EndToEnd | None
"""None where that was not measured."""


def print_tuning(result: TuneResult, ends: Ends, path: str) -> None:
    """The kernels that cost most, what was measured, and what it gained; ``path`` is where the records are."""
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
    print_table(
        "kernels (the 20 that cost most)", ("node", "workload", "runs", "default", "best", "gain", "trials"), rows
    )
    failed: dict[str, int] = {}
    for t in result.tasks:
        for status, n in t.failures.items():
            failed[status] = failed.get(status, 0) + n
    say(
        f"{result.trials} measurements in {result.seconds:.0f} s ({result.stopped}); failures: "
        + (", ".join(f"{n} {s}" for s, n in failed.items()) or "none")
    )
    say(f"sum of kernels: default {time_text(result.default_ns)}, best {time_text(result.best_ns)}")
    if ends is not None:
        say(
            f"end to end:     default {time_text(ends.default_ns)}, tuned {time_text(ends.tuned_ns)}  ({ends.gain:.2f}x)"
        )
    say(f"records: {path}")


def warn(result: TuneResult) -> None:
    """Say on stderr what puts the results in doubt: tasks of which everything but the default failed, or that had no contest, and a
    busy machine."""
    if kept := sum(bool(t.kept) for t in result.tasks):
        tell(f"{kept} kernels keep their default for want of a contest; tune again for one")
    for t in result.tasks:
        if t.only_default:
            causes = ", ".join(f"{n} {s}" for s, n in t.failures.items())
            tell(
                f"warning: {t.task.origin} ({t.task.workload.describe()}): nothing but the default schedule could be measured "
                f"({causes}). First error:\n{t.first_error}"
            )
    if result.noise > 0.1:
        tell(f"warning: a kernel differed from itself by {result.noise:.0%} before the run; other programs are busy")


def _finite(value: float) -> float | None:
    """JSON has no infinity: a task without a time is null."""
    return value if math.isfinite(value) else None


def tuning_json(result: TuneResult, ends: Ends, path: str) -> dict[str, Any]:
    """All of it as plain data; times in nanoseconds."""
    return {
        "run": result.run_id,
        "records": path,
        "trials": result.trials,
        "seconds": result.seconds,
        "stopped": result.stopped,
        "interrupted": result.interrupted,
        "fruitless": result.fruitless,
        "noise": result.noise,
        "default_ns": _finite(result.default_ns),
        "best_ns": _finite(result.best_ns),
        "end_to_end_ns": None if ends is None else {"default": ends.default_ns, "tuned": ends.tuned_ns},
        "end_to_end_gain": None if ends is None else ends.gain,
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
                "first_error": t.first_error or None,
                "kept": t.kept or None,
            }
            for t in result.tasks
        ],
    }
