"""Footprints and traffic of one access through the cache levels, on arrays of candidates.

Each level keeps the outermost depth whose working set fits. Rows that start a power of two apart share few
sets of a cache, and take as much of it as if they were that much larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.schedules.loops import STATIC
from tilewright.schedules.target import Target
from tilewright.search_space.access import Access, touched
from tilewright.search_space.model import LoopModel

WAYS = 8
"""Associativity assumed of the first two cache levels."""
FITS = 0.75
"""Share of a cache that a working set may take."""
PAGE = 4096
OPEN_PLACES = 64
"""Places of memory from which can be gone on: the rows that its banks keep open."""


@dataclass(frozen=True, slots=True)
class Foot:
    """Footprint of one access in bytes: whole lines, what they occupy of each cache level, and what is used
    of them."""

    moved: Any
    occupied: tuple[Any, Any, Any]
    used: Any
    pages: Any


def footprint(a: Access, span: Mapping[str, Any], target: Target) -> Foot:
    """What an access touches while each axis ``x`` covers ``span[x]`` values."""
    line = target.line_bytes
    used = a.footprint(span) * a.nbytes
    if a.packed or not a.dims:
        return Foot(used, (used, used, used), used, np.maximum(used / PAGE, 1.0))
    moved = a.lines(span, line) * line
    if len(a.dims) < 2:
        return Foot(moved, (moved, moved, moved), used, np.maximum(used / PAGE, 1.0))
    rows: Any = 1.0
    pages: Any = 1.0
    walks: list[tuple[float, Any]] = []
    stride = float(a.nbytes)
    for k in range(len(a.dims) - 1, -1, -1):
        size, terms = a.dims[k]
        if terms and k < len(a.dims) - 1:
            extent = np.minimum(touched(terms, span), size)
            rows = rows * extent
            pages = pages * (extent if stride >= PAGE else np.maximum(extent * stride / PAGE, 1.0))
            walks.append((stride * (terms[0][1] if len(terms) == 1 else 1) / line, extent))
        stride *= size
    lines = moved / line
    first = moved * _crowding(walks, lines, rows, WAYS, target.l1d_bytes // (line * WAYS))
    second = moved * _crowding(walks, lines, rows, FITS * WAYS, target.l2_bytes // (line * WAYS))
    return Foot(moved, (first, second, moved), used, pages)


def _crowding(walks: list[tuple[float, Any]], lines: Any, rows: Any, ways: float, sets: int) -> Any:
    """By how much rows that start a fixed number of lines apart crowd into few sets of a cache: 1 if they
    spread or fit."""
    if all(step < 1 or math.gcd(round(step), sets or 1) == 1 for step, _ in walks):
        return 1.0
    spread = np.maximum(lines / np.maximum(rows, 1.0), 1.0)
    for step, extent in walks:
        nearest = max(round(step), 1)
        drift = np.abs(step - nearest) * extent  # lines by which the last row is away from where whole steps would be
        few = np.minimum(extent, sets // math.gcd(nearest, sets) + drift)
        spread = spread * (few if step >= 1 else extent)
    spread = np.minimum(spread, max(sets, 1))
    return np.where(lines > ways * spread, max(sets, 1) / spread, 1.0)


def traffic(
    feet: list[Foot],
    level: int,
    fits: list[NDArray[np.bool_]],
    outside: list[Any],
    touched: Any,
    store: bool,
) -> tuple[Any, Any]:
    """Bytes fetched, and those that miss because they crowd: the footprint one loop further out than what
    fits, once for each iteration of the loops outside that.

    ``fits[d]`` tells whether everything inside the first ``d`` loops fits. Where not even the innermost
    tile does, each of its memory operations fetches a line of its own.
    """
    deep = len(feet) - 1
    out = np.maximum(feet[deep].moved, touched) * outside[deep]
    crowded = [f.occupied[level] is not f.moved for f in feet]
    part = np.where(feet[max(deep - 1, 0)].occupied[level] > feet[max(deep - 1, 0)].moved, out, 0.0)
    for d in range(deep, 0, -1):
        bytes_ = feet[d - 1].moved * outside[d - 1]
        keeps = fits[d]
        if crowded[d - 1]:
            share = 1.0 - feet[d - 1].moved / np.maximum(feet[d - 1].occupied[level], 1.0)
            if d == deep and store and level == 0:  # in a crowded set of L1 not even the lines of one tile stay
                keeps = keeps & (share <= 0.0)
            part = np.where(keeps, np.minimum(bytes_, out) * share, part)
        out = np.where(keeps, np.minimum(bytes_, out), out)
    return np.where(fits[0], feet[0].moved, out), np.where(fits[0], 0.0, part)


def run_bytes(a: Access, loops: Sequence[LoopModel], most: int) -> Any:
    """Bytes that are touched one after the other. Loops from the inside out lengthen a run where they go on from its end; others, and
    those whose place is looked up, go to further places, and of more than ``most`` none goes on where it was left."""
    if a.packed or not a.dims:
        return float(a.total * a.nbytes)
    walked = [lp for lp in loops if lp.axis in a.axes()]
    inner = sorted((lp for lp in walked if lp.kind in STATIC), key=lambda lp: (abs(a.stride(lp.axis)), -lp.level))
    run: Any = 1.0
    places: Any = 1.0
    for lp in [*inner, *(lp for lp in reversed(walked) if lp.kind not in STATIC)]:
        step = a.total if lp.axis in a.looked_up else abs(a.stride(lp.axis)) * lp.cover
        longer = (step <= run) & (places <= most)
        places = np.where(step <= run, places, places * np.maximum(lp.trips, 1.0))
        run = np.where(longer, np.maximum(run, run + step * (lp.trips - 1.0)), run)
    return np.minimum(run, float(a.total)) * a.nbytes
