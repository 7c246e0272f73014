"""A small space of which every point is measured, and the table of outcomes that searches are replayed from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import common
from tilewright.measure import LocalRunner, Outcome, ReplayRunner, Request
from tilewright.search_space.candidate import Candidate
from tilewright.search_space.sketch import Param, Sketch, enumerate_points
from tilewright.search_space.space import Space
from tilewright.tasks import default_candidate

FORMAT = 1


class TableError(ValueError):
    """A table of measurements that cannot be used."""


def thinned(whole: Space, limit: int) -> Space:
    """The space with values of parameters left out, evenly, until it has at most ``limit`` legal points; what the
    default schedule uses stays. Raises ValueError if that is not possible."""
    sketches = list(whole.sketches)
    counts = [len(enumerate_points(s).rows) for s in sketches]
    while sum(counts) > limit:
        order = sorted(range(len(sketches)), key=lambda k: -counts[k])
        cut = next(((k, c) for k in order if (c := _fewer(sketches[k])) is not None), None)
        if cut is None:
            raise ValueError(f"limit: expected at least the {sum(counts)} points that cannot be left out; got {limit}")
        k, sketch = cut
        sketches[k], counts[k] = sketch, len(enumerate_points(sketch).rows)
    return Space(whole.workload, whole.target, tuple(s for s, n in zip(sketches, counts, strict=True) if n))


def _fewer(sketch: Sketch) -> Sketch | None:
    """Without half of the values of the parameter that has most."""
    k = max(range(len(sketch.params)), key=lambda n: len(sketch.params[n].values), default=-1)
    if k < 0 or len(sketch.params[k].values) < 2:
        return None
    p = sketch.params[k]
    keep = sketch.preferred.get(p.name, p.values[0])
    start = p.values.index(keep) % 2 if keep in p.values else 0
    params = list(sketch.params)
    params[k] = Param(p.name, p.values[start::2], p.reason)
    return replace(sketch, params=tuple(params))


def points(of: Space) -> list[Candidate]:
    """The default, which need not be among the values that are searched, and every legal point."""
    found = [default_candidate(of)]
    found += [Candidate(s, tuple(int(v) for v in row)) for s in of.sketches for row in enumerate_points(s).rows]
    return list({str(c.schedule): c for c in found}.values())


def request(candidate: Candidate) -> Request:
    """What is measured."""
    target = candidate.sketch.target.to_json()
    return Request(candidate.sketch.workload.text, str(candidate.schedule), target)


@dataclass(frozen=True)
class Table:
    """Every point of a space with its outcome."""

    space: Space
    outcomes: dict[str, Outcome]
    """By printed schedule."""

    @property
    def best_ns(self) -> float:
        """The best time there is."""
        return min(o.median_ns for o in self.outcomes.values() if o.median_ns is not None)

    def runner(self) -> ReplayRunner:
        """A device that answers from the table."""
        return ReplayRunner({(self.space.workload.hash, s): o for s, o in self.outcomes.items()})

    def save(self, path: Path) -> None:
        """Write it down."""
        data = {
            "format": FORMAT,
            "workload": self.space.workload.text,
            "target": self.space.target.fingerprint(),
            "outcomes": [{"schedule": s, "outcome": o.to_dict()} for s, o in self.outcomes.items()],
        }
        common.write_json(path, data)


def read(path: Path, of: Space) -> dict[str, Outcome]:
    """The outcomes in a table, which need not be complete. Raises TableError for a table of something else."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["workload"] != of.workload.text:
            raise TableError(f"{path}: expected a table of {of.workload.describe()}; it is of something else")
        return {str(o["schedule"]): Outcome.from_dict(o["outcome"]) for o in data["outcomes"]}
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise TableError(f"{path}: expected a table written by this program ({error!r})") from error


def load(path: Path, of: Space) -> Table:
    """Read a table. Raises TableError unless it holds every point of the space."""
    outcomes = read(path, of)
    wanted = [str(c.schedule) for c in points(of)]
    missing = sum(s not in outcomes for s in wanted)
    if missing:
        raise TableError(
            f"{path}: {missing} of {len(wanted)} points are missing: it was made with another limit, target or "
            "version, or not to its end; run again to measure them"
        )
    return Table(of, {s: outcomes[s] for s in wanted})


def measure(of: Space, known: Mapping[str, Outcome], seconds: float = math.inf) -> Table:
    """Measure every point that is not known yet, whatever it takes, or as many as the seconds allow (so that a table can be
    measured in pieces)."""
    start = time.monotonic()
    candidates = points(of)
    outcomes = {s: known[s] for c in candidates if (s := str(c.schedule)) in known}
    with LocalRunner(of.target) as runner:
        runner.preflight()
        for k, c in enumerate(candidates):
            text = str(c.schedule)
            if text not in outcomes:
                if time.monotonic() - start > seconds:
                    break
                outcomes[text] = runner.measure_one(request(c), again=True)
                if k % 50 == 0:
                    common.say(f"{k} of {len(candidates)} points measured")
    return Table(of, outcomes)
