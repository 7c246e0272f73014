"""The rule by which measurements of a candidate become one time, and candidates of a key a winner.

A candidate stands if its latest verdict is "ok" (`duplicate` and `pruned_slow` are no verdicts), and if that
verdict was not given by versions of the software under which the candidate once computed a wrong result. Its
time is the median over its "ok" measurements (those by distrusted versions left out) of their `median_ns`.

Times of different sittings differ by more than the noise within one. So a candidate that was measured side by
side with a default (`Record.compared`) is *settled*: its time is the default's time times the ratio seen then,
whatever its other measurements say, and its noise is what the comparison leaves open. The noise of any other
candidate is at least the A/A noise of its run (`load["aa_noise"]`), where that is known; beside settled ones it is
at least `SITTINGS`, because the best of many single sittings is mostly a lucky one.

The winner is the candidate with the least time. Candidates whose time lies within the winner's own noise of
it are ties: a tie goes to the default schedule (unless a less noisy one of them beats it), then to a settled
candidate, then to the one that was measured first.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.tuning_logs.record import Record

NO_VERDICT = frozenset({"duplicate", "pruned_slow"})
AA_NOISE = "aa_noise"
"""Name in `Record.load` of the relative difference a kernel showed against itself before the run."""

SITTINGS = 0.1
"""By this much, relatively, the fastest of many measurements of different sittings may be too fast."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the measurements of one candidate say together."""

    record: Record  # its latest "ok" measurement
    time_ns: float  # the median over its measurements; of a settled one, the default's time times the ratio
    noise: float  # relative: by how much the time may be wrong
    is_default: bool
    measurements: int
    first: int  # the position of its first measurement
    distrusted: tuple[Mapping[str, str], ...] = ()  # versions under which it computed a wrong result
    settled: bool = False  # whether a comparison with a default gave its time


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one sitting says of a candidate against a default."""

    default: str  # candidate of the default
    ratio: float
    high: float
    margin: float
    versions: Mapping[str, str]


def standing(measurements: Sequence[tuple[int, Record]]) -> Standing | None:
    """Judge one candidate by all its `(position, record)`, but not by comparisons; None if it does not stand."""
    ordered = sorted(measurements, key=lambda item: item[0])
    verdicts = [record for _, record in ordered if record.status not in NO_VERDICT]
    distrusted = [record.versions for record in verdicts if record.status == "wrong_result"]
    if not verdicts or verdicts[-1].status != "ok" or verdicts[-1].versions in distrusted:
        return None
    used = [record for record in verdicts if record.status == "ok" and record.versions not in distrusted]
    return Standing(
        record=used[-1],
        time_ns=statistics.median(record.median_ns for record in used if record.median_ns is not None),
        noise=statistics.median(_noise(record) for record in used),
        is_default=any(record.is_default for _, record in ordered),
        measurements=len(used),
        first=ordered[0][0],
        distrusted=tuple(distrusted),
    )


def _noise(record: Record) -> float:
    between = record.load.get(AA_NOISE, 0.0)
    return max(record.noise or 0.0, between if isinstance(between, int | float) else 0.0)


def comparisons(records: Iterable[Record]) -> dict[str, list[Comparison]]:
    """The comparisons in "ok" records, by the candidate that was compared with the default."""
    found: dict[str, list[Comparison]] = {}
    for record in records:
        if record.status != "ok" or not record.compared:
            continue
        default = record.candidate
        for candidate, entry in record.compared.items():
            if candidate != default:
                made = Comparison(default, entry["ratio"], entry["high"], entry["margin"], record.versions)
                found.setdefault(candidate, []).append(made)
    return found


def settle(judged: Mapping[str, Standing], compared: Mapping[str, Sequence[Comparison]]) -> list[Standing]:
    """The candidates, those that were compared with a default that stands with the time that follows from it, and the others
    (if there are such) with the noise of theirs."""
    return [_settled(item, judged, compared.get(name, ()), bool(compared)) for name, item in judged.items()]


def _settled(item: Standing, judged: Mapping[str, Standing], compared: Sequence[Comparison], others: bool) -> Standing:
    used = [c for c in compared if c.default in judged and c.versions not in item.distrusted]
    if not used:
        return item if item.is_default or not others else replace(item, noise=max(item.noise, SITTINGS))
    return replace(
        item,
        time_ns=statistics.median(c.ratio * judged[c.default].time_ns for c in used),
        noise=statistics.median(max(c.margin, c.high / c.ratio - 1) for c in used),
        settled=True,
    )


def standings(records: Iterable[Record]) -> list[Standing]:
    """The standing candidates of records of *one* key, given in the order of measurement, fastest first."""
    ordered = list(records)
    grouped: dict[str, list[tuple[int, Record]]] = {}
    for position, record in enumerate(ordered):
        grouped.setdefault(record.candidate, []).append((position, record))
    judged = {name: item for name, group in grouped.items() if (item := standing(group)) is not None}
    return sorted(settle(judged, comparisons(ordered)), key=lambda item: (item.time_ns, item.first))


def winner(fastest_first: Iterable[Standing]) -> Standing | None:
    """The best of candidates given fastest first; reads no further than the ties. None if there are none."""
    ties: list[Standing] = []
    for item in fastest_first:
        if ties and item.time_ns > ties[0].time_ns * (1 + ties[0].noise):
            break
        ties.append(item)
    default = next((item for item in ties if item.is_default), None)
    if default is not None:
        clear = (item for item in ties if item.time_ns * (1 + item.noise) < default.time_ns)
        return next(clear, default)
    return min(ties, key=lambda item: (not item.settled, item.first), default=None)
