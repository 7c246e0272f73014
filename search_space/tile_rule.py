"""The tile rule: a reduction with reuse (contractions, convolutions, pools, sums), computed in register tiles.

It looks at how each factor of the summed product is walked: an axis that a factor does not depend on is an axis of reuse.
Each spatial axis that can be the vector axis, and the last reduction axis, gives sketches; the other axis with most reuse is
repeated in registers; tiles are blocked for the cache; constant factors are packed once in the order they are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr, loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.phases import ACC, Phase, PStage, phases, product_factors
from tilewright.schedules.steps import (
    At,
    Order,
    Pack,
    Parallel,
    Schedule,
    ScheduleError,
    Step,
    Unroll,
    Vectorize,
)
from tilewright.schedules.target import Target
from tilewright.search_space.dot_rule import column_sketches, dot_sketches, stream_sketches, strides_of
from tilewright.search_space.injective_rule import copy_steps
from tilewright.search_space.prologue import Plan, is_padding, plan, worth_threads
from tilewright.search_space.sketch import Columns, Constraint, Ints, Mask, Open, Param, Sketch

SMALL_REDUCTION = 7
"""Reduction axes up to this extent (the windows of a convolution) may be unrolled whole."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Which axis is the vector, which are repeated in registers, and the rest."""

    leader: PStage
    anchor: PStage
    vector: str
    tiled: tuple[str, ...]
    others: tuple[str, ...]


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
            out += _windows(workload, target, p, base)
        phase = next(ph for ph in parts if any(s.reducer is not None or s.name.endswith(ACC) for s in ph.stages))
        others = [ph for ph in parts if ph is not phase]
        out += _of_phase(workload, target, phase, others, base, ",pad=inline" if p is not plans[0] else "")
    return out


def _windows(workload: Workload, target: Target, p: Plan, base: list[Step]) -> list[Sketch]:
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
    for roles in _roles(anchor, leader, target):
        planes = [a for a in roles.others if a in pad.extents]
        if not planes or planes != list(roles.others):
            continue
        width = min(2 * target.lanes(pad.body.dtype), pad.extents[own[-1]])
        inside: list[Step | Open] = [
            At(pad.name, leader.name, f"{planes[-1]}.0"),
            Open(pad.name, own[-1], (width,)),
            Vectorize(pad.name, f"{own[-1]}.1"),
        ]
        for packs in _pack_choices(anchor, roles, constants):
            name = f"tile[v={roles.vector},r={'+'.join(roles.tiled) or '-'},pad=plane,pack={''.join(map(str, packs)) or '-'}]"
            out.append(spatial_sketch(name, workload, target, roles, "ov", packs, base, inside, planes=True))
    return out


def _of_phase(
    workload: Workload, target: Target, phase: Phase, rest: list[Phase], base: list[Step], suffix: str
) -> list[Sketch]:
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
    out: list[Sketch] = []
    for roles in _roles(anchor, leader, target):
        for order in ("ov", "vo") if roles.tiled else ("ov",):
            for packs in _pack_choices(anchor, roles, constants):
                name = f"tile[v={roles.vector},r={'+'.join(roles.tiled) or '-'},{order},pack={''.join(map(str, packs)) or '-'}{suffix}]"
                out.append(spatial_sketch(name, workload, target, roles, order, packs, base, extra))
    for rule in (dot_sketches, stream_sketches, column_sketches):
        out += rule(workload, target, anchor, leader, base, extra)
    return out


def _output_stride(leader: PStage, axis: str) -> int:
    inner = 1
    for a, e in reversed(leader.axes):
        if a == axis:
            return inner
        inner *= e
    return 0


def _roles(anchor: PStage, leader: PStage, target: Target) -> list[Roles]:
    """Which spatial axis to vectorise, and which to repeat in registers."""
    axes = [a for a, _ in leader.axes]
    extents = leader.extents
    factors = product_factors(anchor.body)
    out: list[Roles] = []
    for v in axes:
        if extents[v] < 2:
            continue
        strides = set().union(*(strides_of(f, v) for f in factors))
        contiguous_out = _output_stride(leader, v) == 1
        walks = 1 in strides or 2 in strides
        packable = len(factors) > 1 and strides <= {0, 1, 2} | strides
        if not (contiguous_out or walks or packable):
            continue
        if not contiguous_out and extents[v] < target.lanes("float32"):
            continue
        reuse = [a for a in axes if a != v and _reused(factors, a, v)]
        rest = [a for a in axes if a != v and a not in reuse]
        for tiled in _tilings(reuse, rest, extents):
            others = tuple(a for a in axes if a != v and a not in tiled)
            out.append(Roles(leader, anchor, v, tiled, others))
    return out[:8]


