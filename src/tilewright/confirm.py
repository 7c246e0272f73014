"""The last part of a run: the leaders of each task against its default, in one sitting.

The best of many measurements taken once is too often a lucky sample of an ordinary candidate, and times of different sittings
differ by more than the gain that is looked for. So what decides is a contest: the default, the default once more, and the
leaders are timed in interleaved rounds, and the ratios are stored with the default's record (`Record.compared`), where the
look-up finds them. Nothing else replaces the default, so every task that was searched gets a contest if a candidate may beat the
default, and the search leaves the measurements and the time for them (`Session.room`).

The margin by which a candidate must beat the default is its difference from itself in the contest, and what that may be expected
to be: at first by the A/A test before the run, and the more contests were held, by theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.measure import Outcome, paired
from tilewright.measure.request import Runner
from tilewright.search_space.candidate import Candidate
from tilewright.searches import UNSURE, Search, identity, why_stale
from tilewright.session import LEAST_CONTEST, Session
from tilewright.tuning_logs import Hit, Miss

LEADERS = 3
"""Candidates of a contest besides the default."""
CONTESTS = 3
"""Contests of a task: the later ones are for those that lead once the luck of the first ones is known."""
LARGEST_MARGIN = 0.08
"""Of the A/A noise of a run no more than this counts: interleaved rounds are hurt less by what other programs do."""
ASSUMED = 4
"""Contests that the A/A test before the run counts as."""
CLOSE = 1.03
"""Once a contest was held: a candidate this many times slower than the default, by times of different sittings, may still be
faster. (Before that, :data:`UNSURE` times.)"""


def confirm(session: Session, runner: Runner) -> None:
    """Hold contests, in the order of what the tasks gained, as far as the budget goes. The first contest of a task that was
    searched in this run is held even where the time is used up: without it the search was for nothing."""
    waiting = sorted(
        (s for s in session.searches if s.measured or s.open),
        key=lambda s: s.task.weight * (s.progress.best_ns - s.progress.default_ns),
    )
    for again in range(CONTESTS):
        for k, search in enumerate(waiting):
            failed = search.progress.default_ns == float("inf")
            if failed and again:
                continue
            answer = session.answer(search)
            owed = isinstance(answer, Miss) and not failed and search.searched > 0 and not again
            later = sum(s.open for s in waiting[k + 1 :]) if not again else 0
            trials = session.trials_left() - LEAST_CONTEST * later
            if (session.left() <= 0 and not owed) or trials < LEAST_CONTEST:
                continue
            found = leaders(session, search, isinstance(answer, Hit) and answer.contested)
            if found:
                _contest(session, runner, search, found, trials, _room(session, len(waiting) - k))


def leaders(session: Session, search: Search, contested: bool) -> list[Candidate]:
    """The fastest candidates of the store that nothing is known of but their own times, and that may beat the default and all
    those of which more is known."""
    w = search.task.workload
    found: list[Candidate] = []
    limit = float("inf")
    for hit in session.store.top(w.hash, session.fingerprint, session.policy_text, n=8 * LEADERS):
        if hit.time_ns > limit or len(found) == LEADERS:
            break
        is_default = hit.record.schedule == search.default_schedule
        if hit.settled or is_default:
            limit = min(limit, hit.time_ns * ((CLOSE if contested else UNSURE) if is_default else 1.0))
            continue
        why = why_stale(w, hit.record.schedule)
        if why:
            session.retire(search, hit.record, why)
            continue
        found.append(search.candidate(hit.record) or search.outsider(hit.record))
    return found


def _room(session: Session, tasks: int) -> float:
    """Seconds for the rounds of a contest, so that all tasks may have one."""
    return min(1.0, max(0.05, 0.5 * session.left() / tasks))


def _contest(
    session: Session, runner: Runner, search: Search, found: list[Candidate], trials: int, seconds: float
) -> None:
    defaults = [search.default] * min(2, trials - 1)
    if search.progress.default_ns == float("inf"):
        defaults = []  # it fails: the leaders are compared with each other, and count by their medians
    contestants = defaults + found[: max(1, trials - len(defaults))]
    outcomes = runner.contest([session.request(search, c) for c in contestants], seconds=seconds)
    compared = _compared(session, search, contestants, outcomes, len(defaults)) if defaults else None
    session.keep(search, list(zip(contestants, outcomes, strict=True)), "confirm", compared)
    search.rival_ns = float("inf")


def _compared(
    session: Session, search: Search, contestants: Sequence[Candidate], outcomes: Sequence[Outcome], defaults: int
) -> dict[str, dict[str, float]]:
    """What a contest says of each candidate against the default, which comes first, ``defaults`` times."""
    default, rest = outcomes[0], zip(contestants[1:], outcomes[1:], strict=True)
    own = 0.0
    if defaults > 1 and comparable(default, outcomes[1]):
        own = abs(paired(default.samples_ns, outcomes[1].samples_ns).ratio - 1)
        session.drifts.append(own)
    margin = max(own, expected_margin(session.noise, session.drifts))
    compared: dict[str, dict[str, float]] = {}
    for candidate, outcome in rest:
        if candidate.key != search.default.key and comparable(default, outcome):
            p = paired(default.samples_ns, outcome.samples_ns)
            entry = {"ratio": p.ratio, "low": p.low, "high": p.high, "margin": margin, "rounds": float(p.rounds)}
            compared[identity(candidate)] = entry
    return compared


def expected_margin(noise: float, drifts: Sequence[float]) -> float:
    """By how much the default may be expected to differ from itself in a contest: twice the mean of what it differed by (``drifts``),
    where the A/A test's ``noise``, up to a limit, counts as some contests, and is never exceeded."""
    most = min(noise, LARGEST_MARGIN)
    return min(most, 2 * (ASSUMED * most / 2 + sum(drifts)) / (ASSUMED + len(drifts)))


def comparable(a: Outcome, b: Outcome) -> bool:
    """Whether two outcomes are of the same rounds."""
    return a.ok and b.ok and a.stop_reason == b.stop_reason == "rounds" and len(a.samples_ns) == len(b.samples_ns)
