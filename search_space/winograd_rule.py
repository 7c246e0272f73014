"""The Winograd rule: convolutions with windows of three, by minimal filtering over tiles of 2 or 4 outputs.

Three loop programs: the transform of the data (a padded plane at a time, which stays in the first cache), the products of
every point as tiled matrix products, and the transform back, with what follows the convolution. The first and the last
have little to choose; what is searched is the tile size and the products.
"""

from __future__ import annotations

from tilewright.graph.expr import Load, loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.phases import ACC, Phase, PStage, phases, product_factors, resolve_views
from tilewright.schedules.steps import (
    At,
    Inline,
    Order,
    Parallel,
    Schedule,
    ScheduleError,
    Step,
    Unroll,
    Vectorize,
    Winograd,
)
from tilewright.schedules.steps import Split as SplitStep
from tilewright.schedules.target import Target
from tilewright.schedules.winograd import COLUMNS, DATA, POINTS, ROWS, TILES, TRANSFORMS, WEIGHTED, convolution
from tilewright.search_space.injective_rule import copy_steps
from tilewright.search_space.prologue import Plan, is_padding, plan, worth_threads
from tilewright.search_space.register_tile import spatial_sketch
from tilewright.search_space.roles import Roles
from tilewright.search_space.sketch import Open, Sketch

WIDEST = 16
"""Lanes of a transform: wider vectors of this many values at once only spill."""


def winograd_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with one reduction that is such a convolution; an empty list for any other."""
    p = plan(workload)
    if len(p.reductions) != 1:
        return []
    name = p.reductions[0]
    stage = next(s for s in resolve_views(workload) if s.output == name)
    form = convolution(stage)
    if form is None or not set(_sources(form.weights)) <= {n for n, _, c in workload.inputs if c}:
        return []
    out: list[Sketch] = []
    for tile in TRANSFORMS:
        if all(w.extent >= tile for w in form.windows):
            out += _with_tile(workload, target, p, name, tile, len(form.windows))
    return out


def _sources(e: object) -> list[str]:
    return [load.tensor for load in loads(e)]  # type: ignore[arg-type]


def _with_tile(workload: Workload, target: Target, p: Plan, name: str, tile: int, windows: int) -> list[Sketch]:
    base: list[Step] = [Winograd(name, tile), *p.steps()]
    if p.leader is not None:
        base.append(Inline(name))
    into, back = name + WEIGHTED, name + TILES
    inside = [name + DATA] + ([name + COLUMNS] if windows > 1 else [])
    pads = [r for r in p.roots if is_padding(workload.stages[r])]
    rows = [At(name + ROWS, back, "root")] if windows > 1 else []
    for planes in (pads, []) if pads else ([],):
        trial = [*base, *(At(s, into, "root") for s in (*planes, *inside)), *rows]
        try:
            parts = phases(workload, Schedule(tuple(trial)))
        except ScheduleError:
            continue
        found = {ph.leader.name: ph for ph in parts}
        fixed: list[Step | Open] = []
        try:
            fixed += _data_steps(workload, target, found[into], planes)
            fixed += _result_steps(workload, target, found[back])
        except _Unsuited:
            continue
        for other in parts:
            if other.leader.name not in (into, back, name + POINTS):
                fixed += copy_steps(other.leader, target)
        return _products(workload, target, found[name + POINTS], base, fixed, tile, windows)
    return []


class _Unsuited(Exception):
    """The axes of a phase do not have the order that the loops need."""


def _data_steps(workload: Workload, target: Target, phase: Phase, planes: list[str]) -> list[Step | Open]:
    """The data's transform: for each plane its padding, then for each vector of tiles all points."""
    leader = phase.leader
    points, outer, vector = _split_axes(leader, "p")
    width = min(WIDEST, leader.extents[vector])
    at = f"{vector}.0"
    steps: list[Step | Open] = [SplitStep(leader.name, vector, (width,))]
    steps.append(Order(leader.name, (*(f"{a}.0" for a in (*outer, vector, *points)), f"{vector}.1")))
    steps += [*(Unroll(leader.name, f"{a}.0") for a in points), Vectorize(leader.name, f"{vector}.1")]
    threads = len(outer)
    for s in phase.stages[:-1]:
        own = [a for a, _ in s.axes if a not in leader.extents]
        if s.name in planes:
            shared = [a for a, _ in s.axes if a in leader.extents]
            if not own or shared != outer[: len(shared)] or not shared:
                raise _Unsuited
            threads = min(threads, len(shared))
            across = own[-1]
            steps += [
                At(s.name, leader.name, f"{shared[-1]}.0"),
                SplitStep(s.name, across, (min(2 * target.lanes(s.body.dtype), s.extents[across]),)),
                Vectorize(s.name, f"{across}.1"),
            ]
            continue
        shared_points = [a for a in points if a in s.extents]
        loops = [f"{a}.0" for a in (*own, *shared_points)]
        steps += [At(s.name, leader.name, at), Order(s.name, (*loops, f"{vector}.1"))]
        steps += [Unroll(s.name, f"{a}.0") for a in own]
    if worth_threads(workload, target):
        steps.append(Parallel(leader.name, threads))
    return steps