def _reused(factors: list[Expr], axis: str, vector: str) -> bool:
    """Whether repeating ``axis`` in registers reuses a loaded vector: some factor that varies with the vector axis does not
    depend on it, or (a sliding window) walks it together with a reduction axis."""
    return any(vector in variables(f) and axis not in variables(f) for f in factors)


def _tilings(reuse: list[str], rest: list[str], extents: dict[str, int]) -> list[tuple[str, ...]]:
    """Register-tiled axes to try: the largest reused one, with and without a neighbour."""
    reuse = [a for a in reuse if extents[a] > 1]
    rest = [a for a in rest if extents[a] > 1]
    main = sorted(reuse, key=lambda a: -extents[a])[:1]
    out: list[tuple[str, ...]] = [tuple(main)] if main else []
    for second in [a for a in reuse if a not in main][:1] + rest[-1:]:
        out.append((*main, second))
    return out or [()]


def _pack_choices(anchor: PStage, roles: Roles, constants: set[str]) -> list[tuple[int, ...]]:
    """Factors to pack: constants always (it costs nothing at run time); others where it may pay, as alternatives."""
    factors = product_factors(anchor.body)
    if len(factors) < 2 or anchor.reducer != "sum":
        return [()]
    always: list[int] = []
    maybe: list[int] = []
    for k, f in enumerate(factors):
        read = {load.tensor for load in loads(f)}
        used = variables(f)
        if not read or not used & {a for a, _ in anchor.reduce}:
            continue
        if read <= constants:
            always.append(k)
            continue
        window = any(len(a.terms) > len(used) or len(used) > 3 for load in loads(f) if (a := affine(load.index[0])))
        reused = [a for a, _ in anchor.axes if a not in used]
        if not window and reused and roles.vector in used:
            maybe.append(k)
    return [tuple(always)] + [(*always, k) for k in maybe]


def _widths(extent: int, lanes: int) -> tuple[int, ...]:
    """Vector widths to try: multiples of the lanes, and the whole axis where it is short."""
    out = {w for w in (lanes, 2 * lanes, 3 * lanes, 4 * lanes) if w < extent + lanes}
    if extent <= 4 * lanes:
        out = {w for w in out if w < extent} | {extent}
    return tuple(sorted(out)) or (extent,)


def _blocks(extent: int, unit: int, most: int = 64) -> tuple[int, ...]:
    """Numbers of tiles in a cache block: powers of two up to the axis, and one for the whole of it."""
    count = -(-extent // max(1, unit))
    out = {b for b in (1, 2, 4, 8, 16, 32, 64) if b < count and b <= most}
    return tuple(sorted(out | {min(count, 4096)}))


def _repeats(extent: int) -> tuple[int, ...]:
    return tuple(
        sorted({r for r in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14) if r <= extent} | ({extent} if extent <= 14 else set()))
    )


def _unrolls(extent: int) -> tuple[int, ...]:
    if extent <= SMALL_REDUCTION:
        return (1, extent)
    return tuple(u for u in (1, 2, 4, 8) if u <= extent)


