"""The dot rule: reductions that read a large tensor once (matrix times vector, sums over rows or columns), where memory is what
counts. A core that reads one stream gets two thirds of what it gets from four, so all sketches read several at once.

- *dot*: vectors along a contiguous reduction axis. Several rows, and several accumulators of each, are in flight; the lanes are
  reduced at the end.
- *streams*: a constant matrix with few rows on the other side, packed so that each vector of outputs has a stream of its own.
- *columns*: vectors along a contiguous output axis of a tensor that is read as it lies. A row of accumulators stays in the first
  cache, and several rows of the tensor are added to it at a time.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr
from tilewright.graph.traverse import loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import PStage
from tilewright.schedules.steps import At, Order, Pack, Parallel, Spread, Step, Unroll, Vectorize
from tilewright.schedules.target import Target
from tilewright.search_space.prologue import worth_threads
from tilewright.search_space.sketch import Ahead, Constraint, Open, Param, Sketch


def strides_of(e: Expr, axis: str) -> set[int]:
    """Strides with which the loads of ``e`` walk ``axis`` (None-affine loads count as stride 0 marker -1)."""
    out: set[int] = set()
    for load in loads(e):
        a = affine(load.index[-1]) if load.index else None
        if a is not None and (len(load.index) == 1 or a.coefficient(axis)):
            out.add(a.coefficient(axis))
        elif axis in variables(e):
            out.add(-1)
    return out


def dot_sketches(
    workload: Workload, target: Target, anchor: PStage, leader: PStage, base: list[Step], extra: list[Step | Open]
) -> list[Sketch]:
    """Vectorise along the last reduction axis (dot products, row sums): several accumulators, lanes reduced at the end."""
    v = anchor.reduce[-1][0]
    lanes = target.lanes(anchor.body.dtype) if anchor.body.dtype != "bool" else 8
    extents = anchor.extents
    if extents[v] < 2 * lanes or not any(strides_of(f, v) & {1} for f in product_factors(anchor.body)):
        return []
    params = [
        Param("s", (1, 2, 4, 8), "independent accumulators along the reduction"),
        Param("w", (lanes,), "width of the vector loop"),
    ]
    template: list[Step | Open] = [*base, *extra]
    axes = [a for a, _ in leader.axes]
    tiled = axes[-1:]
    outer = [f"{a}.0" for a in axes]
    static: list[str] = []
    if tiled:
        params.append(Param("r0", tuple(r for r in (1, 2, 4, 6, 8) if r <= extents[tiled[0]]), "rows at once"))
        template += [Open(leader.name, tiled[0], ("r0",)), Unroll(leader.name, f"{tiled[0]}.1")]
        static = [f"{tiled[0]}.1"]
    template.append(Order(leader.name, (*outer, *static)))
    if outer and worth_threads(workload, target):
        template.append(Parallel(leader.name, len(outer)))
    before = [f"{a}.0" for a, _ in anchor.reduce[:-1]]
    template += [
        Open(anchor.name, v, ("s*w", "w")),
        Unroll(anchor.name, f"{v}.1"),
        Spread(anchor.name, f"{v}.1"),
        Vectorize(anchor.name, f"{v}.2"),
        Order(anchor.name, (*before, f"{v}.0", f"{v}.1", *static, f"{v}.2")),
    ]
    if len(product_factors(anchor.body)) == 1 and workload.min_bytes > MOST_CACHED * target.l3_bytes:
        params.append(Param("d", (0, 4, 8), "iterations fetched ahead"))
        template.append(Ahead(anchor.name, f"{v}.0", ("d",)))
    constraint = Constraint(
        "registers",
        "accumulators fit the vector registers",
        lambda c: c["s"] * (c.get("r0", 1)) <= target.vector_registers - 2,
    )
    preferred = {
        "d": 4,
        "s": 2,
        "w": lanes,
        "r0": max((r for r in (1, 2, 4) if tiled and r <= extents[tiled[0]]), default=1),
    }
    return [
        Sketch(
            f"dot[v={v}]",
            workload,
            target,
            tuple(template),
            tuple(params),
            (constraint,),
            anchor.name,
            {p.name: preferred[p.name] for p in params},
        )
    ]


MOST_CACHED = 1.5
"""Bytes read, over those of the last cache, from which on rows come from memory. Where there is one tensor only to ask for, it pays
to do so past the end of a page, where hardware stops: some percent."""
MOST_ROWS = 8
"""Rows on the other side of a matrix up to which reading the matrix is what takes the time."""


def stream_sketches(
    workload: Workload, target: Target, anchor: PStage, leader: PStage, base: list[Step], extra: list[Step | Open]
) -> list[Sketch]:
    """A large constant matrix that is used for a few rows only: vectors along the output, several of them at once, each read from a
    packed stream of its own; the few rows are all kept in registers."""
    if anchor.reducer != "sum" or not leader.axes:
        return []
    v, extent = leader.axes[-1]
    rows = [a for a, _ in leader.axes[:-1]]
    count = prod(leader.extents[a] for a in rows)
    lanes = target.lanes(anchor.body.dtype)
    reduced = [a for a, _ in anchor.reduce]
    constants = {n for n, _, c in workload.inputs if c}
    packs = [
        k
        for k, f in enumerate(product_factors(anchor.body))
        if {v, *reduced} <= variables(f) and {load.tensor for load in loads(f)} <= constants
    ]
    nbytes = extent * prod(e for _, e in anchor.reduce) * SIZES[anchor.body.dtype]
    if not packs or count > MOST_ROWS or extent < 2 * lanes or nbytes < target.l2_bytes:
        return []
    params = [
        Param("v", tuple(w for w in (lanes, 2 * lanes, 4 * lanes) if w <= extent), "width of the vector loop"),
        Param("t", tuple(t for t in (1, 2, 3, 4, 6, 8, 12) if t * lanes <= extent), "vectors at once, each a stream"),
        Param("u", tuple(u for u in (1, 2, 4) if u <= anchor.extents[reduced[-1]]), f"unrolling of {reduced[-1]}"),
    ]
    static = [*(f"{a}.0" for a in rows), f"{v}.1", f"{v}.2"]
    template: list[Step | Open] = [
        *base,
        *extra,
        Open(leader.name, v, ("v*t", "v")),
        Order(leader.name, (f"{v}.0", *static)),
        *([Parallel(leader.name, 1)] if worth_threads(workload, target) else []),
        *(Unroll(leader.name, s) for s in static[:-1]),
        Vectorize(leader.name, static[-1]),
        Open(anchor.name, reduced[-1], ("u",)),
        Unroll(anchor.name, f"{reduced[-1]}.1"),
    ]
    inner = [*(f"{a}.0" for a in reduced), f"{reduced[-1]}.1"]
    template.append(Order(anchor.name, (*inner, *static)))
    for k in packs:
        used = variables(product_factors(anchor.body)[k])
        layout = [lp for lp in (f"{v}.0", *static[:-1], *inner, f"{v}.2") if lp.rsplit(".", 1)[0] in used]
        template.append(Pack(anchor.name, k, "root", tuple(layout)))
    constraints = (
        Constraint(
            "registers",
            "accumulators, and a vector of the matrix where several rows use it, fit the vector registers",
            lambda c: (count * c["t"] + (count > 1)) * -(-c["v"] // lanes) + 1 <= target.vector_registers,
        ),
        Constraint("block", "a block is no larger than the axis", lambda c: c["v"] * c["t"] <= extent),
    )
    preferred = {"v": params[0].values[0], "t": min(params[1].values, key=lambda t: abs(t - 4)), "u": 1}
    name = f"streams[v={v},pack={''.join(map(str, packs))}]"
    return [Sketch(name, workload, target, tuple(template), tuple(params), constraints, anchor.name, preferred)]


def column_sketches(
    workload: Workload, target: Target, anchor: PStage, leader: PStage, base: list[Step], extra: list[Step | Open]
) -> list[Sketch]:
    """A tensor without reuse that is contiguous along the output (sums over rows, vector times matrix): accumulators for a row of
    outputs lie in the first cache, and the tensor is read as it lies, several rows at a time."""
    if anchor.reducer is None or not leader.axes or not anchor.reduce:
        return []
    v, extent = leader.axes[-1]
    others = [a for a, _ in leader.axes[:-1]]
    every = {*leader.extents, *anchor.extents}
    lanes = target.lanes(anchor.body.dtype) if anchor.body.dtype != "bool" else 8
    main, rows = anchor.reduce[-1]
    walked = [load for load in loads(anchor.body) if strides_of(load, v) == {1} and every <= variables(load)]
    if (
        not walked
        or extent < 2 * lanes
        or rows < 2
        or prod(anchor.extents.values()) * SIZES[walked[0].dtype] < target.l1d_bytes
    ):
        return []
    widths = tuple(w for w in (lanes, 2 * lanes, 4 * lanes) if w <= extent)
    blocks = {b for b in (8, 16, 32, 64, 128) if b * lanes < extent}
    params = [
        Param("v", widths, "width of the vector loop"),
        Param("vb", tuple(sorted(blocks | {-(-extent // w) for w in widths})), "vectors of accumulators"),
        Param("u", tuple(u for u in (1, 2, 3, 4, 6, 8) if u <= rows), "rows at once, each a stream"),
    ]
    outer = [*(f"{a}.0" for a in others), f"{v}.0"]
    reduced = [f"{a}.0" for a, _ in anchor.reduce]
    template: list[Step | Open] = [
        *(s for s in base if not (isinstance(s, At) and s.stage == anchor.name)),
        *extra,
        At(anchor.name, leader.name, f"{v}.0"),
        Open(leader.name, v, ("v*vb", "v")),
        Order(leader.name, (*outer, f"{v}.1", f"{v}.2")),
        *([Parallel(leader.name, len(outer))] if worth_threads(workload, target) else []),
        Vectorize(leader.name, f"{v}.2"),
        Open(anchor.name, main, ("u",)),
        Unroll(anchor.name, f"{main}.1"),
        Order(anchor.name, (*reduced, f"{v}.1", f"{main}.1", f"{v}.2")),
    ]
    constraint = Constraint("block", "a block is no larger than the axis", lambda c: c["v"] * c["vb"] < extent + c["v"])
    goal = min(target.l1d_bytes // (8 * SIZES[anchor.body.dtype] * widths[-1]), -(-extent // widths[-1]))
    preferred = {
        "v": widths[-1],
        "vb": max((b for b in params[1].values if b <= goal), default=params[1].values[0]),
        "u": max(u for u in params[2].values if u <= 4),
    }
    name = f"columns[v={v}]"
    return [Sketch(name, workload, target, tuple(template), tuple(params), (constraint,), anchor.name, preferred)]
