"""The rule by which measurements of a candidate become one time, and candidates of a key a winner.

A candidate stands if its latest verdict is "ok" (`duplicate` and `pruned_slow` are no verdicts), and if that
verdict was not given by versions of the software under which the candidate once computed a wrong result. Its
time is the median over its "ok" measurements (those by distrusted versions left out) of their `median_ns`.

Times of different sittings differ by more than the noise within one, and the best of many single sittings is mostly
a lucky one. So they choose who is compared, and nothing else. What decides is a *contest*: candidates that were
timed side by side with the default (`Record.compared`) are *settled*, their time is the default's time times the
ratio seen then, whatever their other measurements say, and their noise is what the comparison leaves open.

The winner (`decide`) is the fastest settled candidate that beats the default by more than its noise; else the
default. Where a candidate looks faster than the default and no contest was held, there is no winner: the default
stays, as it does where the default was never measured. Only where the default fails does the fastest of the
others win by its own time.

The default of a key is the candidate that was last measured as such, of those that stand: another version may have
another one. What was compared with an earlier one has to be compared again.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.tuning_logs.record import Record

NO_VERDICT = frozenset({"duplicate", "pruned_slow"})
AA_NOISE = "aa_noise"
"""Name in `Record.load` of the relative difference a kernel showed against itself before the run."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the measurements of one candidate say together."""

    record: Record  # its latest "ok" measurement
    time_ns: float  # the median over its measurements; of a settled one, the default's time times the ratio
    noise: float  # relative: by how much the time may be wrong
    measurements: int
    first: int  # the position of its first measurement
    distrusted: tuple[Mapping[str, str], ...] = ()  # versions under which it computed a wrong result
    is_default: bool = False  # whether it is the default of the key
    settled: bool = False  # whether a comparison with the default gave its time


@dataclass(frozen=True, slots=True)
class Versus:
    """What one sitting says of a candidate against a default."""

    default: str  # candidate of the default
    ratio: float
    high: float
    margin: float
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which candidate of a key is to be used, or why none is."""

    winner: Standing | None
    default: Standing | None = None  # the default of the key, if it stands
    contested: bool = False  # whether some candidate was timed side by side with it
    reason: str = ""  # why there is no winner

    @property
    def kept(self) -> Standing | None:
        """What a key's best is: the winner, or the default where it stays for want of a contest."""
        return self.winner or self.default


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
        measurements=len(used),
        first=ordered[0][0],
        distrusted=tuple(distrusted),
    )


def _noise(record: Record) -> float:
    between = record.load.get(AA_NOISE, 0.0)
    return max(record.noise or 0.0, between if isinstance(between, int | float) else 0.0)


def comparisons(records: Iterable[Record]) -> dict[str, list[Versus]]:
    """The comparisons in "ok" records, by the candidate that was compared with a default."""
    found: dict[str, list[Versus]] = {}
    for record in records:
        if record.status != "ok" or not record.compared:
            continue
        default = record.candidate
        for candidate, entry in record.compared.items():
            if candidate != default:
                made = Versus(default, entry["ratio"], entry["high"], entry["margin"], record.versions)
                found.setdefault(candidate, []).append(made)
    return found


def defaults(records: Iterable[Record]) -> list[str]:
    """The candidates that were measured as the default, given in the order of measurement; the latest first."""
    return list(dict.fromkeys(record.candidate for record in reversed(list(records)) if record.is_default))


def settle(
    judged: Mapping[str, Standing], name: str | None, default: Standing | None, compared: Mapping[str, Sequence[Versus]]
) -> list[Standing]:
    """The candidates; those that were compared with the default (its name, and where it stands) have the time that follows
    from it."""
    return [_settled(candidate, item, name, default, compared.get(candidate, ())) for candidate, item in judged.items()]


def _settled(
    candidate: str, item: Standing, name: str | None, default: Standing | None, compared: Sequence[Versus]
) -> Standing:
    if candidate == name:
        return replace(item, is_default=True)
    if default is None:
        return item
    distrusted = (*item.distrusted, *default.distrusted)
    used = [c for c in compared if c.default == name and c.versions not in distrusted]
    if not used:
        return item
    return replace(
        item,
        time_ns=statistics.median(c.ratio for c in used) * default.time_ns,
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
    name = next((n for n in defaults(ordered) if n in judged), None)
    settled = settle(judged, name, None if name is None else judged[name], comparisons(ordered))
    return sorted(settled, key=lambda item: (item.time_ns, item.first))


def verdict(records: Iterable[Record]) -> Verdict:
    """The winner among records of *one* key, given in the order of measurement."""
    ordered = list(records)
    found = standings(ordered)
    default = next((item for item in found if item.is_default), None)
    return decide(default, any(r.is_default for r in ordered), [item for item in found if item.settled], found)


def decide(
    default: Standing | None, tried: bool, settled: Iterable[Standing], fastest_first: Iterable[Standing]
) -> Verdict:
    """The winner, by the rule above.

    `default` is None where none stands, `tried` says whether one was measured, `settled` are the candidates that were
    compared with it. `fastest_first` are all candidates; of them no more is read than is needed.
    """
    if default is None:
        return _without_default(tried, fastest_first)
    compared = list(settled)
    clear = [item for item in compared if _beats(item, default)]
    if compared:
        return Verdict(min(clear, key=lambda item: (item.time_ns, item.first), default=default), default, True)
    faster = itertools.takewhile(lambda item: item.time_ns < default.time_ns, fastest_first)
    first = next((item for item in faster if _beats(item, default)), None)
    if first is None:
        return Verdict(default, default)
    return Verdict(
        None,
        default,
        reason="no contest was held: some candidates look faster than the default schedule "
        f"({first.time_ns:.0f} against {default.time_ns:.0f} ns), but none was timed side by side with it, so the default "
        "stays; tune again for a contest",
    )


def _beats(item: Standing, default: Standing) -> bool:
    return not item.is_default and item.time_ns * (1 + item.noise) < default.time_ns


def _without_default(tried: bool, fastest_first: Iterable[Standing]) -> Verdict:
    ties: list[Standing] = []
    for item in fastest_first:
        if ties and (not tried or item.time_ns > ties[0].time_ns * (1 + ties[0].noise)):
            break
        ties.append(item)
    if not ties:
        return Verdict(None)
    if tried:
        return Verdict(min(ties, key=lambda item: item.first))
    return Verdict(
        None,
        reason="no contest was held: candidates are stored, but no measurement of the default schedule that they had to beat, so "
        "the default stays; tune again for a contest",
    )
