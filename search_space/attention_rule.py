"""The attention rule: two contractions with a row normalisation between them, computed one block of rows at a time.

``scores = q kᵀ``, a softmax over their rows, ``out = p v``. All of it is computed inside the loop over blocks of rows, so the
matrix of scores never exists: a thread holds one strip of it (rows of a block x columns) in its cache. The division of the softmax
does not depend on the summed axis and moves behind the second contraction.

Keys and values are read in panels as wide as the vectors: packed before all loops, or by the thread for one of the outer loops
(a head) at a time, so that the panels are still in its cache when they are read and nobody waits for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.graph.expr import Load, Op
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import ACC, Phase, PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.rewrites import resolve_views
from tilewright.schedules.steps import (
    At,
    Inline,
    Order,
    Pack,
    Parallel,
    Schedule,
    ScheduleError,
    Spread,
    Step,
    Unroll,
    Vectorize,
)
from tilewright.schedules.target import Target
from tilewright.search_space.prologue import is_contraction, worth_threads
from tilewright.search_space.sketch import Columns, Constraint, Mask, Open, Param, Sketch


def attention_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with two contractions of which the second sums over an axis of the first; none for any other."""
    stages = resolve_views(workload)
    contractions = [s for s in stages if is_contraction(s)]
    if len(contractions) != 2 or not _reaches(stages, contractions[0], contractions[1]):
        return []
    first, second = contractions
    reads = {s.output: [r for r in stages if s.output in r.sources] for s in stages}
    base: list[Step] = []
    attached: list[str] = []
    for s in stages:
        if s.output == workload.output or s is second:
            continue
        row_value = s.type.size * 4 <= first.type.size and any(
            t in attached for t in s.sources
        )  # a reciprocal of a sum
        if s is first or s.reducer is not None or (_is_maths(s) and len(reads[s.output]) > 1) or row_value:
            attached.append(s.output)
        else:
            base.append(Inline(s.output))
    leader = workload.output
    if second.output != workload.output:
        base.append(At(second.output, leader, "tile"))
    steps: list[Step] = [*base, *(At(s, leader, "root") for s in attached)]
    try:
        parts = phases(workload, Schedule(tuple(steps)))
    except ScheduleError:
        return []
    if len(parts) != 1 or parts[0].stages[0].name != first.output:
        return []
    return _sketches(workload, target, parts[0], base, second.output)


def _reaches(stages: list[Stage], first: Stage, second: Stage) -> bool:
    """Whether the second contraction reads what comes from the first, through reductions."""
    reached = {first.output}
    reduced = False
    for s in stages:
        if any(t in reached for t in s.sources):
            reached.add(s.output)
            reduced = reduced or (s.reducer is not None and s is not second)
    return reduced and second.output in reached


def _is_maths(s: Stage) -> bool:
    return isinstance(s.body, Op) and s.body.kind in ("exp", "sigmoid", "tanh")


def _sketches(workload: Workload, target: Target, phase: Phase, base: list[Step], second: str) -> list[Sketch]:
    leader = phase.leader
    scores = phase.stages[0]
    acc = next((s for s in phase.stages if s.name in (second, second + ACC)), None)
    if acc is None or acc is leader or len(leader.axes) < 2:
        return []
    columns = [a for a, _ in acc.reduce]
    rows = [a for a, _ in leader.axes if a in scores.extents]
    wide = [a for a, _ in leader.axes if a not in scores.extents]
    if len(columns) != 1 or len(wide) != 1 or not rows or columns[0] not in scores.extents:
        return []
    d, j = wide[0], columns[0]
    heads = {a for f in product_factors(acc.body) if d in variables(f) for a in variables(f)}
    inner = [a for a in rows if a not in heads]
    if leader.axes[-1][0] != d or not scores.reduce or not inner:
        return []
    i = inner[-1]
    lanes = target.lanes("float32")
    extents = {**scores.extents, **leader.extents}
    if extents[j] < lanes or extents[d] < lanes:
        return []
    params = _params(extents, lanes, i, j, d, scores.reduce[-1][0])
    others = [f"{a}.0" for a, _ in leader.axes if a not in (i, d)]
    preferred = {"t": 6, "b": 2, "v": 2 * lanes, "w": 2 * lanes, "u": 2, "k": 2, "e": 4 * lanes}
    chosen = {p.name: min(p.values, key=lambda x, goal=preferred[p.name]: abs(x - goal)) for p in params}  # type: ignore[misc]
    constraints = _constraints(target, extents[i], extents[j], lanes)
    template: list[Step | Open] = [*base, Open(leader.name, i, ("t*b", "t")), Open(leader.name, d, ("v",))]
    template.append(Order(leader.name, (*others, f"{i}.0", f"{d}.0", f"{i}.1", f"{i}.2", f"{d}.1")))
    template += [Unroll(leader.name, f"{i}.2"), Vectorize(leader.name, f"{d}.1")]
    for s in phase.stages[:-1]:
        if s is acc:
            template += [
                Open(s.name, j, ("u",)),
                Unroll(s.name, f"{j}.1"),
                Order(s.name, (f"{j}.0", f"{j}.1", f"{i}.2", f"{d}.1")),
            ]
            continue
        template.append(At(s.name, leader.name, f"{i}.0"))
        template += _scores_steps(s, i, j) if s is scores else _row_steps(s, i, j, lanes, extents[j])
    keys = _panel(
        scores, j, i, [f"{j}.0", *(f"{a}.0" for a, _ in scores.reduce), f"{scores.reduce[-1][0]}.1", f"{j}.1"]
    )
    values = _panel(acc, d, i, [f"{d}.0", f"{j}.0", f"{j}.1", f"{d}.1"])
    parallel = worth_threads(workload, target)
    out: list[Sketch] = []
    for name, place, panels in (
        ("attention", "root", [keys]),
        ("attention[values]", "root", [keys, values]),
        ("attention[outer]", others[-1] if others else "", [keys, values]),
    ):
        packs = [p.at(place, others) for p in panels if p is not None]
        if not place or (len(panels) > 1 and values is None):
            continue
        loops = len(others) + (place == "root")
        steps = [*template, *([Parallel(leader.name, loops)] if parallel else []), *packs]
        out.append(Sketch(name, workload, target, tuple(steps), tuple(params), constraints, acc.name, chosen))
    return out


