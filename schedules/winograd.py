"""Minimal filtering: a convolution with windows of three, computed from tiles of its output (Winograd's algorithm).

``y[x] = sum(d[x + k] * g[k] for k in 3)`` for a tile of ``m`` outputs takes ``m + 2`` products instead of ``3 m``::

    v[p] = sum(B[p, w] * d[w])        u[p] = sum(G[p, k] * g[k])        y[s] = sum(A[s, p] * u[p] * v[p])

along one or two window axes, so that 3x3 windows over 4x4 tiles take a quarter of the products of the direct form. The
products of all tiles are matrix products over the other summed axes, one for each point ``p``. Everything is written as
ordinary stages, so what comes after (inlining, tiles, packing) knows nothing of the algorithm; the transformed weights
are an expression of the weights, which packing evaluates once where they are constant.

Matrices: A. Lavin, S. Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016. Floating-point results differ from
the direct form's: :func:`amplification` bounds by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import Expr, Load, const, select, var
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import loads, rewrite, substitute, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product, product_factors
from tilewright.schedules.steps import Schedule, Winograd, check

Matrix = tuple[tuple[float, ...], ...]
WINDOW = 3
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
LAYOUTS = ("tiles", "channels")
"""What lies side by side in what is stored between the transforms."""
"""Extent of a window axis."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of one tile size: of the data (``B``, transposed), of the weights and of the result (``A``, transposed)."""

    data: Matrix
    weights: Matrix
    result: Matrix


