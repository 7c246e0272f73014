"""Search strategies: which candidates to measure next. All share one protocol, ask and tell, and one contract test suite.

``ranked`` is ours: the whole space is ranked, and the best predicted candidates are taken with some exploration and diversity.
``random`` and ``exhaustive`` are baselines; ``optuna`` is the tree-structured Parzen estimator of Optuna, through its own ask and
tell. A strategy proposes each candidate at most once, and with the same seed the same candidates, in another process too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.schedules.steps import Schedule
from tilewright.search_space.sketch import Ints, Points, Sketch, enumerate_points
from tilewright.search_space.space import Space

Rank = Callable[[Sketch, Ints], NDArray[np.float64]]
"""Predicted nanoseconds of candidates (rows of a sketch)."""


@dataclass(frozen=True)
class Candidate:
    """One point of the space."""

    sketch: Sketch
    values: tuple[int, ...]

    @property
    def params(self) -> dict[str, int]:
        """Parameter values by name."""
        return {p.name: v for p, v in zip(self.sketch.params, self.values, strict=True)}

    @property
    def schedule(self) -> Schedule:
        """The concrete schedule."""
        return self.sketch.schedule(self.params)

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Identity within a space."""
        return self.sketch.name, self.values


def preferred(space: Space) -> list[Candidate]:
    """The sensible candidate of each sketch (the legal point nearest to what its rule prefers); sketches without a legal point are
    left out."""
    return [c for s in space.sketches if (c := _preferred(s)) is not None]


def _preferred(sketch: Sketch) -> Candidate | None:
    wanted = np.asarray([[sketch.preferred[p.name] for p in sketch.params]], dtype=np.int64).reshape(
        1, len(sketch.params)
    )
    if not legal(sketch, wanted)[0]:
        rows = enumerate_points(sketch, 2_000).rows
        if not len(rows):
            return None
        distance = np.abs(np.log2(rows) - np.log2(wanted)).sum(axis=1)
        wanted = rows[[int(np.argmin(distance))]]
    return Candidate(sketch, tuple(int(x) for x in wanted[0]))


def legal(sketch: Sketch, rows: Ints) -> NDArray[np.bool_]:
    """Which rows satisfy every constraint of the sketch."""
    ok = np.ones(len(rows), dtype=np.bool_)
    for c in sketch.constraints:
        ok &= c.holds(sketch.columns(rows))
    return ok


class Strategy(Protocol):
    """Proposes candidates and learns from their times."""

    def ask(self, count: int) -> list[Candidate]:
        """Up to ``count`` candidates not proposed before; an empty list when the space is used up."""
        ...

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        """The measured time of a candidate (proposed here or not); infinity for a failure."""
        ...


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """Settings shared by the strategies, in one place."""

    seed: int = 0
    points_per_space: int = 60_000
    """How many points of a space are ranked; larger spaces are sampled evenly over their sketches."""
    shortlist: int = 3_000
    """How many of the best by the first ranking are ranked again in later rounds."""
    explore: float = 0.15
    """Share of each batch taken at random from the better part of the shortlist, far from what was measured."""
    stuck: int = 16
    explore_stuck: float = 0.4
    """That share after so many measurements without a new best."""
    per_sketch: float = 0.5
    """Largest share of a batch from one sketch."""
    spread: int = 24
    """Until so many are measured, candidates that resemble measured ones wait: the best by a ranking that has learnt nothing yet
    differ in what hardly matters, and are wrong together."""


