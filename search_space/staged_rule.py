"""The staged form of a contraction: a block of the result is summed in the thread's own cache, then written out.

The vector axis need not be the one the output is contiguous in. A convolution takes vectors of output channels: its
weights are packed so that they are read in order, and pixels are broadcast one by one, whatever the stride and however
few there are in a row. The block is laid out as the register tile leaves it, and the write-out, with the epilogue, puts
it in the order of the output. As the block stays between steps of the reduction, the reduction can be blocked too: a
panel of packed weights stays in the first cache while all pixels of the block pass by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.graph.dtypes import SIZES
from tilewright.graph.traverse import variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.steps import At, Order, Pack, Parallel, Step, Unroll, Vectorize
from tilewright.schedules.target import Target
from tilewright.search_space.injective_rule import row_steps
from tilewright.search_space.overlap import regions
from tilewright.search_space.prologue import worth_threads
from tilewright.search_space.sketch import Columns, Constraint, Floats, Ints, Open, Param, Sketch

WIDTHS = (1, 2, 3)
"""Vectors of a vector loop."""
COPIED = 8
"""Pixels of a row that are written out together: neighbours are transposed in registers."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """Roles of the axes: ``vector`` lanes, ``tile`` repeated in registers, ``rows`` around it in the block (if any), and
    the ``others``, which stay outside; ``depth`` is the reduction axis that is blocked, ``windows`` are the rest."""

    leader: PStage
    anchor: PStage
    vector: str
    tile: str
    rows: str | None
    others: tuple[str, ...]
    depth: str
    windows: tuple[str, ...]
    packed: int
    """The factor that is read along the vector axis."""


def staged_sketches(
    workload: Workload, target: Target, phase: Phase, base: list[Step], extra: list[Step | Open]
) -> list[Sketch]:
    """Staged sketches of the contraction of a phase; none for a reduction without two factors that reuse each other. What comes before
    the contraction in the phase are copies that a block of rows reads through windows (padding): they are made for each block."""
    *copies, anchor, leader = phase.stages
    if anchor.reducer != "sum" or anchor.body.dtype == "bool":
        return []
    out = []
    for roles in _roles(anchor, leader, target):
        if copies and (roles.rows is None or not all(_walked(c, roles) for c in copies)):
            continue
        out.append(_sketch(workload, target, roles, phase, base, extra))
    return out


def _walked(copy: PStage, roles: _Staged) -> bool:
    """Whether the loops around a block of rows, and none of those inside it, are loops of a copy."""
    inside = {roles.vector, roles.tile, roles.rows}
    return bool(copy.axes) and copy.reducer is None and not inside & set(copy.extents)


def _roles(anchor: PStage, leader: PStage, target: Target) -> list[_Staged]:
    factors = product_factors(anchor.body)
    if len(factors) != 2 or not leader.axes or not anchor.reduce:
        return []
    reduce = [a for a, _ in anchor.reduce]
    extents = leader.extents
    last = leader.axes[-1][0]
    out: list[_Staged] = []
    for v, _ in leader.axes:
        walked = [k for k, f in enumerate(factors) if v in variables(f)]
        if len(walked) != 1 or extents[v] < target.lanes(anchor.body.dtype):
            continue
        other = variables(factors[1 - walked[0]])
        free = [a for a, _ in leader.axes if a in other and a not in variables(factors[walked[0]])]
        both = [a for a in reduce if a in other and a in variables(factors[walked[0]])]
        if not free or not both or last not in (v, free[-1]):
            continue
        tile = free[-1]
        rows = free[-2] if len(free) > 1 else None
        depth = max(both, key=lambda a: (anchor.extents[a], -reduce.index(a)))
        others = tuple(a for a, _ in leader.axes if a not in (v, tile, rows))
        windows = tuple(a for a in reduce if a != depth)
        out.append(_Staged(leader, anchor, v, tile, rows, others, depth, windows, walked[0]))
    return out


def _sketch(
    workload: Workload,
    target: Target,
    roles: _Staged,
    phase: Phase,
    base: list[Step],
    extra: list[Step | Open],
) -> Sketch:
    *copies, anchor, leader = phase.stages
    v, t, q, d = roles.vector, roles.tile, roles.rows, roles.depth
    extents = anchor.extents
    lanes = target.lanes(anchor.body.dtype)
    even = [-(-extents[v] // (k * lanes * target.threads)) for k in WIDTHS]  # one block for each thread
    params = [
        Param("v", tuple(k * lanes for k in WIDTHS if k * lanes < extents[v] + lanes), "width of the vector loop"),
        Param("vb", tuple(sorted({*_powers(-(-extents[v] // lanes), (1, 2, 4, 8)), *even})), "vector tiles in a block"),
        Param(
            "r", tuple(r for r in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12) if r <= extents[t]), f"repeats of {t} in registers"
        ),
        Param("kb", _powers(extents[d], (8, 16, 32, 64, 128, 256)), f"steps of {d} in a panel"),
        Param("u", (1, extents[d]) if extents[d] <= 7 else (1, 2, 4), f"unrolling of {d}"),
    ]
    inside = {anchor.name, *(c.name for c in copies)}
    template: list[Step | Open] = [*(s for s in base if not (isinstance(s, At) and s.stage in inside)), *extra]
    outer = [f"{a}.0" for a in roles.others] + ([] if copies else [f"{v}.0"])
    contiguous = leader.axes[-1][0] == v
    if q is not None:
        params.append(Param("b", _rows(extents[q], target.threads, bool(copies)), f"rows of {q} in a block"))
        outer.append(f"{q}.0")
        template += [Open(leader.name, q, ("b",)), Open(leader.name, t, (COPIED,))]
        tiles, block = [f"{t}.0"], [f"{t}.0", f"{t}.1"]
        template.append(Open(anchor.name, t, ("r",)))
    else:
        params.append(
            Param("b", _powers(-(-extents[t] // 4), (1, 2, 4, 8, 16, 32)), f"register tiles of {t} in a block")
        )
        outer.append(f"{t}.0")
        template.append(Open(leader.name, t, ("r*b", "r")))
        tiles, block = [f"{t}.1"], [f"{t}.1", f"{t}.2"]
    template.append(Open(leader.name, v, ("v*vb", "v" if contiguous else lanes)))
    if not contiguous:
        template.append(Open(anchor.name, v, ("v*vb", "v")))
    parallel = len(outer)
    if copies:
        for copy in copies:
            template += [At(copy.name, leader.name, outer[-1]), *row_steps(copy, target)]
        outer.append(f"{v}.0")
    row = [f"{q}.1"] if q is not None else []
    inner = [*row, *block, f"{v}.1", f"{v}.2"] if contiguous else [*row, f"{v}.1", *block, f"{v}.2"]
    template.append(Order(leader.name, (*outer, *inner)))
    if worth_threads(workload, target):
        template.append(Parallel(leader.name, parallel))
    if not contiguous:
        template.append(Unroll(leader.name, block[-1]))
    template.append(Vectorize(leader.name, f"{v}.2"))
    template.append(At(anchor.name, leader.name, outer[-1]))
    template += [Open(anchor.name, d, ("u*kb", "u")), Unroll(anchor.name, f"{d}.2")]
    static = [block[-1], f"{v}.2"]
    windows = [f"{a}.0" for a in roles.windows]
    template.append(Order(anchor.name, (f"{d}.0", f"{v}.1", *row, *tiles, *windows, f"{d}.1", f"{d}.2", *static)))
    template += [Unroll(anchor.name, block[-1]), Vectorize(anchor.name, f"{v}.2")]
    used = variables(product_factors(anchor.body)[roles.packed])
    layout = [*outer, f"{d}.0", f"{v}.1", *windows, f"{d}.1", f"{d}.2", f"{v}.2"]
    template.append(Pack(anchor.name, roles.packed, "root", tuple(lp for lp in layout if lp.rsplit(".", 1)[0] in used)))
    read = math.prod(extents[a] for a in roles.windows)
    panel = max(8, target.l1d_bytes // 2 // (2 * lanes * SIZES[anchor.body.dtype] * read))
    unrolled = 1 if roles.windows else 4
    wide, rows = (min(8, even[1]), 8) if q is None else (2, 2)
    wanted = {"v": 2 * lanes, "r": 6, "vb": wide, "kb": panel // unrolled, "u": unrolled, "b": rows}
    preferred = {p.name: _nearest(p.values, wanted[p.name]) for p in params}
    name = f"staged[v={v},r={t}{',pad=block' if copies else ''}]"
    limits = _constraints(roles, target)
    if copies:
        limits = (*limits, _copies_fit(roles, phase, target))
    return Sketch(name, workload, target, tuple(template), tuple(params), limits, anchor.name, preferred)


def _rows(extent: int, threads: int, even: bool) -> tuple[int, ...]:
    """Rows of a block: powers of two, and what gives each thread as many blocks as the others where nothing else can."""
    few = _powers(extent, (1, 2, 4, 8))
    return tuple(sorted({*few, *(-(-extent // (threads * k)) for k in (1, 2, 4))})) if even else few


def _nearest(values: tuple[int, ...], goal: int) -> int:
    return min(values, key=lambda x: (abs(x - goal), x))


def _powers(most: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """``values`` below ``most``, and ``most``."""
    return (*(x for x in values if x < most), most)


def _constraints(roles: _Staged, target: Target) -> tuple[Constraint, ...]:
    extents = roles.anchor.extents
    lanes = target.lanes(roles.anchor.body.dtype)
    nbytes = SIZES[roles.anchor.body.dtype]
    v, t, q, d = roles.vector, roles.tile, roles.rows, roles.depth

    def block(c: Columns) -> Ints:
        width = np.minimum(c["v"] * c["vb"], extents[v])
        out: Ints = width * c["b"] * (c["r"] if q is None else extents[t])
        return out

    out = [
        Constraint(
            "registers",
            f"accumulators and one row of operands fit {target.vector_registers} vector registers",
            lambda c: (c["r"] + 1) * (c["v"] // lanes) + 1 <= target.vector_registers,
        ),
        Constraint(
            "pairs",
            "two unrolled steps of rows of one register: LLVM spills the accumulators of the first step",
            lambda c: (c["v"] > lanes) | (c["u"] != 2),
        ),
        Constraint(
            "vector block", "a block is no larger than the axis", lambda c: c["v"] * c["vb"] < extents[v] + c["v"]
        ),
        Constraint("panel", "a panel is no longer than the axis", lambda c: c["u"] * c["kb"] < extents[d] + c["u"]),
        Constraint(
            "block",
            "the block fits half of the second-level cache",
            lambda c: block(c) * nbytes <= target.l2_bytes // 2,
        ),
    ]
    if q is None:
        out.append(
            Constraint(
                "tile block", "a block is no larger than the axis", lambda c: c["r"] * c["b"] < extents[t] + c["r"]
            )
        )
    return tuple(out)


def _copies_fit(roles: _Staged, phase: Phase, target: Target) -> Constraint:
    """What is copied for a block stays close until the block is done."""
    copies = phase.stages[:-2]

    def nbytes(c: Columns) -> Floats:
        out: Floats = np.zeros(len(c["b"]))
        for copy in copies:
            size: Floats = np.full(len(c["b"]), float(SIZES[copy.body.dtype]))
            found = regions(copy, phase, {roles.rows or "": c["b"]})
            for a, extent in copy.axes:
                size = size * (found[a].width if a in found else 1.0 if a in roles.others else float(extent))
            out = out + size
        return out

    return Constraint(
        "copies",
        "what is copied for a block fits half of the second-level cache",
        lambda c: nbytes(c) <= target.l2_bytes // 2,
    )
