"""The dot rule: a reduction whose last axis is contiguous (dot products, matrix times vector, row sums), vectorised along it.

Several rows and several accumulators of each are in flight, the lanes are reduced at the end.
"""

from __future__ import annotations

from tilewright.graph.affine import affine
from tilewright.graph.expr import Expr, loads, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.phases import PStage, product_factors
from tilewright.schedules.steps import Order, Parallel, Spread, Step, Unroll, Vectorize
from tilewright.schedules.target import Target
from tilewright.search_space.prologue import worth_threads
from tilewright.search_space.sketch import Constraint, Open, Param, Sketch


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
    workload: Workload,
    target: Target,
    anchor: PStage,
    leader: PStage,
    base: list[Step],
    extra: list[Step | Open],
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
    constraint = Constraint(
        "registers",
        "accumulators fit the vector registers",
        lambda c: c["s"] * (c.get("r0", 1)) <= target.vector_registers - 2,
    )
    preferred = {"s": 4, "w": lanes, "r0": 1}
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
