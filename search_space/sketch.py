"""Sketches: the structure of a schedule with its integers left open.

A sketch is a schedule template: the steps of a schedule, where a tile size may be a product of named parameters instead of a
number. A candidate is one row of an integer array. The same template gives the concrete steps of one candidate and, evaluated on
arrays, the loop extents of a hundred thousand candidates at once (:mod:`tilewright.search_space.model`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.stage import TensorType
from tilewright.graph.workload import Workload
from tilewright.schedules.phase import Phase
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import Prefetch, Schedule, Split, Step
from tilewright.schedules.target import Target

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = Mapping[str, Ints]
"""Parameter values of N candidates by name."""
Size = int | str
"""A tile size: a number, or parameter names joined by ``*``."""


@dataclass(frozen=True, slots=True)
class Param:
    """A named integer with the values it may take."""

    name: str
    values: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Open:
    """A ``split`` whose sizes are open: ``Open('t0', 'i1', ('m*mb', 'm'))``."""

    stage: str
    axis: str
    sizes: tuple[Size, ...]

    def close(self, values: Mapping[str, int]) -> Step | None:
        """The concrete step; None where there is none for these values."""
        return Split(self.stage, self.axis, tuple(int(evaluate(s, values)) for s in self.sizes))


@dataclass(frozen=True, slots=True)
class Ahead(Open):
    """A ``prefetch`` whose distance is open; 0 is none: ``Ahead('t0', 'i1.0', ('d',))``."""

    def close(self, values: Mapping[str, int]) -> Step | None:
        distance = int(evaluate(self.sizes[0], values))
        return Prefetch(self.stage, self.axis, distance) if distance else None


def evaluate(size: Size, values: Mapping[str, Any]) -> Any:
    """A tile size for parameter values (numbers or arrays)."""
    if isinstance(size, int):
        return size
    out: Any = 1
    for word in size.split("*"):
        out = out * (int(word) if word.isdecimal() else values[word])
    return out


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a candidate must satisfy, on arrays: ``holds(columns) -> mask``. Declared beside the space; counts of what each one
    removed are reported."""

    name: str
    reason: str
    holds: Callable[[Columns], Mask]


@dataclass(frozen=True)
class Sketch:
    """A schedule template of one workload on one target."""

    name: str
    workload: Workload
    target: Target
    template: tuple[Step | Open, ...]
    params: tuple[Param, ...]
    constraints: tuple[Constraint, ...] = ()
    main: str = ""
    """The stage that does the work."""
    preferred: Mapping[str, int] = field(default_factory=dict)
    """Parameter values of a sensible candidate, for the default schedule."""

    @property
    def size(self) -> int:
        """Points before constraints."""
        return math.prod(len(p.values) for p in self.params)

    def schedule(self, row: Mapping[str, int]) -> Schedule:
        """The schedule of one candidate."""
        steps = (s.close(row) if isinstance(s, Open) else s for s in self.template)
        return Schedule(tuple(s for s in steps if s is not None))

    @cached_property
    def structure(self) -> list[Phase]:
        """The phases every candidate of the sketch has."""
        return phases(self.workload, Schedule(tuple(s for s in self.template if not isinstance(s, Open))))

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Types of the workload's tensors and of those that only exist between the phases of the sketch."""
        made = {
            p.leader.name: TensorType(tuple(e for _, e in p.leader.axes), p.leader.body.dtype) for p in self.structure
        }
        return {**made, **self.workload.types}

    def columns(self, rows: Ints) -> dict[str, Ints]:
        """Parameter columns of an ``(N, P)`` array."""
        return {p.name: rows[:, k] for k, p in enumerate(self.params)}

    def row(self, values: Ints) -> dict[str, int]:
        """One row as a mapping."""
        return {p.name: int(v) for p, v in zip(self.params, values, strict=True)}


@dataclass(frozen=True)
class Points:
    """The legal candidates of a sketch: ``rows`` is ``(N, P)``; ``removed`` counts what each constraint took away;
    ``sampled`` says that the sketch was too large to enumerate and a seeded sample was taken."""

    sketch: Sketch
    rows: Ints
    removed: Mapping[str, int]
    sampled: bool


def enumerate_points(sketch: Sketch, limit: int = 200_000, seed: int = 0) -> Points:
    """All legal candidates of a sketch, or those of a uniform sample of ``limit`` points where it has more."""
    total = sketch.size
    radices = [len(p.values) for p in sketch.params]
    if total <= limit:
        flat = np.arange(total, dtype=np.int64)
        digits = np.stack(np.unravel_index(flat, radices), axis=1) if radices else np.zeros((1, 0), dtype=np.int64)
    else:
        rng = np.random.default_rng(seed)
        digits = np.stack([rng.integers(0, r, limit) for r in radices], axis=1)
        digits = digits[np.lexsort(digits.T[::-1])]  # sorted and without repeats: np.unique compares rows as bytes
        digits = digits[np.append(True, np.any(digits[1:] != digits[:-1], axis=1))]
    rows = np.empty(digits.shape, dtype=np.int64)
    for k, p in enumerate(sketch.params):
        rows[:, k] = np.asarray(p.values, dtype=np.int64)[digits[:, k]]
    keep = np.ones(len(rows), dtype=np.bool_)
    removed: dict[str, int] = {}
    columns = sketch.columns(rows)
    for c in sketch.constraints:
        ok = c.holds(columns)
        removed[c.name] = int(np.count_nonzero(keep & ~ok))
        keep &= ok
    return Points(sketch, rows[keep], removed, total > limit)
