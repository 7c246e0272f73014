"""The rows rule: several reductions over shared outer axes (softmax, layer normalisation), one row at a time.

All stages are computed inside the loop over rows, so a row is read from memory once and stays in the first-level cache. Either
the reduced axis is the vector axis (several accumulators), or, where another axis is contiguous, a strip of rows is.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Var
from tilewright.graph.traverse import loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import (
    At,
    Inline,
    InPlace,
    Order,
    Parallel,
    Schedule,
    ScheduleError,
    Spread,
    Step,
    Stream,
    Unroll,
    Vectorize,
)
from tilewright.schedules.target import Target
from tilewright.search_space.injective_rule import copy_steps, may_stream
from tilewright.search_space.prologue import plan, worth_threads
from tilewright.search_space.sketch import Ahead, Open, Param, Sketch

EXTREMES = 4
"""Accumulators of a maximum or minimum."""


def rows_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with several reductions that share rows, or one reduction read back over its own axis; an empty
    list for any other."""
    p = plan(workload)
    if p.leader is None or not p.reductions:
        return []
    out: list[Sketch] = []
    for keep in _kept(workload, p.inlined, p.roots, p.leader):
        inlined = [s for s in (*p.inlined, *p.roots) if s not in keep]
        order = list(workload.stages)
        base: list[Step] = [Inline(s) for s in order if s in inlined]
        attached = [s for s in order if s in p.reductions or s in keep]
        steps: list[Step] = [*base, *(At(s, p.leader, "root") for s in attached)]
        try:
            parts = phases(workload, Schedule(tuple(steps)))
        except ScheduleError:
            continue
        if len(parts[-1].stages) < 2:
            continue
        extra: list[Step | Open] = []
        for other in parts[:-1]:
            extra += copy_steps(other.leader, target)
        label = "+".join(keep) or "-"
        out += _by_columns(workload, target, parts[-1], base, extra, label)
        out += _by_rows(workload, target, parts[-1], base, extra, label)
    return out


def _kept(workload: Workload, inlined: tuple[str, ...], roots: tuple[str, ...], leader: str) -> list[tuple[str, ...]]:
    """Intermediate rows to store instead of recomputing: none, or those with maths that are read twice."""
    from tilewright.search_space.prologue import is_cheap, readers

    read = readers(workload)
    stages = workload.stages
    candidates = tuple(s for s in (*inlined, *roots) if len(read[s]) > 1 and not is_cheap(stages[s]))
    return [(), candidates] if candidates else [()]


def _shared(phase: Phase) -> list[str]:
    """Leader axes that every stage of the phase walks and none reduces: the rows."""
    return [a for a, _ in phase.leader.axes if all(a in dict(s.axes) for s in phase.stages)]


def _in_place(workload: Workload, phase: Phase) -> list[Step]:
    """Store a row where the output will be, if there is one that fits: less to keep in the first cache."""
    leader = phase.leader
    for s in phase.stages[:-1]:
        reads = [e for e in loads(leader.body) if e.tensor == s.name]
        fits = (dict(s.axes), s.body.dtype) == (dict(leader.axes), leader.body.dtype) and s.reducer is None
        if fits and leader.name == workload.output and all(isinstance(i, Var) for e in reads for i in e.index):
            return [InPlace(s.name)]
    return []


