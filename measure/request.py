"""What to measure, and the one interface of everything that measures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from tilewright.measure.outcome import Outcome
from tilewright.measure.policy import Policy


@final
@dataclass(frozen=True, slots=True)
class Request:
    """One candidate: a workload under a schedule on a target, all as text."""

    workload: str
    """Canonical JSON text (`Workload.text`)."""
    schedule: str
    """Printed steps (`str(Schedule)`)."""
    target: str
    """`Target.to_json()`."""
    policy: Policy = field(default_factory=Policy)

    @property
    def workload_hash(self) -> str:
        """The hash of the workload, equal to `Workload.hash`."""
        return hashlib.sha256(self.workload.encode()).hexdigest()[:16]


class Runner(Protocol):
    """Measures candidates. A candidate that fails is an outcome; an exception means that nothing can be
    measured."""

    def measure(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """One outcome for each request, in order. Requests are taken as they are needed."""
        ...

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        """The outcome of one request; ``again`` says that it may have been measured before."""
        ...

    def contest(self, requests: Sequence[Request], *, seconds: float = 1.0) -> list[Outcome]:
        """One outcome for each of some candidates of one workload, measured again in one sitting. Samples of those
        that stopped for the reason ``rounds`` are aligned by round."""
        ...

    def close(self) -> None:
        """Free everything; closing twice is allowed."""
        ...


class DeviceError(RuntimeError):
    """The device cannot measure anything, whatever the candidate; the text says why."""