TRANSFORMS: dict[int, Transforms] = {
    2: Transforms(
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: Transforms(
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
"""By the number of outputs of a tile along one axis."""

POINTS, TILES, DATA, COLUMNS, ROWS, WEIGHTED = "_mul", "_out", "_data", "_col", "_row", "_in"
"""Suffixes of the stages made from one: products, tiles of the result, tiles of the data, and the transforms between."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window axis: ``reduce`` is walked together with the spatial axis ``axis`` of ``extent`` elements."""

    axis: str
    reduce: str
    extent: int


@dataclass(frozen=True, slots=True)
class Form:
    """A stage as a convolution: its window axes (one or two), the factor that is walked by windows, as it is at the place
    that the spatial axes name, and the factor that is not."""

    windows: tuple[Window, ...]
    data: Expr
    weights: Expr


@lru_cache(maxsize=128)
def convolution(stage: Stage) -> Form | None:
    """The form of a stage that sums products over windows of three, walked with stride 1; None for any other."""
    if stage.reducer != "sum" or stage.body.dtype not in FLOATS:
        return None
    factors = product_factors(stage.body)
    moving = [f for f in factors if loads(f) and _walked(f, stage)]
    if not moving:
        return None
    data = product(moving)
    windows: list[Window] = []
    for axis, k in _walked(data, stage):
        if all(w.axis != axis and w.reduce != k for w in windows):
            windows.append(Window(axis, k, stage.extents[axis]))
            data = _at_place(data, axis, k)
    weights = [f for f in factors if f not in moving]
    taken = {w.axis for w in windows} | {w.reduce for w in windows}
    if not weights or len(windows) > 2 or any(variables(f) & {w.axis for w in windows} for f in weights):
        return None
    if any(w.reduce in variables(data) for w in windows):
        return None
    summed = [a for a, e in stage.reduce if e > 1 and a not in taken]
    return Form(tuple(windows), data, product(weights)) if summed else None


def _walked(e: Expr, stage: Stage) -> list[tuple[str, str]]:
    """Pairs of a spatial and a reduction axis of extent three that ``e`` depends on by their sum only."""
    used = variables(e)
    out = []
    for k, extent in stage.reduce:
        if extent != WINDOW or k not in used:
            continue
        out += [(a, k) for a, n in stage.axes if a in used and n > 1 and k not in variables(_at_place(e, a, k))]
    return out


def _at_place(e: Expr, axis: str, reduce: str) -> Expr:
    """``e`` with ``axis + reduce`` named ``axis``."""
    moved = substitute(e, {axis: var(axis) - var(reduce)})

    def rule(n: Expr) -> Expr | None:
        if n.dtype != "int64":
            return None
        a = affine(n)
        return a.expr() if a is not None else None

    return rewrite(moved, rule)


def expand(stages: list[Stage], step: Winograd) -> list[Stage]:
    """The stages with the one that ``step`` names replaced by the stages of the algorithm; the last has its name and axes.
    Raises ScheduleError where the stage is no such convolution."""
    check(step.tile in TRANSFORMS, f"{step}: expected a tile of {', '.join(map(str, TRANSFORMS))}; got {step.tile}")
    check(step.layout in LAYOUTS, f"{step}: expected a layout of {', '.join(LAYOUTS)}; got {step.layout!r}")
    found = next((s for s in stages if s.output == step.stage), None)
    check(found is not None, f"{step}: expected a stage of {[s.output for s in stages]}")
    assert found is not None
    form = convolution(found)
    check(
        form is not None,
        f"{step}: expected a sum of products over one or two window axes of extent {WINDOW} walked with stride 1, and over "
        "at least one other axis",
    )
    assert form is not None
    out: list[Stage] = []
    for s in stages:
        out += _stages(s, form, step.tile, step.layout == "channels") if s is found else [s]
    return out


def _stages(stage: Stage, form: Form, tile: int, channels: bool) -> list[Stage]:
    t = TRANSFORMS[tile]
    size = tile + WINDOW - 1
    windows = form.windows
    count = {w.axis: -(-w.extent // tile) for w in windows}
    taken = {w.axis for w in windows} | {w.reduce for w in windows}
    spatial = [(a, e) for a, e in stage.axes if a not in taken]
    summed = [(a, e) for a, e in stage.reduce if a not in taken]
    tiles = [(f"q{n}", count[w.axis]) for n, w in enumerate(windows)]
    places = [(f"w{n}", size) for n in range(len(windows))]
    points = [(f"p{n}", size) for n in range(len(windows))]
    inside = [(f"s{n}", tile) for n in range(len(windows))]
    data_axes = [(a, e) for a, e in spatial + summed if a in variables(form.data)]
    read = [*tiles, *data_axes] if channels else [*data_axes, *tiles]
    written = [*tiles, *spatial] if channels else [*spatial, *tiles]
    made: list[Stage] = []

    def stage_of(suffix: str, axes: list[tuple[str, int]], body: Expr) -> Stage:
        made.append(Stage(stage.output + suffix, tuple(axes), body, origin=stage.origin))
        return made[-1]

    def element(s: Stage, values: dict[str, Expr]) -> Expr:
        return Load(s.body.dtype, s.output, tuple(values.get(a, var(a)) for a, _ in s.axes))

    body = form.data
    for n, w in enumerate(windows):
        place = var(f"q{n}") * tile + var(f"w{n}")
        body = substitute(body, {w.axis: place})
        if w.extent % tile:
            body = select(place.lt(w.extent + WINDOW - 1), body, 0.0)
    last = stage_of(DATA, [*places, *read], body)
    for n in range(len(windows)):  # one axis after the other: w0, then w1
        axes = [*points[: n + 1], *places[n + 1 :], *read]
        terms = [element(last, {f"w{n}": const(k, "int64")}) for k in range(size)]
        suffix = WEIGHTED if n == len(windows) - 1 else COLUMNS
        last = stage_of(suffix, axes, _combined(var(f"p{n}"), t.data, terms))
    weights = form.weights
    for n, w in enumerate(windows):
        terms = [substitute(weights, {w.reduce: const(k, "int64")}) for k in range(WINDOW)]
        weights = _weighted(var(f"p{n}"), t.weights, terms)
    product_stage = Stage(
        stage.output + POINTS,
        (*points, *written),
        weights * element(last, {}),
        tuple(summed),
        "sum",
        origin=stage.origin,
    )
    made.append(product_stage)
    last = product_stage
    for n in range(len(windows)):
        suffix = TILES if n == len(windows) - 1 else ROWS
        between = [*inside[: n + 1], *points[n + 1 :]]
        axes = [*tiles, *between, *spatial] if channels else [*spatial, *between, *tiles]
        terms = [element(last, {f"p{n}": const(k, "int64")}) for k in range(size)]
        last = stage_of(suffix, axes, _combined(var(f"s{n}"), t.result, terms))
    values: dict[str, Expr] = {}
    for n, w in enumerate(windows):
        values |= {f"s{n}": var(w.axis) % tile, f"q{n}": var(w.axis) // tile}
    made.append(replace(stage, body=element(last, values), reduce=(), reducer=None))
    return made


def _combined(which: Expr, matrix: Matrix, terms: Sequence[Expr]) -> Expr:
    """``sum(matrix[which, k] * terms[k])``, a choice by ``which`` that leaves no code where it is known."""
    rows = [_row(r, terms) for r in matrix]
    out = rows[-1]
    for k in range(len(rows) - 2, -1, -1):
        out = select(which.eq(k), rows[k], out)
    return out


def _weighted(which: Expr, matrix: Matrix, terms: Sequence[Expr]) -> Expr:
    """As :func:`_combined`, with the choice among the coefficients: short code where ``which`` is a loop that stays one."""
    out: Expr | None = None
    for k, term in enumerate(terms):
        coefficient: Expr = const(matrix[-1][k], term.dtype)
        for n in range(len(matrix) - 2, -1, -1):
            coefficient = select(which.eq(n), matrix[n][k], coefficient)
        out = term * coefficient if out is None else out + term * coefficient
    assert out is not None
    return out


def _row(coefficients: Sequence[float], terms: Sequence[Expr]) -> Expr:
    """A sum of multiples, those by 1 first, without products by 1 and sums with 0."""
    used = sorted(((c, t) for c, t in zip(coefficients, terms, strict=True) if c), key=lambda x: (x[0] < 0, abs(x[0])))
    out: Expr | None = None
    for c, t in used:
        value = t if abs(c) == 1 else t * abs(c)
        if out is None:
            out = value if c > 0 else -value
        else:
            out = out + value if c > 0 else out - value
    assert out is not None
    return out


def amplification(schedule: Schedule) -> float:
    """By how much the algorithms of a schedule may magnify the rounding errors of the direct form: 1 without any.

    The largest sum of the magnitudes that pass through one output of a tile, over that of the direct form; a bound for
    every input; errors seen are far smaller.
    """
    out = 1.0
    for step in schedule.steps:
        if isinstance(step, Winograd):
            out = max(out, _magnified(TRANSFORMS[step.tile]) ** 2)
    return out


def error_bound(workload: Workload, schedule: Schedule) -> float | None:
    """The largest error of an element of a sum, over the sum of the magnitudes of its terms, where an algorithm of the schedule
    magnifies the direct form's; None where none does. For any input, in the workload's floating-point type."""
    magnified = amplification(schedule)
    if magnified == 1.0:
        return None
    stages = [
        workload.stages[s.stage] for s in schedule.steps if isinstance(s, Winograd) and s.stage in workload.stages
    ]
    terms = max(math.prod(e for _, e in s.reduce) for s in stages)
    return magnified * terms * max(EPSILON[s.body.dtype] for s in stages) / 2


def _magnified(t: Transforms) -> float:
    through = [sum(abs(c) for c in g) * sum(abs(c) for c in b) for g, b in zip(t.weights, t.data, strict=True)]
    return max(sum(abs(c) * v for c, v in zip(row, through, strict=True)) for row in t.result) / WINDOW
