"""A request on its way through a runner, and the outcomes that its answers add up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tilewright.measure.messages import Message
from tilewright.measure.outcome import Outcome
from tilewright.measure.request import Request


@final
@dataclass
class Job:
    """State of one request. Numbers rise in the order in which jobs are finished."""

    number: int
    request: Request
    slot: int
    """Of the worker it is built, checked and timed by."""
    force: bool = False
    """Measure even if the code was measured before, and without a cut-off."""
    generation: int = 0
    """Of the worker that holds the built kernel; 0: none does."""
    oldest: int = 0
    """Jobs with smaller numbers are finished: the worker may forget them."""
    fresh: bool = True
    """Whether the worker had run nothing else when the job came to it."""
    digest: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    max_error: float | None = None
    load: dict[str, float] = field(default_factory=dict)
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.oldest = self.oldest or self.number

    def failed(self, status: str, error: str) -> Outcome:
        """An outcome without times."""
        return Outcome(
            status,
            error=error,
            max_error=self.max_error,
            build_s=self.build_s,
            run_s=self.run_s,
            load=self.load,
        )

    def built(self, answer: Message) -> bool:
        """Take the answer to a build; whether it succeeded."""
        self.build_s = float(answer["build_s"])
        self.digest = str(answer["digest"])
        if answer["status"] != "ok":
            self.outcome = self.failed(str(answer["status"]), str(answer["error"]))
        return self.outcome is None

    def checked(self, answer: Message) -> bool:
        """Take the answer to a check; whether it passed."""
        self.run_s += float(answer["run_s"])
        self.max_error = answer["max_error"]
        if answer["status"] != "ok":
            self.outcome = self.failed(str(answer["status"]), str(answer["error"]))
        return self.outcome is None

    def timed(self, answer: Message) -> Outcome:
        """The outcome after timing."""
        self.run_s += float(answer["run_s"])
        self.load |= answer.get("load", {})
        status, error = str(answer["status"]), answer["error"]
        reason = str(answer.get("stop_reason", ""))
        if status == "ok" and reason == "cutoff":
            status = "pruned_slow"
            error = f"about {answer['median_ns']:.0f} ns: more than {self.request.policy.cutoff} times the best"
        return Outcome(
            status,
            float(answer["median_ns"]) if status == "ok" else None,
            tuple(answer.get("samples_ns", ())),
            answer.get("noise"),
            reason,
            error,
            self.max_error,
            self.build_s,
            self.run_s,
            self.load,
        )

    def duplicate(self, earlier: Outcome) -> Outcome:
        """The outcome of code that was measured before."""
        said = (
            f"a median of {earlier.median_ns:.0f} ns"
            if earlier.median_ns is not None
            else f"{earlier.status}: {earlier.error}"
        )
        return self.failed("duplicate", f"the same code as an earlier candidate, which gave {said}")