def _enumerate(space: Space, config: SearchConfig) -> list[Points]:
    limit = max(200, config.points_per_space // len(space.sketches))
    return [enumerate_points(s, limit, config.seed) for s in space.sketches]


class RankedStrategy:
    """Rank everything, measure the best predicted ones. ``rank`` is called again in every round, so it may learn between."""

    def __init__(self, space: Space, rank: Rank, config: SearchConfig | None = None, first: Rank | None = None) -> None:
        self._config = config or SearchConfig()
        self._rank = rank
        self._rng = np.random.default_rng(self._config.seed)
        self._done: set[tuple[str, tuple[int, ...]]] = set()
        self._best: tuple[float, Candidate] | None = None
        self._since_best = 0
        self._sketches = space.sketches
        self._pool = self._shortlist(_enumerate(space, self._config), first or rank)

    def _shortlist(self, points: list[Points], rank: Rank) -> dict[int, Ints]:
        """The best rows of every sketch by a first ranking, and a few random ones."""
        scores, owner, index = [], [], []
        for k, p in enumerate(points):
            if len(p.rows):
                scores.append(np.asarray(rank(p.sketch, p.rows), dtype=np.float64))
                owner.append(np.full(len(p.rows), k))
                index.append(np.arange(len(p.rows)))
        if not scores:
            return {}
        score, own, idx = np.concatenate(scores), np.concatenate(owner), np.concatenate(index)
        order = np.argsort(score, kind="stable")
        keep = order[: self._config.shortlist]
        rest = order[self._config.shortlist :]
        if len(rest):
            keep = np.concatenate(
                [keep, self._rng.choice(rest, min(len(rest), self._config.shortlist // 6), replace=False)]
            )
        return {int(k): points[int(k)].rows[np.sort(idx[keep][own[keep] == k])] for k in np.unique(own[keep])}

    def ask(self, count: int) -> list[Candidate]:
        pool: list[tuple[float, int, tuple[int, ...]]] = []
        for k, rows in self._pool.items():
            fresh = [tuple(int(x) for x in r) for r in rows]
            keep = [i for i, r in enumerate(fresh) if (self._sketches[k].name, r) not in self._done]
            if keep:
                scores = np.asarray(self._rank(self._sketches[k], rows[keep]), dtype=np.float64)
                pool += [(float(s), k, fresh[i]) for s, i in zip(scores, keep, strict=True)]
        pool.sort()
        chosen: list[Candidate] = []
        taken: dict[int, int] = {}
        stuck = self._since_best >= self._config.stuck
        explore = round(count * (self._config.explore_stuck if stuck else self._config.explore))
        most = max(1, int(np.ceil(count * self._config.per_sketch)))
        crowd = _Crowd(self._done)
        early = len(self._done) < self._config.spread
        waiting: list[Candidate] = []
        for _, k, values in pool:
            if len(chosen) >= count - explore:
                break
            if taken.get(k, 0) >= most:
                continue
            candidate = Candidate(self._sketches[k], values)
            if early and crowd.holds(candidate):
                waiting.append(candidate)
                continue
            crowd.add(candidate.key)
            chosen.append(candidate)
            taken[k] = taken.get(k, 0) + 1
        chosen += waiting[: max(0, count - explore - len(chosen))]
        picked = {c.key for c in chosen}
        left = [Candidate(self._sketches[k], v) for _, k, v in pool if (self._sketches[k].name, v) not in picked]
        head = left[: max(count, len(left) // 4)]
        near: list[Candidate] = []
        while head and len(chosen) < count:
            candidate = head.pop(int(self._rng.integers(0, len(head))))
            if crowd.holds(candidate):
                near.append(candidate)
                continue
            crowd.add(candidate.key)
            chosen.append(candidate)
        chosen += near[: count - len(chosen)]
        self._done |= {c.key for c in chosen}
        return chosen

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        self._done.add(candidate.key)
        self._since_best += 1
        if self._best is None or time_ns < self._best[0]:
            self._best, self._since_best = (time_ns, candidate), 0
            self._add_neighbours(candidate)

    def _add_neighbours(self, best: Candidate) -> None:
        """Neighbours of the best candidate, one parameter changed by one value, in case the sample missed them."""
        sketch = best.sketch
        k = next((k for k, s in enumerate(self._sketches) if s is sketch or s.name == sketch.name), None)
        if k is None or not sketch.params:
            return
        rows: list[tuple[int, ...]] = []
        for n, p in enumerate(sketch.params):
            at = p.values.index(best.values[n]) if best.values[n] in p.values else -1
            for m in (at - 1, at + 1):
                if at >= 0 and 0 <= m < len(p.values):
                    rows.append((*best.values[:n], p.values[m], *best.values[n + 1 :]))
        if not rows:
            return
        near = np.asarray(rows, dtype=np.int64)
        ok = legal(sketch, near)
        have = self._pool.get(k, np.zeros((0, len(sketch.params)), dtype=np.int64))
        self._pool[k] = np.unique(np.concatenate([have, near[ok]]), axis=0)


class _Crowd:
    """Candidates, to ask whether another one resembles one of them: the same sketch, and at most a third of the parameters
    differ."""

    def __init__(self, keys: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        self._rows: dict[str, list[tuple[int, ...]]] = {}
        for key in keys:
            self.add(key)

    def add(self, key: tuple[str, tuple[int, ...]]) -> None:
        """Put one in."""
        self._rows.setdefault(key[0], []).append(key[1])

    def holds(self, candidate: Candidate) -> bool:
        """Whether one of them resembles it."""
        name, values = candidate.key
        return any(
            sum(a != b for a, b in zip(values, row, strict=True)) <= len(values) // 3
            for row in self._rows.get(name, ())
        )


class RandomStrategy:
    """Uniform over the legal points, each sketch weighted by its number of points; without replacement."""

    def __init__(self, space: Space, config: SearchConfig | None = None) -> None:
        config = config or SearchConfig()
        rng = np.random.default_rng(config.seed)
        flat = [(p.sketch, tuple(int(x) for x in r)) for p in _enumerate(space, config) for r in p.rows]
        self._order = [flat[int(i)] for i in rng.permutation(len(flat))]
        self._told: set[tuple[str, tuple[int, ...]]] = set()

    def ask(self, count: int) -> list[Candidate]:
        out: list[Candidate] = []
        while self._order and len(out) < count:
            sketch, values = self._order.pop()
            if (sketch.name, values) not in self._told:
                out.append(Candidate(sketch, values))
        return out

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        self._told.add(candidate.key)


class ExhaustiveStrategy:
    """Every legal point, in order of the sketches."""

    def __init__(self, space: Space, config: SearchConfig | None = None) -> None:
        del config
        self._left = [
            Candidate(p.sketch, tuple(int(x) for x in r))
            for p in (enumerate_points(s, limit=1 << 22) for s in space.sketches)
            for r in p.rows
        ][::-1]
        self._told: set[tuple[str, tuple[int, ...]]] = set()

    def ask(self, count: int) -> list[Candidate]:
        out: list[Candidate] = []
        while self._left and len(out) < count:
            c = self._left.pop()
            if c.key not in self._told:
                out.append(c)
        return out

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        self._told.add(candidate.key)


class OptunaStrategy:
    """Optuna's TPE over a conditional space: the sketch first, then its parameters. Illegal and repeated draws are told as
    pruned, with a bound on how many are drawn in a row."""

    def __init__(self, space: Space, config: SearchConfig | None = None) -> None:
        import optuna

        config = config or SearchConfig()
        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=config.seed, multivariate=True, group=True)
        self.study = optuna.create_study(direction="minimize", sampler=sampler)
        self._sketches: Mapping[str, Sketch] = {s.name: s for s in space.sketches}
        self._open: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._done: set[tuple[str, tuple[int, ...]]] = set()

    def ask(self, count: int) -> list[Candidate]:
        out: list[Candidate] = []
        tries = 0
        while len(out) < count and tries < 25 * count:
            tries += 1
            trial = self.study.ask()
            sketch = self._sketches[trial.suggest_categorical("sketch", list(self._sketches))]
            values = tuple(
                int(trial.suggest_categorical(f"{sketch.name}/{p.name}", list(p.values))) for p in sketch.params
            )
            candidate = Candidate(sketch, values)
            row = np.asarray([values], dtype=np.int64).reshape(1, len(values))
            if not legal(sketch, row)[0] or candidate.key in self._done:
                self.study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
                continue
            self._done.add(candidate.key)
            self._open[candidate.key] = trial
            out.append(candidate)
        return out

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        self._done.add(candidate.key)
        trial = self._open.pop(candidate.key, None)
        if trial is None:
            return
        if np.isfinite(time_ns):
            self.study.tell(trial, time_ns)
        else:
            self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)


STRATEGIES = ("ranked", "random", "exhaustive", "optuna")


def make_strategy(
    name: str, space: Space, rank: Rank, config: SearchConfig | None = None, first: Rank | None = None
) -> Strategy:
    """A strategy by name. Raises ValueError naming the known ones."""
    if name == "ranked":
        return RankedStrategy(space, rank, config, first)
    simple: Mapping[str, Callable[[Space, SearchConfig | None], Strategy]] = {
        "random": RandomStrategy,
        "exhaustive": ExhaustiveStrategy,
        "optuna": OptunaStrategy,
    }
    if name not in simple:
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}; got {name!r}")
    return simple[name](space, config)


def names(candidates: Sequence[Candidate]) -> list[str]:
    """Sketch names, for reports."""
    return [c.sketch.name for c in candidates]