def _by_columns(
    workload: Workload, target: Target, phase: Phase, base: list[Step], extra: list[Step | Open], label: str
) -> list[Sketch]:
    """Vector along the reduced axis."""
    leader = phase.leader
    rows = _shared(phase)
    columns = [a for a, _ in leader.axes if a not in rows]
    if rows and not columns:
        return _to_scalars(workload, target, phase, base, extra, label)
    if not rows or not columns or leader.axes[-1][0] != columns[-1]:
        return []
    lanes = target.lanes(leader.body.dtype)
    extent = leader.extents[columns[-1]]
    if extent < lanes:
        return []
    widths = tuple(w for w in (lanes, 2 * lanes, 4 * lanes) if w <= extent)
    params = [
        Param("v", widths, "width of the vector loop of the last pass"),
        Param("s", tuple(s for s in (1, 2, 4, 8) if s * lanes <= extent), "independent accumulators"),
    ]
    last = columns[-1]
    template: list[Step | Open] = [*base, *extra, Open(leader.name, last, ("v",))]
    at = f"{rows[-1]}.0"
    order = [*(f"{a}.0" for a in rows), *(f"{a}.0" for a in columns), f"{last}.1"]
    template += [
        Order(leader.name, tuple(order)),
        *([Parallel(leader.name, len(rows))] if worth_threads(workload, target) else []),
        Vectorize(leader.name, f"{last}.1"),
    ]
    for s in phase.stages[:-1]:
        template.append(At(s.name, leader.name, at))
        template += _producer_steps(s, rows, lanes)
    preferred = {"v": widths[min(1, len(widths) - 1)], "s": params[1].values[min(2, len(params[1].values) - 1)]}
    forms: list[tuple[str, list[Step]]] = [("", _in_place(workload, phase))]
    if leader.name == workload.output and may_stream(workload, target):
        forms.append((",stream", [Stream(leader.name)]))
    out = []
    for form, last_steps in forms:
        ahead, distance = _fetched(workload, target, phase, at, bool(form))
        name = f"rows[v=column,keep={label}{form}]"
        wanted = {**preferred, **{p.name: p.values[-1] for p in distance}}
        steps = (*template, *last_steps, *ahead)
        out.append(Sketch(name, workload, target, steps, (*params, *distance), (), leader.name, wanted))
    return out


def _fetched(
    workload: Workload, target: Target, phase: Phase, loop: str, stream: bool
) -> tuple[list[Open], list[Param]]:
    """Fetch the next row while this one is computed: the first pass over a row has to wait for it, later passes that read it
    again do not, and have time to ask for the next. Nothing where the second cache holds all tensors, or where the first
    does not hold two rows; then a row that passes by all caches is fetched by the last pass, which waits least."""
    rows = set(_shared(phase))
    readers: dict[str, list[PStage]] = {}
    for s in phase.stages:
        for load in loads(s.body):
            if load.tensor not in phase.local and variables(load) - rows and loop.rsplit(".", 1)[0] in variables(load):
                readers.setdefault(load.tensor, []).append(s)
    again = [stages for stages in readers.values() if len(stages) > 1]
    if not again or workload.min_bytes <= target.l2_bytes:
        return [], []
    stages = max(again, key=len)
    row = sum(
        prod(e for a, e in x[0].extents.items() if a not in rows) * SIZES[x[0].body.dtype] for x in readers.values()
    )
    if 2 * row < target.l1d_bytes:
        stage = next((s for s in reversed(stages[1:]) if s is not phase.leader), stages[-1])
    elif stream and 4 * row <= target.l2_bytes:
        stage = stages[-1]
    else:
        return [], []
    return [Ahead(stage.name, loop, ("d",))], [Param("d", (0, 1), "rows fetched ahead")]


def _to_scalars(
    workload: Workload, target: Target, phase: Phase, base: list[Step], extra: list[Step | Open], label: str
) -> list[Sketch]:
    """Several reductions of a row to one number (the logarithm of a sum of exponentials): vector along the reduced axis."""
    leader = phase.leader
    rows = [a for a, _ in leader.axes]
    ends = [s.reduce[-1] for s in phase.stages if s.reduce]
    lanes = target.lanes(leader.body.dtype)
    contiguous = any(
        (a := affine(load.index[0])) is not None and any(a.coefficient(v) == 1 for v, _ in ends)
        for s in phase.stages
        for load in loads(s.body)
        if load.tensor not in phase.local
    )
    if len(ends) < 2 or not contiguous or min(e for _, e in ends) < lanes:
        return []
    extent = min(e for _, e in ends)
    params = [
        Param(
            "v",
            tuple(w for w in (lanes, 2 * lanes, 4 * lanes) if w <= extent),
            "width of the vector loop of a stored row",
        ),
        Param("s", tuple(s for s in (1, 2, 4, 8) if s * lanes <= extent), "independent accumulators"),
    ]
    template: list[Step | Open] = [*base, *extra]
    template += [Parallel(leader.name, len(rows))] if worth_threads(workload, target) else []
    for s in phase.stages[:-1]:
        template += [At(s.name, leader.name, f"{rows[-1]}.0"), *_producer_steps(s, rows, lanes)]
    preferred = {"v": params[0].values[-1], "s": params[1].values[min(2, len(params[1].values) - 1)]}
    name = f"rows[v=reduced,keep={label}]"
    return [Sketch(name, workload, target, tuple(template), tuple(params), (), leader.name, preferred)]


