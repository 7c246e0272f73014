"""Padded planes read by windows: the padded copy of a plane is made inside the loop over planes."""

from __future__ import annotations

from tilewright.graph.workload import Workload
from tilewright.schedules.opening import MAX_LANES
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import At, Schedule, ScheduleError, Step, Vectorize
from tilewright.schedules.target import Target
from tilewright.search_space.prologue import Plan, is_padding
from tilewright.search_space.register_tile import spatial_sketch
from tilewright.search_space.roles import pack_choices, roles_of
from tilewright.search_space.sketch import Open, Sketch

WHOLE = 32
"""Rows of up to so many vectors are copied whole: which of their elements are padding is known when code is written."""


def window_sketches(workload: Workload, target: Target, p: Plan, base: list[Step]) -> list[Sketch]:
    """Padded planes read by windows (depthwise convolutions, pools): the padded copy is made inside the loop over planes, so that it
    stays in the first cache."""
    pads = [r for r in p.roots if is_padding(workload.stages[r])]
    leader_name = p.leader or p.reductions[0]
    if len(pads) != 1 or len(p.roots) != 1:
        return []
    try:
        parts = phases(workload, Schedule((*base, At(pads[0], leader_name, "root"))))
    except ScheduleError:
        return []
    if len(parts) != 1 or len(parts[0].stages) != 3:
        return []
    pad, anchor, leader = parts[0].stages
    own = [a for a, _ in pad.axes if a not in leader.extents]
    if pad.name != pads[0] or len(own) == len(pad.axes) or not own or pad.axes[-1][0] != own[-1]:
        return []
    constants = {n for n, _, c in workload.inputs if c}
    out: list[Sketch] = []
    for roles in roles_of(anchor, leader, target):
        planes = [a for a in roles.others if a in pad.extents]
        if not planes or planes != list(roles.others):
            continue
        lanes = target.lanes(pad.body.dtype)
        row = pad.extents[own[-1]]
        width = row if row <= min(WHOLE * lanes, MAX_LANES) else 2 * lanes
        inside: list[Step | Open] = [
            At(pad.name, leader.name, f"{planes[-1]}.0"),
            Open(pad.name, own[-1], (width,)),
            Vectorize(pad.name, f"{own[-1]}.1"),
        ]
        for packs in pack_choices(anchor, roles, constants):
            name = f"tile[v={roles.vector},r={'+'.join(roles.tiled) or '-'},pad=plane,pack={''.join(map(str, packs)) or '-'}]"
            out.append(spatial_sketch(name, workload, target, roles, "ov", packs, base, inside, planes=True))
    return out
