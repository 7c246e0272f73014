"""The ``ranked`` strategy: the space is ranked, and the best predicted candidates are measured, with some exploration and
diversity."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilewright.search_space.candidate import Candidate, legal
from tilewright.search_space.sketch import Ints, Points
from tilewright.search_space.space import Space
from tilewright.search_space.strategy import Rank, SearchConfig, enumerate_space


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
        self._pool = self._shortlist(enumerate_space(space, self._config), first or rank)

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
        """The best predicted ones, and a share from further down the ranking."""
        pool = self._ranked()
        stuck = self._since_best >= self._config.stuck
        explore = round(count * (self._config.explore_stuck if stuck else self._config.explore))
        crowd = _Crowd(self._done)
        chosen = self._best_of(pool, count - explore, count, crowd)
        chosen += self._explored(pool, chosen, count, crowd)
        self._done |= {c.key for c in chosen}
        return chosen

    def _ranked(self) -> list[Candidate]:
        """What was not proposed yet, the best predicted first."""
        pool: list[tuple[float, int, tuple[int, ...]]] = []
        for k, rows in self._pool.items():
            fresh = [tuple(int(x) for x in r) for r in rows]
            keep = [i for i, r in enumerate(fresh) if (self._sketches[k].name, r) not in self._done]
            if keep:
                scores = np.asarray(self._rank(self._sketches[k], rows[keep]), dtype=np.float64)
                pool += [(float(s), k, fresh[i]) for s, i in zip(scores, keep, strict=True)]
        pool.sort()
        return [Candidate(self._sketches[k], values) for _, k, values in pool]

    def _best_of(self, pool: list[Candidate], wanted: int, count: int, crowd: _Crowd) -> list[Candidate]:
        """The first ``wanted`` of the pool, but not too many from one sketch of a batch of ``count``; in the beginning none that
        resembles another while there are others."""
        chosen: list[Candidate] = []
        waiting: list[Candidate] = []
        taken: dict[str, int] = {}
        most = max(1, int(np.ceil(count * self._config.per_sketch)))
        early = len(self._done) < self._config.spread
        for candidate in pool:
            if len(chosen) >= wanted:
                break
            name = candidate.sketch.name
            if taken.get(name, 0) >= most:
                continue
            if early and crowd.holds(candidate):
                waiting.append(candidate)
                continue
            crowd.add(candidate.key)
            chosen.append(candidate)
            taken[name] = taken.get(name, 0) + 1
        return chosen + waiting[: max(0, wanted - len(chosen))]

    def _explored(self, pool: list[Candidate], chosen: list[Candidate], count: int, crowd: _Crowd) -> list[Candidate]:
        """As many as are missing from a batch of ``count``, at random from the front of what is left; those that resemble another
        only where there are no others."""
        picked = {c.key for c in chosen}
        left = [c for c in pool if c.key not in picked]
        head = left[: max(count, len(left) // 4)]
        out: list[Candidate] = []
        near: list[Candidate] = []
        while head and len(chosen) + len(out) < count:
            candidate = head.pop(int(self._rng.integers(0, len(head))))
            if crowd.holds(candidate):
                near.append(candidate)
                continue
            crowd.add(candidate.key)
            out.append(candidate)
        return out + near[: count - len(chosen) - len(out)]

    def tell(self, candidate: Candidate, time_ns: float) -> None:
        """Neighbours of a new best candidate join the shortlist."""
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