def _result_steps(workload: Workload, target: Target, phase: Phase) -> list[Step | Open]:
    """The transform back: for each vector of tiles all places of a tile."""
    leader = phase.leader
    places, outer, vector = _split_axes(leader, "s")
    width = min(WIDEST, leader.extents[vector])
    steps: list[Step | Open] = [SplitStep(leader.name, vector, (width,))]
    steps.append(Order(leader.name, (*(f"{a}.0" for a in (*outer, vector, *places)), f"{vector}.1")))
    steps += [*(Unroll(leader.name, f"{a}.0") for a in places), Vectorize(leader.name, f"{vector}.1")]
    for s in phase.stages[:-1]:
        own = [a for a, _ in s.axes if a not in leader.extents]
        shared = [a for a in places if a in s.extents]
        steps += [
            At(s.name, leader.name, f"{vector}.0"),
            Order(s.name, (*(f"{a}.0" for a in (*own, *shared)), f"{vector}.1")),
            *(Unroll(s.name, f"{a}.0") for a in own),
        ]
    if worth_threads(workload, target):
        steps.append(Parallel(leader.name, len(outer) + 1))
    return steps


def _split_axes(leader: PStage, kind: str) -> tuple[list[str], list[str], str]:
    """Axes whose names begin with ``kind``, the others, and the last, which is the vector axis."""
    axes = [a for a, _ in leader.axes]
    chosen = [a for a in axes if a[0] == kind]
    outer = [a for a in axes if a[0] != kind]
    if not chosen or not outer:
        raise _Unsuited
    return chosen, outer[:-1], outer[-1]


def _products(
    workload: Workload,
    target: Target,
    phase: Phase,
    base: list[Step],
    fixed: list[Step | Open],
    tile: int,
    windows: int,
) -> list[Sketch]:
    """The products of each point: rows of weights in registers, vectors along the tiles, or the other way round."""
    if len(phase.stages) != 2 or phase.stages[0].name != phase.leader.name + ACC:
        return []
    anchor, leader = phase.stages
    factors = product_factors(anchor.body)
    data = next((f for f in factors if isinstance(f, Load) and f.tensor.endswith(WEIGHTED)), None)
    packs = tuple(k for k, f in enumerate(factors) if f is not data)
    axes = [a for a, _ in leader.axes]
    if data is None or len(packs) != 1 or not axes:
        return []
    weights = variables(factors[packs[0]])
    vector = axes[-1]
    rows = [a for a in axes if a in weights and a not in variables(data)]
    out: list[Sketch] = []
    choices = [(vector, rows)] if vector not in weights else []
    for v, reused in choices:
        if not reused:
            continue
        main = max(reused, key=lambda a: leader.extents[a])
        others = tuple(a for a in axes if a not in (v, main))
        roles = Roles(leader, anchor, v, (main,), others)
        for order in ("ov", "vo"):
            name = f"winograd{tile}[{'x'.join(['3'] * windows)},v={v},r={main},{order}]"
            out.append(spatial_sketch(name, workload, target, roles, order, packs, base, fixed))
    return out
