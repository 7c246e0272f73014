"""A reduction in register tiles as a sketch: its parameters, its template and its constraints."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.graph.dtypes import SIZES
from tilewright.graph.traverse import variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product_factors
from tilewright.schedules.packing import ROOT
from tilewright.schedules.steps import Order, Pack, Parallel, Step, Unroll, Vectorize
from tilewright.schedules.target import Target
from tilewright.search_space.prologue import worth_threads
from tilewright.search_space.roles import Roles
from tilewright.search_space.sketch import Columns, Constraint, Ints, Mask, Open, Param, Sketch

SMALL_REDUCTION = 7
"""Reduction axes up to this extent (the windows of a convolution) may be unrolled whole."""
WINDOW = 25
"""Elements of a window that is unrolled whole in a sensible candidate."""

PIECES = 4
"""Blocks of vectors for each thread, if only they are parallel, below which threads end apart."""


def widths(extent: int, lanes: int) -> tuple[int, ...]:
    """Vector widths to try: multiples of the lanes, and the whole axis where it is short."""
    out = {w for w in (lanes, 2 * lanes, 3 * lanes, 4 * lanes) if w < extent + lanes}
    if extent <= 4 * lanes:
        out = {w for w in out if w < extent} | {extent}
    return tuple(sorted(out)) or (extent,)


def block_counts(extent: int, unit: int, most: int = 64) -> tuple[int, ...]:
    """Numbers of tiles in a cache block: powers of two up to the axis, and one for the whole of it."""
    count = -(-extent // max(1, unit))
    out = {b for b in (1, 2, 4, 8, 16, 32, 64) if b < count and b <= most}
    return tuple(sorted(out | {min(count, 4096)}))


def repeats(extent: int) -> tuple[int, ...]:
    """How often a vector may be repeated in registers along an axis: short counts, and a short axis whole."""
    return tuple(
        sorted({r for r in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14) if r <= extent} | ({extent} if extent <= 14 else set()))
    )


def unrolls(extent: int) -> tuple[int, ...]:
    """Steps of a reduction axis that may be unrolled."""
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
    whole: bool = False,
    panels: tuple[int, ...] = (),
    first: bool = False,
) -> Sketch:
    """The register tile over the vector axis and the tiled axes of ``roles``, blocked for the caches. The tiles of a block are walked
    with the other axis outside (``order`` is ``ov``) or the vector axis outside (``vo``); the factors ``packs`` are packed; ``base``
    and ``extra`` come before its own steps. ``planes``: only the outer axes are parallel; ``whole``: a row may be one vector tile;
    ``panels``: of the packed factors, those that each thread packs for itself at the loop over blocks of vectors, which is then
    outside the blocks of other axes and the last of the parallel ones; ``first``: blocks of the first tiled axis are outside of all
    other loops, so that a thread has the same part of that axis in what comes before and after."""
    leader, anchor, v = roles.leader, roles.anchor, roles.vector
    lanes = target.lanes(anchor.body.dtype) if anchor.body.dtype != "bool" else 8
    extents = anchor.extents
    across = widths(extents[v], lanes)
    if whole and extents[v] <= (target.vector_registers // 2 - 1) * lanes:
        across = tuple(sorted({*across, extents[v]}))
    params: list[Param] = [Param("v", across, "width of the vector loop")]
    template: list[Step | Open] = [*base, *extra, Open(leader.name, v, ("v*vb", "v"))]
    params.append(Param("vb", block_counts(extents[v], lanes), "vector tiles in a cache block"))
    preferred: dict[str, int] = {}
    for k, a in enumerate(roles.tiled):
        params.append(Param(f"r{k}", repeats(extents[a]), f"repeats of {a} in registers"))
        if k == 0:
            params.append(Param(f"r{k}b", block_counts(extents[a], 4), f"register tiles of {a} in a cache block"))
            template.append(Open(leader.name, a, (f"r{k}*r{k}b", f"r{k}")))
        else:
            template.append(Open(leader.name, a, (f"r{k}",)))
    outer = [f"{a}.0" for a in roles.others]
    blocks = [f"{a}.0" for a in roles.tiled]
    blocks = [f"{v}.0", *blocks] if panels else [*blocks, f"{v}.0"]
    tiles = [f"{roles.tiled[0]}.1"] if roles.tiled else []
    tiles = [*tiles, f"{v}.1"] if order == "ov" else [f"{v}.1", *tiles]
    static = [f"{a}.{2 if k == 0 else 1}" for k, a in enumerate(roles.tiled)] + [f"{v}.2"]
    around = [blocks[0], *outer, *blocks[1:]] if first else [*outer, *blocks]
    template.append(Order(leader.name, (*around, *tiles, *static)))
    if worth_threads(workload, target):
        fused = 0 if planes else 1 if panels else len(blocks)
        template.append(Parallel(leader.name, len(outer) + fused))
    template += [Unroll(leader.name, s) for s in static[:-1]]
    template.append(Vectorize(leader.name, static[-1]))
    reduce = [a for a, _ in anchor.reduce]
    for k, a in enumerate(reduce):
        params.append(Param(f"u{k}", unrolls(extents[a]), f"unrolling of {a}"))
        template += [Open(anchor.name, a, (f"u{k}",)), Unroll(anchor.name, f"{a}.1")]
    template.append(Order(anchor.name, (*[f"{a}.0" for a in reduce], *[f"{a}.1" for a in reduce], *static)))
    for factor in packs:
        used = variables(product_factors(anchor.body)[factor])
        inside = [*blocks[1:], *tiles] if factor in panels else [*outer, *blocks, *tiles]
        layout = [lp for lp in inside if lp.rsplit(".", 1)[0] in used]
        layout += [f"{a}.{k}" for k in (0, 1) for a in reduce if a in used]
        layout += [lp for lp in static if lp.rsplit(".", 1)[0] in used]
        template.append(Pack(anchor.name, factor, f"{v}.0" if factor in panels else ROOT, tuple(layout)))
    wanted = {"v": 2 * lanes, "r0": 6, "vb": 8, "r0b": 8, "r1": 1, "u0": 4 if len(anchor.reduce) == 1 else 1}
    if first:  # small blocks: the border between the threads' parts is near that of what comes before
        wanted["r0b"] = 4
    if panels:  # the blocks are what threads share
        rows = prod(extents[a] for a in roles.others) * extents[v]
        wanted["vb"] = max(1, min(8, rows // (2 * lanes * PIECES * target.threads)))
    if (
        whole and extents[v] in across
    ):  # rows of windows: what is beyond an edge is known where all of them are unrolled
        wanted |= {"v": extents[v], "vb": 1, "r0": max(1, target.vector_registers // 2 // -(-extents[v] // lanes))}
        windows = prod(extents[a] for a in reduce)
        wanted |= dict.fromkeys([f"u{k}" for k in range(len(reduce))], SMALL_REDUCTION if windows <= WINDOW else 1)
    for block, unit, a in (("vb", "v", v), *(("r0b", "r0", a) for a in roles.tiled[:1])):  # no larger than the axis
        wanted[block] = min(wanted[block], -(-extents[a] // min(wanted[unit], extents[a])))
    for p in params:
        goal = wanted.get(p.name, max(p.values))
        preferred[p.name] = min(p.values, key=lambda x: (abs(x - goal), x))
    limits = constraints_of(roles, target, lanes, [p.name for p in params], extents, SIZES[anchor.body.dtype])
    return Sketch(name, workload, target, tuple(template), tuple(params), limits, anchor.name, preferred)


def constraints_of(
    roles: Roles, target: Target, lanes: int, names: list[str], extents: dict[str, int], nbytes: int
) -> tuple[Constraint, ...]:
    """What a register tile must satisfy: registers, code size, blocks no larger than the axis."""

    def vectors(c: Columns) -> Ints:
        out: Ints = -(-c["v"] // lanes)
        return out

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
        Constraint(
            "pairs",
            "two unrolled steps of rows of one register: LLVM spills the accumulators of the first step",
            lambda c: (vectors(c) > 1) | (unrolled(c) != 2),
        ),
        Constraint("vector block", "a block is no larger than the axis", lambda c: block(c, None, roles.vector)),
    ]
    if roles.tiled:
        out.append(
            Constraint("register block", "a block is no larger than the axis", lambda c: block(c, 0, roles.tiled[0]))
        )
    return tuple(out)
