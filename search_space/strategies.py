"""Search strategies by name: which candidates to measure next.

``ranked`` is ours (:mod:`~tilewright.search_space.ranked`); ``random`` and ``exhaustive`` are baselines; ``optuna`` is the
tree-structured Parzen estimator of Optuna, through its own ask and tell.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.search_space.candidate import Candidate, legal
from tilewright.search_space.ranked import RankedStrategy
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.search_space.space import Space
from tilewright.search_space.strategy import Rank, SearchConfig, Strategy, enumerate_space


class RandomStrategy:
    """Uniform over the legal points, each sketch weighted by its number of points; without replacement."""

    def __init__(self, space: Space, config: SearchConfig | None = None) -> None:
        config = config or SearchConfig()
        rng = np.random.default_rng(config.seed)
        flat = [(p.sketch, tuple(int(x) for x in r)) for p in enumerate_space(space, config) for r in p.rows]
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
