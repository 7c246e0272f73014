"""The Winograd rule: convolutions with windows of three, by minimal filtering over tiles of 2 or 4 outputs.

Loop programs: the transform of the data, the products of every point as tiled matrix products, and the transform back with what
follows the convolution, tile by tile. Where the tiles do not divide the output, the transform back stores its tiles, and what follows
is a program of its own. What is searched is the tile size, the products, and what lies side by side between the transforms:

- *tiles*: vectors along a row of tiles; a plane of the data is padded where it is transformed, and stays in the first cache;
- *channels*: vectors along the channels, whatever the size of the planes; pixels are transposed in registers on the way in
  and out.
"""

from __future__ import annotations

from tilewright.graph.expr import Load, Op, Var
from tilewright.graph.traverse import loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.divide import INNER, OUTER
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import ACC, Phase, PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.rewrites import inline, resolve_views
from tilewright.schedules.steps import (
    At,
    Divide,
    Inline,
    Order,
    Parallel,
    Schedule,
    ScheduleError,
    Split,
    Step,
    Unroll,
    Vectorize,
    Winograd,
)
from tilewright.schedules.target import Target
from tilewright.schedules.winograd import (
    COLUMNS,
    DATA,
    LAYOUTS,
    POINTS,
    ROWS,
    TILES,
    TRANSFORMS,
    WEIGHTED,
    convolution,
    expand,
)
from tilewright.search_space.injective_rule import copy_steps, row_steps
from tilewright.search_space.prologue import Plan, is_padding, plan, worth_threads
from tilewright.search_space.register_tile import spatial_sketch
from tilewright.search_space.roles import Roles
from tilewright.search_space.sketch import Open, Sketch

WIDEST = 16
"""Lanes of a transform along tiles: wider vectors of this many values at once only spill."""
ACROSS = 8
"""Pixels of a row that are transposed together."""
Steps = list[Step | Open]


