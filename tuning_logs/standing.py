"""The rule by which measurements of a candidate become one time, and candidates of a key a winner.

A candidate stands if its latest verdict is "ok" (`duplicate` and `pruned_slow` are no verdicts), and if that
verdict was not given by versions of the software under which the candidate once computed a wrong result. Its
time is the median over its "ok" measurements (those by distrusted versions left out) of their `median_ns`.

The winner is the candidate with the least time. Candidates whose time lies within the winner's own noise of
it are ties: a tie goes to the default schedule, then to the candidate that was measured first.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.tuning_logs.record import Record

NO_VERDICT = frozenset({"duplicate", "pruned_slow"})


@dataclass(frozen=True, slots=True)
class Standing:
    """What the measurements of one candidate say together."""

    record: Record  # its latest "ok" measurement
    time_ns: float  # the median over its measurements
    noise: float  # relative, the median over its measurements; 0 if none was stored
    is_default: bool
    measurements: int
    first: int  # the position of its first measurement


def standing(measurements: Sequence[tuple[int, Record]]) -> Standing | None:
    """Judge one candidate by all its `(position, record)`; None if it does not stand."""
    ordered = sorted(measurements, key=lambda item: item[0])
    verdicts = [record for _, record in ordered if record.status not in NO_VERDICT]
    distrusted = [record.versions for record in verdicts if record.status == "wrong_result"]
    if not verdicts or verdicts[-1].status != "ok" or verdicts[-1].versions in distrusted:
        return None
    used = [record for record in verdicts if record.status == "ok" and record.versions not in distrusted]
    return Standing(
        record=used[-1],
        time_ns=statistics.median(record.median_ns for record in used if record.median_ns is not None),
        noise=statistics.median([record.noise for record in used if record.noise is not None] or [0.0]),
        is_default=any(record.is_default for _, record in ordered),
        measurements=len(used),
        first=ordered[0][0],
    )


def standings(records: Iterable[Record]) -> list[Standing]:
    """The standing candidates of records of *one* key, given in the order of measurement, fastest first."""
    grouped: dict[str, list[tuple[int, Record]]] = {}
    for position, record in enumerate(records):
        grouped.setdefault(record.candidate, []).append((position, record))
    judged = (standing(group) for group in grouped.values())
    return sorted((item for item in judged if item is not None), key=lambda item: (item.time_ns, item.first))


def winner(fastest_first: Iterable[Standing]) -> Standing | None:
    """The best of candidates given fastest first; reads no further than the ties. None if there are none."""
    ties: list[Standing] = []
    for item in fastest_first:
        if ties and item.time_ns > ties[0].time_ns * (1 + ties[0].noise):
            break
        ties.append(item)
    return min(ties, key=lambda item: (not item.is_default, item.first), default=None)
