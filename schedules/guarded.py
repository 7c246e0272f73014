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
from dataclasses import replace

from tilewright.graph.expr import Const, Expr, Load, Op, all_of, const, unary, var
from tilewright.graph.stage import Stage, View
from tilewright.graph.traverse import loads, rewrite
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
from tilewright.schedules.winograd import convolution

LARGEST = {"float32": 2.0**40, "float64": 2.0**400}
"""Magnitudes below this go through the transforms, the products and their sums without an overflow."""
LANES, UNROLLED = 16, 4
FAR, MOST, DIRECT = "_far", "_most", "_direct"

Apply = Callable[[Workload, Schedule], Program]


def guarded(workload: Workload, steps: Sequence[Winograd], main: Program, apply: Apply) -> Program:
    """``main``, the program of a schedule with ``steps``, behind its check, with the direct form for what does not pass it."""
    constants = {n for n, _, c in workload.inputs if c}
    stages = {s.output: s for s in resolve_views(workload)}
    checks: list[Program] = []
    conditions: list[Expr] = []
    once: list[bool] = []
    for tensor, name in _operands(stages, steps):
        own = _check_workload(workload, tensor, name)
        checks.append(apply(own, _check_schedule(own)))
        dtype = workload.types[tensor].dtype
        conditions.append(Load(dtype, own.output, (const(0, "int64"),)).lt(LARGEST[dtype]))
        once.append({n for n, _, _ in own.inputs} <= constants)
    direct = _renamed(_direct(workload, apply), workload)
    packed, shared = list(main.packed), list(main.shared)
    prepare: list[Node] = [main.prepare, direct.prepare]
    body: list[Node] = []
    for program, first in zip(checks, once, strict=True):
        check(not program.packed, f"{program.output.name}: expected a check that packs nothing")
        scope = "packed" if first else "shared"
        result = Buffer(program.output.name, program.output.size, program.output.dtype, scope)
        (packed if first else shared).append(result)
        (packed if first else shared).extend(replace(b, scope=scope) for b in program.shared)
        (prepare if first else body).append(program.body)
    choice = If(all_of(conditions), main.body, direct.body)
    return Program(
        main.inputs,
        main.output,
        (*packed, *direct.packed),
        (*shared, *direct.shared),
        seq(prepare),
        seq([*body, choice]),
    )


def _operands(stages: Mapping[str, Stage], steps: Sequence[Winograd]) -> list[tuple[str, str]]:
    """The tensors that the transforms read, each with a name for its check. Of a tensor with a border of a constant it is the one
    inside."""
    found: dict[str, str] = {}
    for step in steps:
        form = convolution(stages[step.stage])
        assert form is not None
        for e in (form.data, form.weights):
            for tensor in dict.fromkeys(x.tensor for x in loads(e)):
                inside = _without_border(stages, tensor)
                found.setdefault(inside, f"{step.stage}_{len(found)}")
    return list(found.items())


def _without_border(stages: Mapping[str, Stage], tensor: str) -> str:
    s = stages.get(tensor)
    if s is None or s.reducer is not None or not isinstance(s.body, Op) or s.body.kind != "select":
        return tensor
    inside, border = s.body.args[1], s.body.args[2]
    if isinstance(inside, Load) and isinstance(border, Const) and not loads(s.body.args[0]):
        return _without_border(stages, inside.tensor)
    return tensor


def _check_workload(workload: Workload, tensor: str, name: str) -> Workload:
    """The largest magnitude of a tensor: of the rows of its last two dimensions, and of all."""
    t = workload.types[tensor]
    rank = len(t.shape)
    kept = max(rank - 2, 1 if rank > 1 else 0)
    needed = {tensor}
    nodes = []
    for node in reversed(workload.nodes):
        if node.output in needed:
            nodes.append(node)
            needed |= set(node.sources)
    axes = tuple((f"i{k}", d) for k, d in enumerate(t.shape[:kept]))
    inner = tuple((f"r{k}", d) for k, d in enumerate(t.shape[kept:]))
    index = tuple(var(a) for a, _ in axes + inner)
    far = Stage(name + FAR, axes, unary("abs", Load(t.dtype, tensor, index)), inner, "max" if inner else None)
    made: list[Stage | View] = [*reversed(nodes), far]
    output = far.output
    if axes:
        rows = tuple((f"r{k}", d) for k, (_, d) in enumerate(axes))
        body = Load(t.dtype, far.output, tuple(var(a) for a, _ in rows))
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
    """The program of the sums as they are written: vectors along the last axis, the other axes of the output in parallel."""
    steps: list[Step] = []
    for p in phases(workload, Schedule()):
        leader = p.leader
        if not leader.axes:
            continue
        axis, extent = leader.axes[-1]
        steps += [Split(leader.name, axis, (min(LANES, extent),)), Vectorize(leader.name, f"{axis}.1")]
        if len(leader.axes) > 1:
            steps.append(Parallel(leader.name, len(leader.axes) - 1))
        for s in p.stages[:-1]:
            if axis in dict(s.axes):
                steps.append(Order(s.name, (*(f"{a}.0" for a, _ in s.reduce), f"{axis}.1")))
    try:
        return apply(workload, Schedule(tuple(steps)))
    except ScheduleError:
        return apply(workload, Schedule())


def _renamed(program: Program, workload: Workload) -> Program:
    """A program with names of its own for all buffers but the inputs and the output."""
    outside = {n for n, _, _ in workload.inputs} | {workload.output}

    def name(old: str) -> str:
        return old if old in outside else old + DIRECT

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