def winograd_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with one reduction that is such a convolution; an empty list for any other."""
    p = plan(workload)
    if len(p.reductions) != 1:
        return []
    name = p.reductions[0]
    stage = next(s for s in resolve_views(workload) if s.output == name)
    form = convolution(stage)
    constants = {n for n, _, c in workload.inputs if c}
    if form is None or not {load.tensor for load in loads(form.weights)} <= constants:
        return []
    out: list[Sketch] = []
    for tile in TRANSFORMS:
        for layout in LAYOUTS:
            if all(w.extent >= tile for w in form.windows):
                out += _Rule(workload, target, p, Winograd(name, tile, layout), len(form.windows)).sketches()
    return out


class _Unsuited(Exception):
    """The axes of a phase do not have the order that the loops need."""


class _Rule:
    """The sketches of one tile size and layout."""

    def __init__(self, workload: Workload, target: Target, p: Plan, step: Winograd, windows: int) -> None:
        self.workload = workload
        self.target = target
        self.plan = p
        self.step = step
        self.windows = windows
        self.channels = step.layout == "channels"
        self.threads = worth_threads(workload, target)

    def sketches(self) -> list[Sketch]:
        """The sketches; none where the loop programs do not have the form that the loops need."""
        name, p = self.step.stage, self.plan
        base: list[Step] = [self.step, *p.steps()]
        if p.leader is not None:
            base.append(Inline(name))
        into, back = name + WEIGHTED, name + TILES
        inside = [name + DATA] + ([name + COLUMNS] if self.windows > 1 else [])
        pads = [r for r in p.roots if is_padding(self.workload.stages[r])]
        places = [(planes, joined) for joined in self._joined() for planes in ((pads, []) if pads else ([],))]
        for planes, joined in places:
            last = self.workload.output if joined else back
            rows = [At(name + ROWS, last, "root")] if self.windows > 1 else []
            rows += [At(back, last, "root")] if joined else []
            ats = [At(s, into, "root") for s in (*planes, *inside)]
            try:
                parts = phases(self.workload, Schedule((*base, *joined, *ats, *rows)))
                found = {ph.leader.name: ph for ph in parts}
                fixed = self._data(found[into], planes)
                fixed += self._written(found[last], joined) if joined else self._result(found[last])
                for other in parts:
                    if other.leader.name not in (into, last, name + POINTS):
                        fixed += self._copy(other.leader)
            except (ScheduleError, _Unsuited):
                continue
            return self._products(found[name + POINTS], [*base, *joined], fixed)
        return []

    def _joined(self) -> list[tuple[Divide, ...]]:
        """The steps with which the output is walked tile by tile, where tiles divide it, and none: then tiles are stored."""
        stages = expand(resolve_views(self.workload), self.step)
        inlined = [*self.plan.inlined, *([self.step.stage] if self.plan.leader is not None else [])]
        last = next(s for s in inline(stages, inlined, self.workload) if s.output == self.workload.output)
        axes = [a for a, _ in last.axes]
        tiles = {
            i.args[0].name: None
            for load in loads(last.body)
            if load.tensor == self.step.stage + TILES
            for i in load.index
            if isinstance(i, Op) and i.kind == "floordiv" and isinstance(i.args[0], Var)
        }
        if len(tiles) != self.windows or any(last.extents[a] % self.step.tile for a in tiles):
            return [()]
        return [tuple(Divide(last.output, a, self.step.tile) for a in axes if a in tiles), ()]

    def _data(self, phase: Phase, planes: list[str]) -> Steps:
        """The data's transform: all points of one vector of tiles or channels."""
        leader = phase.leader
        points, outer, vector = _split_axes(leader, "p")
        width = self.target.lanes(leader.body.dtype) if self.channels else WIDEST
        around = [*outer, vector]
        if self.channels:  # one vector of channels goes along a row of tiles
            around = [*outer[:-1], vector, outer[-1]]
        steps: Steps = [Split(leader.name, vector, (min(width, leader.extents[vector]),))]
        steps.append(Order(leader.name, (*(f"{a}.0" for a in (*around, *points)), f"{vector}.1")))
        steps += [*(Unroll(leader.name, f"{a}.0") for a in points), Vectorize(leader.name, f"{vector}.1")]
        parallel = len(around) - 1
        for s in phase.stages[:-1]:
            own = [a for a, _ in s.axes if a not in leader.extents]
            if s.name in planes:
                steps += self._plane(s, leader, outer, vector, width)
                if not self.channels:
                    parallel = min(parallel, len(s.axes) - len(own))
                continue
            loops = [f"{a}.0" for a in (*own, *(a for a in points if a in s.extents))]
            steps += [At(s.name, leader.name, f"{around[-1]}.0"), Order(s.name, (*loops, f"{vector}.1"))]
            steps += [Unroll(s.name, f"{a}.0") for a in own]
        return [*steps, Parallel(leader.name, parallel)] if self.threads else steps

    def _plane(self, s: PStage, leader: PStage, outer: list[str], vector: str, lanes: int) -> Steps:
        """The padded data, in vectors along its rows: a whole plane, or for one vector of channels what a row of tiles reads."""
        own = [a for a, _ in s.axes if a not in leader.extents]
        shared = [a for a, _ in s.axes if a in leader.extents]
        if not own or not shared or s.axes[-1][0] != own[-1]:
            raise _Unsuited
        steps = row_steps(s, self.target)
        if not self.channels:
            if shared != outer[: len(shared)]:
                raise _Unsuited
            return [At(s.name, leader.name, f"{shared[-1]}.0"), *steps]
        if shared[-1] != vector or len(own) < self.windows:
            raise _Unsuited
        lanes = min(lanes, leader.extents[vector])
        # the channels are a vector of the leader, and here a loop
        return [At(s.name, leader.name, f"{vector}.0"), Split(s.name, vector, (lanes, 1)), *steps]

    def _result(self, phase: Phase) -> Steps:
        """The transform back: all places of a tile, one vector of tiles or channels."""
        leader = phase.leader
        places, outer, vector = _split_axes(leader, "s")
        width = self.target.lanes(leader.body.dtype) if self.channels else WIDEST
        steps: Steps = [Split(leader.name, vector, (min(width, leader.extents[vector]),))]
        steps.append(Order(leader.name, (*(f"{a}.0" for a in (*outer, vector, *places)), f"{vector}.1")))
        steps += [*(Unroll(leader.name, f"{a}.0") for a in places), Vectorize(leader.name, f"{vector}.1")]
        for s in phase.stages[:-1]:
            own = [a for a, _ in s.axes if a not in leader.extents]
            loops = [f"{a}.0" for a in (*own, *(a for a in places if a in s.extents))]
            steps += [At(s.name, leader.name, f"{vector}.0"), Order(s.name, (*loops, f"{vector}.1"))]
            steps += [Unroll(s.name, f"{a}.0") for a in own]
        return [*steps, Parallel(leader.name, len(outer) + 1)] if self.threads else steps

    def _written(self, phase: Phase, joined: tuple[Divide, ...]) -> Steps:
        """The transform back at the output: a few tiles of a row and one vector of channels, or one vector of tiles, which are
        transposed in registers on their way to rows of pixels."""
        leader = phase.leader
        around, places = [s.axis + OUTER for s in joined], [s.axis + INNER for s in joined]
        outer = [a for a, _ in leader.axes if a not in (*around, *places)]
        if len(phase.stages) != self.windows + 1 or not {*around, *places} <= set(leader.extents):
            raise _Unsuited
        row = around[-1]
        rows = [f"{a}.0" for a in places]
        steps: Steps = []
        width = self.target.lanes(leader.body.dtype)
        if self.channels:
            if not outer:
                raise _Unsuited
            vector, beside = outer[-1], min(ACROSS // self.step.tile, leader.extents[row])
            loops = [f"{a}.0" for a in (*outer[:-1], *around[:-1], vector, row)]
            if (
                leader.extents[row] % beside == 0 or leader.extents[vector] % width == 0
            ):  # four bodies would be much code
                steps.append(Split(leader.name, row, (beside,)))
                rows.insert(-1, f"{row}.1")
        else:
            if leader.extents[row] < width:  # stored tiles are one row for all of them
                raise _Unsuited
            vector = row
            loops = [f"{a}.0" for a in (*outer, *around)]
        lane = f"{vector}.1"
        steps.append(Split(leader.name, vector, (min(width, leader.extents[vector]),)))
        steps.append(Order(leader.name, (*loops, *rows, lane)))
        steps += [*(Unroll(leader.name, lp) for lp in rows), Vectorize(leader.name, lane)]
        inner = [lp for lp in (f"{row}.1", *(f"{a}.0" for a in places)) if lp in rows]
        for s in phase.stages[:-1]:
            own = [f"{a}.0" for a, _ in s.axes if a not in leader.extents]
            at = rows[0] if not own and len(places) > 1 else loops[-1]  # one row of a tile after the other
            mine = [lp for lp in inner if lp.rsplit(".", 1)[0] in s.extents and lp != at]
            steps += [At(s.name, leader.name, at), Order(s.name, (*own, *mine, lane))]
            steps += [Unroll(s.name, lp) for lp in own]
        return [*steps, Parallel(leader.name, len(loops) - 1)] if self.threads else steps

    def _copy(self, leader: PStage) -> Steps:
        """What is not searched: padded copies, and the output. With channels side by side the output reads vectors of
        channels and writes rows of pixels."""
        if not self.channels or leader.name != self.workload.output or len(leader.axes) < 1 + self.windows:
            return copy_steps(leader, self.target)
        names = [a for a, _ in leader.axes]
        channel, row = names[-1 - self.windows], names[-1]
        lanes = min(self.target.lanes(leader.body.dtype), leader.extents[channel])
        steps: Steps = [
            Split(leader.name, channel, (lanes,)),
            Split(leader.name, row, (min(ACROSS, leader.extents[row]),)),
        ]
        around = [f"{a}.0" for a in names]
        steps.append(Order(leader.name, (*around, f"{row}.1", f"{channel}.1")))
        steps += [Unroll(leader.name, f"{row}.1"), Vectorize(leader.name, f"{channel}.1")]
        return [*steps, Parallel(leader.name, len(around) - 1)] if self.threads else steps

    def _products(self, phase: Phase, base: list[Step], fixed: Steps) -> list[Sketch]:
        """The products of each point: what lies side by side is the vector, the other of tiles and channels is repeated in
        registers."""
        if len(phase.stages) != 2 or phase.stages[0].name != phase.leader.name + ACC:
            return []
        anchor, leader = phase.stages
        factors = product_factors(anchor.body)
        data = next((f for f in factors if isinstance(f, Load) and f.tensor.endswith(WEIGHTED)), None)
        packs = tuple(k for k, f in enumerate(factors) if f is not data)
        axes = [a for a, _ in leader.axes]
        if data is None or len(packs) != 1 or not axes:
            return []
        v = axes[-1]
        sides: list[set[str]] = [variables(factors[packs[0]]), variables(data)]
        if self.channels:
            sides.reverse()
        repeated = [a for a in axes if a in sides[0] and a not in sides[1]]
        if v in sides[0] or not repeated:
            return []
        main = max(repeated, key=lambda a: leader.extents[a])
        roles = Roles(leader, anchor, v, (main,), tuple(a for a in axes if a not in (v, main)))
        window = "x".join(["3"] * self.windows)
        out = []
        for order in ("ov", "vo"):
            for first in (False, True) if self.channels and self.threads else (False,):
                name = f"winograd{self.step.tile}[{window},{self.step.layout},{order}{',by=tiles' if first else ''}]"
                rest = (name, self.workload, self.target, roles, order, packs, base, fixed)
                out.append(spatial_sketch(*rest, first=first))
        return out


def _split_axes(leader: PStage, kind: str) -> tuple[list[str], list[str], str]:
    """Axes whose names begin with ``kind``, the others, and the last, which is the vector axis."""
    axes = [a for a, _ in leader.axes]
    chosen = [a for a in axes if a[0] == kind]
    rest = [a for a in axes if a[0] != kind]
    if not chosen or len(rest) < 2:
        raise _Unsuited
    return chosen, rest[:-1], rest[-1]