def _params(extents: Mapping[str, int], lanes: int, i: str, j: str, d: str, last: str) -> list[Param]:
    def widths(axis: str, *counts: int) -> tuple[int, ...]:
        return tuple(c * lanes for c in counts if c * lanes <= extents[axis])

    return [
        Param("t", tuple(t for t in (1, 2, 3, 4, 6) if t <= extents[i]), "rows repeated in registers"),
        Param("b", (1, 2, 4, 8, 16), "register tiles of rows in a block"),
        Param("v", widths(d, 1, 2, 4), "width of the vectors of the output"),
        Param("w", widths(j, 1, 2), "width of the vectors of the scores"),
        Param("u", (1, 2, 4), "unrolling of the columns of the second product"),
        Param("k", tuple(k for k in (1, 2, 4, 8) if k <= extents[last]), "unrolling of the first product"),
    ]


def _constraints(target: Target, rows: int, columns: int, lanes: int) -> tuple[Constraint, ...]:
    def fits(c: Columns) -> Mask:
        registers = target.vector_registers
        out = c["t"] * -(-c["v"] // lanes) + -(-c["v"] // lanes) + 1 <= registers
        ok: Mask = out & (c["t"] * -(-c["w"] // lanes) + -(-c["w"] // lanes) + 1 <= registers)
        return ok

    return (
        Constraint("registers", f"both register tiles fit {target.vector_registers} vector registers", fits),
        Constraint("rows", "a block has no more rows than there are", lambda c: c["t"] * c["b"] < rows + c["t"]),
        Constraint(
            "strip",
            "the strip of a thread fits its second-level cache",
            lambda c: c["t"] * c["b"] * (8 * columns) <= max(target.l2_bytes, 1 << 18),
        ),
    )


def _scores_steps(s: PStage, i: str, j: str) -> list[Step | Open]:
    """The first contraction: a panel of columns at a time, all rows of the block."""
    reduce = [a for a, _ in s.reduce]
    last = reduce[-1]
    return [
        Open(s.name, j, ("w",)),
        Open(s.name, last, ("k",)),
        Unroll(s.name, f"{last}.1"),
        Vectorize(s.name, f"{j}.1"),
        Order(s.name, (f"{j}.0", f"{i}.1", *(f"{a}.0" for a in reduce), f"{last}.1", f"{i}.2", f"{j}.1")),
    ]


def _row_steps(s: PStage, i: str, j: str, lanes: int, columns: int) -> list[Step | Open]:
    """Row reductions with separate accumulators, and maps along the row; one row at a time. Four vectors in flight hide the
    latency of a function."""
    steps: list[Step | Open] = [Open(s.name, i, ("t*b", 1))]
    vectors = next(x for x in (4, 2, 1) if x * lanes <= columns)
    if s.reducer is not None and [a for a, _ in s.reduce] == [j]:
        return [
            *steps,
            Open(s.name, j, (vectors * lanes, lanes)),
            Order(s.name, (f"{i}.1", f"{i}.2", f"{j}.0", f"{j}.1", f"{j}.2")),
            Unroll(s.name, f"{j}.1"),
            Spread(s.name, f"{j}.1"),
            Vectorize(s.name, f"{j}.2"),
        ]
    if s.reducer is None and j in s.extents:
        return [
            *steps,
            Open(s.name, j, (vectors * lanes,)),
            Order(s.name, (f"{i}.1", f"{i}.2", f"{j}.0", f"{j}.1")),
            Vectorize(s.name, f"{j}.1"),
        ]
    return steps


@dataclass(frozen=True, slots=True)
class _Panel:
    """A factor that is read in panels of the vector axis: what does not vary with the rows."""

    stage: str
    factor: int
    axes: frozenset[str]
    inner: tuple[str, ...]

    def at(self, place: str, others: list[str]) -> Pack:
        """Packed before all loops, or at the last of the loops ``others``."""
        outer = [o for o in others if place == "root" and o.rsplit(".", 1)[0] in self.axes]
        return Pack(self.stage, self.factor, place, (*outer, *self.inner))


def _panel(s: PStage, vector: str, i: str, inner: list[str]) -> _Panel | None:
    """The factor of ``s`` that varies with the axis ``vector`` but not with the rows, with those of the loops ``inner`` it walks."""
    for k, factor in enumerate(product_factors(s.body)):
        used = variables(factor)
        if vector in used and i not in used and isinstance(factor, Load):
            walked = tuple(o for o in inner if o.rsplit(".", 1)[0] in used)
            return _Panel(s.name, k, frozenset(used), walked)
    return None