def spatial_sketch(
    name: str,
    workload: Workload,
    target: Target,
    roles: Roles,
    order: str,
    packs: tuple[int, ...],
    base: list[Step],
    extra: list[Step | Open],
    planes: bool = False,
) -> Sketch:
    leader, anchor, v = roles.leader, roles.anchor, roles.vector
    lanes = target.lanes(anchor.body.dtype) if anchor.body.dtype != "bool" else 8
    extents = anchor.extents
    params: list[Param] = [Param("v", _widths(extents[v], lanes), "width of the vector loop")]
    template: list[Step | Open] = [*base, *extra, Open(leader.name, v, ("v*vb", "v"))]
    params.append(Param("vb", _blocks(extents[v], lanes), "vector tiles in a cache block"))
    preferred: dict[str, int] = {}
    for k, a in enumerate(roles.tiled):
        params.append(Param(f"r{k}", _repeats(extents[a]), f"repeats of {a} in registers"))
        if k == 0:
            params.append(Param(f"r{k}b", _blocks(extents[a], 4), f"register tiles of {a} in a cache block"))
            template.append(Open(leader.name, a, (f"r{k}*r{k}b", f"r{k}")))
        else:
            template.append(Open(leader.name, a, (f"r{k}",)))
    outer = [f"{a}.0" for a in roles.others]
    blocks = [f"{a}.0" for a in roles.tiled] + [f"{v}.0"]
    tiles = [f"{roles.tiled[0]}.1"] if roles.tiled else []
    tiles = [*tiles, f"{v}.1"] if order == "ov" else [f"{v}.1", *tiles]
    static = [f"{a}.{2 if k == 0 else 1}" for k, a in enumerate(roles.tiled)] + [f"{v}.2"]
    template.append(Order(leader.name, (*outer, *blocks, *tiles, *static)))
    if worth_threads(workload, target):
        template.append(Parallel(leader.name, len(outer) + (0 if planes else len(blocks))))
    template += [Unroll(leader.name, s) for s in static[:-1]]
    template.append(Vectorize(leader.name, static[-1]))
    reduce = [a for a, _ in anchor.reduce]
    for k, a in enumerate(reduce):
        params.append(Param(f"u{k}", _unrolls(extents[a]), f"unrolling of {a}"))
        template += [Open(anchor.name, a, (f"u{k}",)), Unroll(anchor.name, f"{a}.1")]
    template.append(Order(anchor.name, (*[f"{a}.0" for a in reduce], *[f"{a}.1" for a in reduce], *static)))
    for factor in packs:
        used = variables(product_factors(anchor.body)[factor])
        layout = [lp for lp in (*outer, *blocks, *tiles) if lp.rsplit(".", 1)[0] in used]
        layout += [f"{a}.{k}" for k in (0, 1) for a in reduce if a in used]
        layout += [lp for lp in static if lp.rsplit(".", 1)[0] in used]
        template.append(Pack(anchor.name, factor, "root", tuple(layout)))
    wanted = {"v": 2 * lanes, "r0": 6, "vb": 8, "r0b": 8, "r1": 1, "u0": 1}
    for p in params:
        goal = wanted.get(p.name, max(p.values))
        preferred[p.name] = min(p.values, key=lambda x: (abs(x - goal), x))
    constraints = _constraints(roles, target, lanes, [p.name for p in params], extents, SIZES[anchor.body.dtype])
    return Sketch(name, workload, target, tuple(template), tuple(params), constraints, anchor.name, preferred)


def _constraints(
    roles: Roles, target: Target, lanes: int, names: list[str], extents: dict[str, int], nbytes: int
) -> tuple[Constraint, ...]:
    def vectors(c: Columns) -> Ints:
        return -(-c["v"] // lanes)

    def repeats(c: Columns) -> Ints:
        out = np.ones_like(c["v"])
        for k in range(len(roles.tiled)):
            out = out * c[f"r{k}"]
        return out

    def unrolled(c: Columns) -> Ints:
        out = np.ones_like(c["v"])
        for n in names:
            if n.startswith("u"):
                out = out * c[n]
        return out

    def bodies(c: Columns) -> Ints:
        out: Ints = 1 + (extents[roles.vector] % c["v"] != 0).astype(np.int64)
        for k, a in enumerate(roles.tiled):
            out = out * (1 + (extents[a] % c[f"r{k}"] != 0))
        for k, a in enumerate(a for a, _ in roles.anchor.reduce):
            out = out * (1 + (extents[a] % c[f"u{k}"] != 0))
        return out

    def block(c: Columns, k: int | None, a: str) -> Mask:
        size = c["v"] * c["vb"] if k is None else c[f"r{k}"] * c[f"r{k}b"]
        unit = c["v"] if k is None else c[f"r{k}"]
        return size < extents[a] + unit

    out = [
        Constraint(
            "registers",
            f"accumulators and one row of operands fit {target.vector_registers} vector registers",
            lambda c: repeats(c) * vectors(c) + vectors(c) + 1 <= target.vector_registers,
        ),
        Constraint(
            "code size",
            "the unrolled body stays within 256 vector statements, with all remainders within 1000",
            lambda c: (
                (repeats(c) * vectors(c) * unrolled(c) <= 256)
                & (repeats(c) * vectors(c) * unrolled(c) * bodies(c) <= 1000)
            ),
        ),
        Constraint("vector block", "a block is no larger than the axis", lambda c: block(c, None, roles.vector)),
    ]
    if roles.tiled:
        out.append(
            Constraint("register block", "a block is no larger than the axis", lambda c: block(c, 0, roles.tiled[0]))
        )
    return tuple(out)
