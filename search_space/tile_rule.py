"""The tile rule: a reduction with reuse (contractions, convolutions, pools, sums), computed in register tiles.

It looks at how each factor of the summed product is walked: an axis that a factor does not depend on is an axis of reuse.
Each spatial axis that can be the vector axis, and the last reduction axis, gives sketches; the other axis with most reuse is
repeated in registers; tiles are blocked for the cache; constant factors are packed once in the order they are read. Others are
packed, if at all, by all threads before the loops, or by each thread in panels: a block of vectors at a time, in its own cache.
"""

from __future__ import annotations

from functools import partial

from tilewright.graph.workload import Workload
from tilewright.schedules.phase import ACC, Phase
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import At, Schedule, ScheduleError, Step
from tilewright.schedules.target import Target
from tilewright.search_space.dot_rule import column_sketches, dot_sketches, stream_sketches
from tilewright.search_space.injective_rule import copy_steps
from tilewright.search_space.prologue import Plan, is_padding, plan
from tilewright.search_space.register_tile import spatial_sketch
from tilewright.search_space.roles import pack_choices, panel_factors, roles_of
from tilewright.search_space.sketch import Open, Sketch
from tilewright.search_space.staged_rule import staged_sketches
from tilewright.search_space.window_rule import window_sketches


def tile_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with exactly one reduction; an empty list for any other."""
    out: list[Sketch] = []
    plans = [plan(workload)]
    if (other := plan(workload, inline_padding=True)) != plans[0]:
        plans.append(other)
    for p in plans:
        if len(p.reductions) != 1:
            return []
        base = [*p.steps()]
        anchor = p.reductions[0]
        if p.leader is not None:
            base.append(At(anchor, p.leader, "tile"))
        try:
            parts = phases(workload, Schedule(tuple(base)))
        except ScheduleError:
            # the epilogue does not walk the reduction in step (a transposing one): keep the reduction a phase of its own
            base = [*p.steps()]
            try:
                parts = phases(workload, Schedule(tuple(base)))
            except ScheduleError:
                continue
        if p is plans[0]:
            out += window_sketches(workload, target, p, base)
        out += _in_blocks(workload, target, p)
        phase = next(ph for ph in parts if any(s.reducer is not None or s.name.endswith(ACC) for s in ph.stages))
        others = [ph for ph in parts if ph is not phase]
        out += sketches_of_phase(workload, target, phase, others, base, ",pad=inline" if p is not plans[0] else "")
    return out


def _in_blocks(workload: Workload, target: Target, p: Plan) -> list[Sketch]:
    """Staged sketches in which padding is computed for a block of rows at a time, by the thread that reads it."""
    pads = [r for r in p.roots if is_padding(workload.stages[r])]
    if not pads or pads != list(p.roots):
        return []
    anchor = p.reductions[0]
    leader = p.leader or anchor
    base = [*p.steps(), *(At(pad, leader, "tile") for pad in pads)]
    if p.leader is not None:
        base.append(At(anchor, p.leader, "tile"))
    try:
        parts = phases(workload, Schedule(tuple(base)))
    except ScheduleError:  # the reduction is a program of its own, or does not walk the padding in step
        return []
    phase = parts[-1]
    if len(parts) > 1 or len(phase.stages) != len(pads) + 2:
        return []
    summed, last = phase.stages[-2:]
    if {a for a, _ in last.axes} != {a for a, _ in summed.axes}:
        return []
    return staged_sketches(workload, target, phase, base, [])


def sketches_of_phase(
    workload: Workload, target: Target, phase: Phase, rest: list[Phase], base: list[Step], suffix: str = ""
) -> list[Sketch]:
    """Sketches of the reduction in ``phase``; the phases in ``rest``, if they are of one stage, get fixed steps, and ``base`` has what
    decides that these are the phases."""
    if len(phase.stages) != 2:
        return []
    anchor, leader = phase.stages
    if {a for a, _ in leader.axes} != {a for a, _ in anchor.axes}:
        return []  # the leader reads the reduction back over more axes: that is a matter of rows
    extra: list[Step | Open] = []
    for other in rest:
        if len(other.stages) == 1:
            extra += copy_steps(other.leader, target)
    constants = {n for n, _, c in workload.inputs if c}
    staged = staged_sketches(workload, target, phase, base, extra)
    out: list[Sketch] = []
    for roles in roles_of(anchor, leader, target):
        if staged and roles.vector != leader.axes[-1][0]:
            continue  # the staged form has the same tile, and writes it out in the order of the output
        for order in ("ov", "vo") if len(roles.tiled) == 1 and not suffix else ("ov",):
            for packs in pack_choices(anchor, roles, constants):
                pack = "".join(map(str, packs)) or "-"
                name = f"tile[v={roles.vector},r={'+'.join(roles.tiled) or '-'},{order},pack={pack}{suffix}]"
                sketch = partial(spatial_sketch, whole=bool(suffix))
                out.append(sketch(name, workload, target, roles, order, packs, base, extra))
                if panels := panel_factors(anchor, roles, packs, constants):
                    name = name.replace(f"pack={pack}", f"pack={pack},panel")
                    out.append(sketch(name, workload, target, roles, order, packs, base, extra, panels=panels))
    for rule in (dot_sketches, stream_sketches, column_sketches):
        out += rule(workload, target, anchor, leader, base, extra)
    return out + (staged if not suffix else [])
