"""What one measurement said: a status of a closed set, the samples, and the reason where there are none.

A candidate that fails is an ordinary, counted outcome. An outcome is plain data, so that it crosses a process
boundary as JSON and becomes a record without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, final

STATUSES: Final = (
    "ok",
    "rejected",
    "compile_error",
    "compile_timeout",
    "run_error",
    "crash",
    "run_timeout",
    "wrong_result",
    "duplicate",
    "pruned_slow",
)
"""ok: checked and timed. rejected: the schedule is not legal for the workload. compile_error: LLVM refused
the module. compile_timeout, run_timeout: killed when the limit of the stage had passed. run_error: the
reference or the device failed, not the candidate. crash: the worker process ended or ran out of memory.
wrong_result: the output (or an input, or a guard band) is not as it must be. duplicate: the same machine code
as an earlier candidate. pruned_slow: checked, but abandoned while timing because it was far slower than the
best."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of measuring one candidate. Raises ValueError for a status that is unknown or does not
    fit."""

    status: str
    median_ns: float | None = None
    """Median time of one call, in nanoseconds; given exactly when `status` is `ok`."""
    samples_ns: tuple[float, ...] = ()
    """Time of one call in each sample, in nanoseconds, in the order taken."""
    noise: float | None = None
    """Half the width of the 95 % confidence interval of the median, divided by the median. With fewer than 6
    samples half their whole range stands for it; with fewer than 3 it is None."""
    stop_reason: str = ""
    """Why sampling stopped: `target_noise`, `max_time`, `max_samples`, `cutoff`, `beaten` (slower
    than the best beyond doubt), or `rounds` (a contest:
    samples are aligned with those of the other contestants); empty if nothing was timed."""
    error: str | None = None
    """The cause, in full; None when `status` is `ok`."""
    max_error: float | None = None
    """Largest relative error against the reference that the check saw (None: not checked, or not finite)."""
    build_s: float = 0.0
    """Seconds to apply, lower and compile."""
    run_s: float = 0.0
    """Seconds to check and time, without waiting for the device and without computing the reference."""
    load: dict[str, float] = field(default_factory=dict)
    """What surrounded the timing: load average, processor clock, preemptions, waiting for the device…"""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status of an outcome: expected one of {', '.join(STATUSES)}; got {self.status!r}")
        if (self.status == "ok") != (self.median_ns is not None):
            expected = "a median" if self.status == "ok" else "no median"
            raise ValueError(f"outcome {self.status}: expected {expected}; got {self.median_ns!r}")

    @property
    def ok(self) -> bool:
        """Whether the candidate was checked and timed."""
        return self.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "samples_ns": list(self.samples_ns)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Outcome:
        """The inverse of :meth:`to_dict`. Raises ValueError for an unknown field."""
        known = {f.name for f in fields(Outcome)}
        unknown = sorted(set(data) - known)
        if unknown or "status" not in data:
            raise ValueError(f"outcome: expected the fields {', '.join(sorted(known))}; got {', '.join(sorted(data))}")
        return Outcome(**{**data, "samples_ns": tuple(data.get("samples_ns", ()))})
