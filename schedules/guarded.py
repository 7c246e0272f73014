"""Algorithms that hold for ordinary numbers only, and what is computed for all others.

Minimal filtering (:mod:`~tilewright.schedules.winograd`) adds and subtracts neighbours: one NaN or infinity would spread to a tile,
and numbers near the largest would overflow where the sum as it is written does not. So a kernel that uses it first looks for the
largest magnitude of what the transforms read, and where that is not far below overflow it runs the direct form instead::

    t1_far[c] = max(|x[c, h, w]|); t1_most = max(t1_far[c])
    if t1_most < 2**40: (the algorithm) else: (the sum as it is written)

Constant operands are looked at once, when the program is prepared. The direct form has plain vector loops: it is there to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilewright.graph.expr import Const, Expr, Load, Op, all_of, const, unary, var
from tilewright.graph.stage import Stage, View
from tilewright.graph.traverse import loads, rewrite, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.nest import (
    Alloc,
    Buffer,
    Fetch,
    If,
    Loop,
    Node,
    Note,
    Pick,
    Prefix,
    Program,
    Seq,
    Store,
    seq,
)
from tilewright.schedules.phases import phases
from tilewright.schedules.rewrites import resolve_views
from tilewright.schedules.steps import (
    Order,
    Parallel,
    Schedule,
    ScheduleError,
    Split,
    Spread,
    Step,
    Unroll,
    Vectorize,
    Winograd,
    check,
)
from tilewright.schedules.winograd import WINDOW, convolution

LARGEST = {"float32": 2.0**40, "float64": 2.0**400}
"""Magnitudes below this go through the transforms, the products and their sums without an overflow."""
LANES, UNROLLED = 16, 4
FAR, MOST, DIRECT = "_far", "_most", "_direct"

Apply = Callable[[Workload, Schedule], Program]


@dataclass(frozen=True, slots=True)
class _Case:
    """What stands around an algorithm depends on the workload and the stages only: all candidates of a sketch have it in common."""

    workload_hash: str
    stages: tuple[str, ...]
    apply: Apply
    workload: Workload = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Around:
    """The programs that look at the operands, each with its condition and whether it runs but once; and the direct form."""

    checks: tuple[tuple[Program, Expr, bool], ...]
    direct: Program


def guarded(workload: Workload, steps: Sequence[Winograd], main: Program, apply: Apply) -> Program:
    """``main``, the program of a schedule with ``steps``, behind its check, with the direct form for what does not pass it."""
    around = _around(_Case(workload.hash, tuple(s.stage for s in steps), apply, workload))
    direct = around.direct
    packed, shared = list(main.packed), list(main.shared)
    prepare: list[Node] = [main.prepare, direct.prepare]
    body: list[Node] = []
    for program, _, first in around.checks:
        scope = "packed" if first else "shared"
        result = Buffer(program.output.name, program.output.size, program.output.dtype, scope)
        (packed if first else shared).append(result)
        (packed if first else shared).extend(replace(b, scope=scope) for b in program.shared)
        (prepare if first else body).append(program.body)
    choice = If(all_of([condition for _, condition, _ in around.checks]), main.body, direct.body)
    return Program(
        main.inputs,
        main.output,
        (*packed, *direct.packed),
        (*shared, *direct.shared),
        seq(prepare),
        seq([*body, choice]),
    )


@lru_cache(maxsize=64)
def _around(of: _Case) -> _Around:
    workload, apply = of.workload, of.apply
    constants = {n for n, _, c in workload.inputs if c}
    checks: list[tuple[Program, Expr, bool]] = []
    for number, operand in enumerate(_operands(workload, of.stages)):
        own = _check_workload(workload, operand, f"{operand.output}_{number}")
        program = _renamed(apply(own, _check_schedule(own)), own, f"_{number}{FAR}")
        check(not program.packed, f"{program.output.name}: expected a check that packs nothing")
        dtype = operand.body.dtype
        condition = Load(dtype, own.output, (const(0, "int64"),)).lt(LARGEST[dtype])
        checks.append((program, condition, {n for n, _, _ in own.inputs} <= constants))
    return _Around(tuple(checks), _renamed(_direct(workload, apply), workload, DIRECT))


def _operands(workload: Workload, names: Sequence[str]) -> list[Stage]:
    """What the transforms of the named stages read: stages without a reducer, each named as the one it is an operand of. An operand
    that is an element of a tensor is that tensor (inside its border, if that is of an ordinary constant); one that is computed
    (``exp(x)``, a product, a number cast from an integer) is every value that the windows meet."""
    stages = {s.output: s for s in resolve_views(workload)}
    found: dict[Expr, Stage] = {}
    for name in names:
        stage = stages[name]
        form = convolution(stage)
        assert form is not None
        places = {w.axis: w.extent + WINDOW - 1 for w in form.windows}
        for e in (form.data, form.weights):
            if isinstance(e, Load):
                t = workload.types[tensor := _without_border(stages, e.tensor)]
                axes = tuple((f"i{k}", d) for k, d in enumerate(t.shape))
                e = Load(e.dtype, tensor, tuple(var(a) for a, _ in axes))
            else:
                used = variables(e)
                axes = tuple((a, places.get(a, d)) for a, d in stage.axes + stage.reduce if a in used)
            found.setdefault(e, Stage(name, axes, e))
    return list(found.values())


def _without_border(stages: Mapping[str, Stage], tensor: str) -> str:
    s = stages.get(tensor)
    if s is None or s.reducer is not None or not isinstance(s.body, Op) or s.body.kind != "select":
        return tensor
    inside, border = s.body.args[1], s.body.args[2]
    if isinstance(inside, Load) and isinstance(border, Const) and not loads(s.body.args[0]):
        ordinary = abs(float(border.value)) < LARGEST[s.body.dtype]  # NaN is not
        return _without_border(stages, inside.tensor) if ordinary else tensor
    return tensor


def _check_workload(workload: Workload, operand: Stage, name: str) -> Workload:
    """The largest magnitude of an operand: of the rows along its last two axes, and of all."""
    rank = len(operand.axes)
    kept = max(rank - 2, 1 if rank > 1 else 0)
    axes, inner = operand.axes[:kept], operand.axes[kept:]
    far = Stage(name + FAR, axes, unary("abs", operand.body), inner, "max" if inner else None)
    needed = set(far.sources)
    nodes: list[Stage | View] = []
    for node in reversed(workload.nodes):
        if node.output in needed:
            nodes.append(node)
            needed |= set(node.sources)
    made: list[Stage | View] = [*reversed(nodes), far]
    output = far.output
    if axes:
        rows = tuple((f"r{k}", d) for k, (_, d) in enumerate(axes))
        body = Load(far.body.dtype, far.output, tuple(var(a) for a, _ in rows))
        made.append(Stage(name + MOST, (), body, rows, "max"))
        output = name + MOST
    return Workload(tuple(i for i in workload.inputs if i[0] in needed), tuple(made), output)


def _check_schedule(workload: Workload) -> Schedule:
    """Rows shared by the threads, several vectors of a row at a time."""
    steps: list[Step] = []
    for p in phases(workload, Schedule()):
        leader = p.leader
        for s in p.stages[:-1]:
            if s.reduce and (extent := s.reduce[-1][1]) >= LANES:
                axis = s.reduce[-1][0]
                count = min(UNROLLED, extent // LANES)
                steps += [
                    Split(s.name, axis, (count * LANES, LANES)),
                    Unroll(s.name, f"{axis}.1"),
                    Spread(s.name, f"{axis}.1"),
                    Vectorize(s.name, f"{axis}.2"),
                ]
        if leader.axes:
            steps.append(Parallel(leader.name, len(leader.axes)))
    return Schedule(tuple(steps))


def _direct(workload: Workload, apply: Apply) -> Program:
    """The program of the sums as they are written: vectors along the last axis, several rows of them in registers for a sum, and the
    axes around in parallel."""
    steps: list[Step] = []
    for p in phases(workload, Schedule()):
        leader = p.leader
        if not leader.axes:
            continue
        (axis, extent), around = leader.axes[-1], [a for a, _ in leader.axes[:-1]]
        tile = [f"{axis}.1"]
        steps += [Split(leader.name, axis, (min(LANES, extent),)), Vectorize(leader.name, tile[0])]
        if around and any(s.reduce for s in p.stages):
            row, rows = leader.axes[-2]
            tile = [f"{row}.1", *tile]
            steps += [Split(leader.name, row, (min(UNROLLED, rows),)), Unroll(leader.name, tile[0])]
        steps.append(Order(leader.name, (*(f"{a}.0" for a in (*around, axis)), *tile)))
        steps.append(Parallel(leader.name, max(1, len(around))))
        for s in p.stages[:-1]:
            if {a for a, _ in leader.axes[-len(tile) :]} <= set(s.extents):
                steps.append(Order(s.name, (*(f"{a}.0" for a, _ in s.reduce), *tile)))
    try:
        return apply(workload, Schedule(tuple(steps)))
    except ScheduleError:
        return apply(workload, Schedule())


def _renamed(program: Program, workload: Workload, suffix: str) -> Program:
    """A program with names of its own for all buffers but the inputs and the output: parts of one kernel share a list of buffers."""
    outside = {n for n, _, _ in workload.inputs} | {workload.output}

    def name(old: str) -> str:
        return old if old in outside else old + suffix

    def expr(e: Expr) -> Expr:
        def rule(n: Expr) -> Expr | None:
            if isinstance(n, Load) and n.tensor not in outside:
                return Load(n.dtype, name(n.tensor), tuple(rewrite(i, rule) for i in n.index))
            return None

        return rewrite(e, rule)

    def buffer(b: Buffer) -> Buffer:
        return replace(b, name=name(b.name))

    def node(n: Node) -> Node:
        if isinstance(n, Seq):
            return Seq(tuple(node(c) for c in n.nodes))
        if isinstance(n, Loop):
            return replace(n, body=node(n.body))
        if isinstance(n, If):
            return If(expr(n.condition), node(n.then), node(n.otherwise) if n.otherwise is not None else None)
        if isinstance(n, Alloc):
            return Alloc(buffer(n.buffer), node(n.body))
        if isinstance(n, Store):
            return replace(n, tensor=name(n.tensor), value=expr(n.value))
        if isinstance(n, Prefix):
            return replace(n, tensor=name(n.tensor), carry=name(n.carry), value=expr(n.value))
        if isinstance(n, Pick):
            return replace(n, tensor=name(n.tensor), heap=name(n.heap), value=expr(n.value))
        assert isinstance(n, Fetch | Note)
        return replace(n, tensor=name(n.tensor)) if isinstance(n, Fetch) else n

    packed, shared = (tuple(buffer(b) for b in bs) for bs in (program.packed, program.shared))
    return replace(program, packed=packed, shared=shared, prepare=node(program.prepare), body=node(program.body))