def _producer_steps(s: PStage, rows: list[str], lanes: int) -> list[Step | Open]:
    """Accumulate over lanes and ``s`` separate vectors; an injective row is simply vectorised."""
    if s.reducer is None:
        own = [a for a, _ in s.axes if a not in rows]
        if not own:
            return []
        steps: list[Step | Open] = [Open(s.name, own[-1], ("v",)), Vectorize(s.name, f"{own[-1]}.1")]
        return steps
    reduced = [a for a, _ in s.reduce]
    if not reduced:
        return []
    last = reduced[-1]
    own = [f"{a}.0" for a, _ in s.axes if a not in rows]
    # maxima wait for each other for one cycle, not for three as sums do, and with few of them NaN costs less
    few = s.reducer in ("max", "min") and s.extents[last] >= EXTREMES * lanes
    return [
        Open(s.name, last, (EXTREMES * lanes if few else f"s*{lanes}", lanes)),
        Order(s.name, (*own, *(f"{a}.0" for a in reduced), f"{last}.1", f"{last}.2")),
        Unroll(s.name, f"{last}.1"),
        Spread(s.name, f"{last}.1"),
        Vectorize(s.name, f"{last}.2"),
    ]


def _by_rows(
    workload: Workload, target: Target, phase: Phase, base: list[Step], extra: list[Step | Open], label: str
) -> list[Sketch]:
    """Vector along a row axis that is contiguous in memory: a strip of rows at once."""
    leader = phase.leader
    rows = _shared(phase)
    if not rows or leader.axes[-1][0] != rows[-1]:
        return []
    strip = rows[-1]
    if not any(
        (a := affine(load.index[0])) is not None and a.coefficient(strip) == 1
        for s in phase.stages
        for load in loads(s.body)
        if load.tensor not in phase.local
    ):
        return []
    lanes = target.lanes(leader.body.dtype)
    extent = leader.extents[strip]
    widths = tuple(w for w in (lanes, 2 * lanes, 4 * lanes) if w <= extent) or (extent,)
    params = [Param("v", widths, "rows in a strip")]
    columns = [a for a, _ in leader.axes if a not in rows]
    outer = [*(f"{a}.0" for a in rows[:-1]), f"{strip}.0"]
    template: list[Step | Open] = [
        *base,
        *extra,
        Open(leader.name, strip, ("v",)),
        Order(leader.name, (*outer, *(f"{a}.0" for a in columns), f"{strip}.1")),
        *([Parallel(leader.name, len(outer))] if worth_threads(workload, target) else []),
        Vectorize(leader.name, f"{strip}.1"),
    ]
    for s in phase.stages[:-1]:
        own = [a for a, _ in s.axes if a not in rows]
        loops = [*(f"{a}.0" for a in own), *(f"{a}.0" for a, _ in s.reduce), f"{strip}.1"]
        template += [At(s.name, leader.name, f"{strip}.0"), Order(s.name, tuple(loops))]
    return [
        Sketch(
            f"rows[v=strip,keep={label}]",
            workload,
            target,
            tuple(template),
            tuple(params),
            (),
            leader.name,
            {"v": widths[min(1, len(widths) - 1)]},
        )
    ]
