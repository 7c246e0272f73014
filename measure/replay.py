"""A device that answers from measurements made earlier, so that a search can be judged without hardware."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, final

from tilewright.measure.outcome import Outcome
from tilewright.measure.request import Request
from tilewright.schedules.steps import ScheduleError, parse


class Measured(Protocol):
    """What a stored measurement must have: an outcome's fields beside the names of its candidate (a record of
    a log has)."""

    @property
    def workload_hash(self) -> str: ...
    @property
    def schedule(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def median_ns(self) -> float | None: ...
    @property
    def samples_ns(self) -> tuple[float, ...]: ...
    @property
    def noise(self) -> float | None: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def max_error(self) -> float | None: ...
    @property
    def build_s(self) -> float: ...
    @property
    def run_s(self) -> float: ...


class ReplayError(LookupError):
    """A candidate that was never measured."""


def normal(schedule: str) -> str:
    """A schedule as it prints, so that comments and spaces do not matter; text that is no schedule stays as
    it is."""
    try:
        return str(parse(schedule))
    except ScheduleError:
        return schedule.strip()


@final
class ReplayRunner:
    """Answers from ``table``: outcomes by workload hash and printed schedule. Raises ReplayError for any
    other candidate."""

    def __init__(self, table: Mapping[tuple[str, str], Outcome]) -> None:
        self._table = {(w, normal(s)): outcome for (w, s), outcome in table.items()}
        self.spent_s = 0.0
        """Seconds that the measurements replayed so far took when they were made."""

    @staticmethod
    def of(measured: Iterable[Measured]) -> ReplayRunner:
        """From stored measurements; of several of one candidate, the last that was ok counts, else the
        last."""
        table: dict[tuple[str, str], Outcome] = {}
        for m in measured:
            key = m.workload_hash, normal(m.schedule)
            if m.status != "ok" and key in table and table[key].ok:
                continue
            table[key] = Outcome(
                m.status,
                m.median_ns,
                tuple(m.samples_ns),
                m.noise,
                m.stop_reason,
                m.error,
                m.max_error,
                m.build_s,
                m.run_s,
            )
        return ReplayRunner(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to free."""

    def __len__(self) -> int:
        return len(self._table)

    def candidates(self, workload_hash: str) -> list[str]:
        """The schedules known for a workload."""
        return [s for w, s in self._table if w == workload_hash]

    def measure(self, requests: Iterable[Request]) -> Iterator[Outcome]:
        """The stored outcomes, in order."""
        for request in requests:
            yield self.measure_one(request)

    def measure_one(self, request: Request, again: bool = False) -> Outcome:
        """The stored outcome of a candidate, ``again`` or not. Raises ReplayError, which names it, if there
        is none."""
        schedule = normal(request.schedule)
        outcome = self._table.get((request.workload_hash, schedule))
        if outcome is None:
            name = request.workload_hash
            raise ReplayError(
                f"replay: expected one of the {len(self.candidates(name))} candidates measured of workload "
                f"{name}; got\n"
                f"{schedule or '(the empty schedule)'}"
            )
        self.spent_s += outcome.build_s + outcome.run_s
        return outcome

    def contest(self, requests: Sequence[Request], *, seconds: float = 1.0) -> list[Outcome]:
        """The stored outcomes: times that were not taken in the same rounds, and are not said to be."""
        return [self.measure_one(r, again=True) for r in requests]
