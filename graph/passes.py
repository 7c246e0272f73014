"""Passes: graph in, new graph out, with the same inputs, outputs and values.

They look at stages, never at operator names, so they work for whatever importer or user wrote the graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.graph.affine import Affine, affine, make
from tilewright.graph.dtypes import FLOATS, SIZES, numpy_dtype
from tilewright.graph.evaluate import evaluate_nodes
from tilewright.graph.expr import Const, Expr, Load, Op, Var, cast, const, index, var
from tilewright.graph.graph import Array, Graph
from tilewright.graph.stage import Node, Stage, TensorType, View
from tilewright.graph.traverse import loads, rewrite, substitute

#: Results larger than this stay computed at run time.
FOLD_LIMIT = 64 << 20


def rebuilt(
    graph: Graph,
    nodes: Iterable[Node],
    constants: Mapping[str, Array],
    renamed: Mapping[str, str] | None = None,
) -> Graph:
    """A graph with the inputs and outputs of ``graph`` over other nodes and constants; ``renamed`` maps a
    tensor that is gone to the one that replaces it."""
    renamed = renamed or {}
    new = Graph(inputs=list(graph.inputs), constants=dict(constants), output_names=list(graph.output_names))
    new.types = {i: graph.types[i] for i in graph.inputs}
    new.types.update({c: TensorType(tuple(a.shape), a.dtype.name) for c, a in constants.items()})
    for n in nodes:
        new.nodes.append(n)
        new.types[n.output] = n.type
    new.outputs = [renamed.get(o, o) for o in graph.outputs]
    return new


def retargeted(node: Node, renamed: Mapping[str, str]) -> Node:
    """``node`` reading the replacements of the tensors it reads."""
    if not any(s in renamed for s in node.sources):
        return node
    if isinstance(node, View):
        return View(node.output, renamed[node.source], node.type, node.origin)
    return with_body(node, rename_loads(node.body, renamed))


def rename_loads(e: Expr, renamed: Mapping[str, str]) -> Expr:
    """``e`` with tensors replaced by name; shapes must agree."""

    def rule(n: Expr) -> Expr | None:
        if isinstance(n, Load) and n.tensor in renamed:
            return Load(n.dtype, renamed[n.tensor], tuple(rename_loads(i, renamed) for i in n.index))
        return None

    return rewrite(e, rule)


def with_body(s: Stage, body: Expr) -> Stage:
    """``s`` with another body."""
    return Stage(s.output, s.axes, body, s.reduce, s.reducer, s.origin)


def eliminate_dead(graph: Graph) -> Graph:
    """Drop nodes and constants that no output depends on. Inputs stay."""
    live = set(graph.outputs)
    kept: list[Node] = []
    for n in reversed(graph.nodes):
        if n.output in live:
            kept.append(n)
            live.update(n.sources)
    return rebuilt(graph, reversed(kept), {c: a for c, a in graph.constants.items() if c in live})


def fold_constants(graph: Graph, limit: int = FOLD_LIMIT) -> Graph:
    """Compute now what depends on constants only, rounding each result to its type once."""
    constants = dict(graph.constants)
    kept: list[Node] = []
    for n in graph.nodes:
        if n.type.nbytes <= limit and all(s in constants for s in n.sources):
            values: dict[str, Array] = {}
            for s in n.sources:
                wide = constants[s].dtype.kind == "f"
                values[s] = constants[s].astype(np.float64) if wide else constants[s]
            evaluate_nodes([n], values)
            with np.errstate(all="ignore"):
                result = values[n.output].astype(numpy_dtype(n.type.dtype))
            constants[n.output] = np.ascontiguousarray(result).reshape(n.type.shape)
        else:
            kept.append(n)
    return eliminate_dead(rebuilt(graph, kept, constants))


def common_subexpressions(graph: Graph) -> Graph:
    """Keep one of several nodes, or constants, that are equal but for their names."""
    renamed: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, array in graph.constants.items():
        digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()
        first = seen.setdefault((array.shape, array.dtype.name, digest), name)
        if first != name:
            renamed[name] = first
    kept: list[Node] = []
    for old in graph.nodes:
        n = retargeted(old, renamed)
        key: Any
        key = ("view", n.source, n.type.shape) if isinstance(n, View) else (n.axes, n.reduce, n.reducer, n.body)
        first = seen.setdefault(key, n.output)
        if first != n.output:
            renamed[n.output] = first
        else:
            kept.append(n)
    constants = {c: a for c, a in graph.constants.items() if c not in renamed}
    return rebuilt(graph, kept, constants, renamed)


def simplify(graph: Graph) -> Graph:
    """Algebraic clean-up: ``x * 1``, ``x + 0``, stages that only copy, views of views, moves of moves, and
    loads from constants whose elements are all equal."""
    constants = graph.constants
    uniform = {c: v for c, a in constants.items() if (v := _uniform(a)) is not None}
    renamed: dict[str, str] = {}
    made: dict[str, Node] = {}
    for old in graph.nodes:
        n = retargeted(old, renamed)
        if isinstance(n, Stage):
            n = _simplify_stage(n, made, uniform)
            n = _as_view(n, graph.types) or n
        if isinstance(n, View):
            source = made.get(n.source)
            if isinstance(source, View):
                n = View(n.output, source.source, n.type, n.origin)
            if graph.types[n.source] == n.type:
                renamed[n.output] = n.source
                continue
        made[n.output] = n
    return eliminate_dead(rebuilt(graph, made.values(), constants, renamed))


def _uniform(a: Array) -> Const | None:
    flat = a.reshape(-1)
    if flat.size == 0 or flat[0] != flat[-1] or not (flat == flat[0]).all():
        return None
    if a.dtype.kind == "f" and not (np.signbit(flat) == np.signbit(flat[0])).all():
        return None
    return const(flat[0].item(), a.dtype.name)


def _simplify_stage(s: Stage, made: Mapping[str, Node], uniform: Mapping[str, Const]) -> Stage:
    moves = {}
    for t in s.sources:
        p = made.get(t)
        if isinstance(p, Stage) and not p.reduce and isinstance(p.body, Load):
            moves[t] = p

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        if e.tensor in uniform and not s.reduce:
            return uniform[e.tensor]
        p = moves.get(e.tensor)
        if p is None or not isinstance(s.body, Load):
            return None
        return substitute(p.body, {a: i for (a, _), i in zip(p.axes, e.index, strict=True)})

    body = rewrite(s.body, rule)
    body = _algebra(body)
    return s if body == s.body else with_body(s, body)


def _algebra(e: Expr) -> Expr:
    memo: dict[Expr, Expr] = {}

    def go(n: Expr) -> Expr:
        done = memo.get(n)
        if done is None:
            done = memo[n] = _rule(n if not isinstance(n, Op) else Op(n.dtype, n.kind, tuple(go(a) for a in n.args)))
        return done

    return go(e)


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value


def _rule(e: Expr) -> Expr:
    if not isinstance(e, Op):
        return e
    a = e.args
    if e.kind in ("mul", "div") and _is(a[1], 1):
        return a[0]
    if e.kind in ("add", "sub") and _is(a[1], 0):
        return a[0]
    if (e.kind == "mul" and _is(a[0], 1)) or (e.kind == "add" and _is(a[0], 0)):
        return a[1]
    if e.kind == "neg" and isinstance(a[0], Op) and a[0].kind == "neg":
        return a[0].args[0]
    if e.kind == "cast":
        if isinstance(a[0], Const):
            return _cast_constant(a[0], e)
        if a[0].dtype == e.dtype:
            return a[0]
    if e.kind == "select":
        if isinstance(a[0], Const):
            return a[1] if a[0].value else a[2]
        if a[1] == a[2]:
            return a[1]
    return e


def _cast_constant(c: Const, e: Op) -> Expr:
    if e.dtype in FLOATS and isinstance(c.value, float):
        return const(float(np.float32(c.value)) if e.dtype == "float32" else c.value, e.dtype)
    return cast(c, e.dtype)


def _as_view(s: Stage, types: Mapping[str, TensorType]) -> View | None:
    """The view that equals ``s``, where it only copies all elements in order."""
    if s.reduce or not isinstance(s.body, Load):
        return None
    source = types[s.body.tensor]
    if source.size != s.type.size or source.dtype != s.body.dtype:
        return None
    ranges = {a: (0, e - 1) for a, e in s.axes}
    flat = Affine((), 0)
    for i, stride in zip(s.body.index, source.strides, strict=True):
        form = affine(i, ranges)
        if form is None:
            return None
        flat = flat + form.scale(stride)
    moving = {a for a, e in s.axes if e > 1}
    flat = make({v: c for v, c in flat.terms if v in moving}, flat.const)
    want = make({a: stride for (a, _), stride in zip(s.axes, s.type.strides, strict=True) if a in moving}, 0)
    return View(s.output, s.body.tensor, s.type, s.origin) if flat == want else None


def absorb_unit_views(graph: Graph) -> Graph:
    """Where a view only adds or drops dimensions of size 1 after a stage that nothing else reads, let the
    stage have that shape itself, so that what follows can fuse with it."""
    readers = {t: len(c) for t, c in graph.consumers().items()}
    made: dict[str, Node] = {}
    for n in graph.nodes:
        if isinstance(n, View) and readers[n.source] == 1 and n.source not in graph.outputs:
            source = made.get(n.source)
            if isinstance(source, Stage) and _reshapes_units(source, n):
                del made[n.source]
                made[n.output] = _with_shape(source, n)
                continue
        made[n.output] = n
    return rebuilt(graph, made.values(), graph.constants)


def _reshapes_units(s: Stage, v: View) -> bool:
    names = {f"i{k}" for k in range(len(v.type.shape))}
    squeezed = [[d for d in shape if d != 1] for shape in (s.type.shape, v.type.shape)]
    return squeezed[0] == squeezed[1] and names.isdisjoint(a for a, _ in s.reduce)


def _with_shape(s: Stage, v: View) -> Stage:
    """``s`` with the shape of ``v``, which has the same sizes other than 1 in the same order."""
    new: list[tuple[str, int]] = []
    values: dict[str, Expr] = {a: index(0) for a, extent in s.axes if extent == 1}
    old = list(s.axes)
    for k, d in enumerate(v.type.shape):
        while old and old[0][1] == 1 and d != 1:
            old.pop(0)
        if old and old[0][1] == d:
            values[old.pop(0)[0]] = var(f"i{k}")
        new.append((f"i{k}", d))
    return Stage(v.output, tuple(new), substitute(s.body, values), s.reduce, s.reducer, s.origin)


def sink_views(graph: Graph) -> Graph:
    """Where a map reads a view of a stage that nothing else reads, let the map have the shape of the stage and view its result
    instead, so that the two can fuse: ``f(view(s))`` -> ``view(f(s))``. Other tensors that the map reads are viewed alike, or
    read at affine positions of the new axes; where neither is possible the map stays as it is."""
    readers = {t: len(c) for t, c in graph.consumers().items()}
    shapes = {t: k.shape for t, k in graph.types.items()}
    made: dict[str, Node] = {}
    for n in graph.nodes:
        made[n.output] = n
        if not isinstance(n, Stage) or n.reduce:
            continue
        for v in (made.get(t) for t in n.sources):
            stage = made.get(v.source) if isinstance(v, View) else None
            if not isinstance(v, View) or not isinstance(stage, Stage):
                continue
            if readers[v.output] != 1 or readers[v.source] != 1 or {v.output, v.source} & set(graph.outputs):
                continue
            moved = _in_shape_of(n, v, stage, shapes)
            if moved is None:
                continue
            views, sunk = moved
            new: list[Node] = [*views, sunk]
            made.update((m.output, m) for m in new)
            shapes.update((m.output, m.type.shape) for m in new)
            readers |= {m.output: 1 for m in new}
            made[n.output] = made.pop(n.output)  # keep the order: what the view reads comes first
            made[n.output] = View(n.output, sunk.output, n.type, n.origin)
            break
    return eliminate_dead(rebuilt(graph, made.values(), graph.constants))


def _in_shape_of(
    s: Stage, v: View, stage: Stage, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[View], Stage] | None:
    """``s``, which reads the view ``v`` of ``stage`` at its own indices, over axes of the shape of ``stage``; and the views that
    it needs of other tensors."""
    own = tuple(var(a) for a, _ in s.axes)
    if s.type.shape != v.type.shape or any(e.index != own for e in loads(s.body) if e.tensor == v.output):
        return None
    axes = tuple((f"i{k}", e) for k, e in enumerate(stage.type.shape))
    ranges = {a: (0, e - 1) for a, e in axes}
    plain = tuple(var(a) for a, _ in axes)
    flat = make({a: stride for (a, _), stride in zip(axes, stage.type.strides, strict=True)}, 0).expr()
    position: dict[str, Expr] = {}
    for (a, extent), stride in zip(s.axes, s.type.strides, strict=True):
        found = affine(flat // stride % extent, ranges)
        if found is not None:
            position[a] = found.expr()
    views: list[View] = []
    fits = True

    def rule(e: Expr) -> Expr | None:
        nonlocal fits
        if isinstance(e, Var):
            fits = fits and e.name in position
            return position.get(e.name, e)
        if not isinstance(e, Load):
            return None
        if e.tensor == v.output:
            return Load(e.dtype, stage.output, plain)
        if e.index == own and shapes[e.tensor] == s.type.shape and any(a not in position for a, _ in s.axes):
            name = f"{e.tensor}_as_{stage.output}"
            views.append(View(name, e.tensor, TensorType(stage.type.shape, e.dtype), s.origin))
            return Load(e.dtype, name, plain)
        at = [affine(i, ranges) if position else None for i in (rewrite(i, rule) for i in e.index)]
        fits = fits and all(i is not None for i in at)
        return Load(e.dtype, e.tensor, tuple(i.expr() for i in at if i is not None))

    body = rewrite(s.body, rule)
    taken = {*shapes, *(w.output for w in views)}
    name = f"{s.output}_flat"
    while name in taken:
        name += "_"
    if not fits or any(w.output in shapes for w in views):
        return None
    return views, Stage(name, axes, body, (), None, s.origin)


def optimise(graph: Graph) -> Graph:
    """All passes, in the order that lets each see the result of the one before."""
    from tilewright.graph.scaling import fold_scaling

    clean = (simplify, fold_constants, common_subexpressions, absorb_unit_views)
    for step in (eliminate_dead, fold_constants, *clean, fold_scaling, *clean, sink_views, *clean):
        graph = step(graph)
    graph.clean = True
    return graph


def prepared(graph: Graph) -> Graph:
    """A graph as it is tuned and compiled: after the passes, which run here for a graph that was built by hand."""
    return graph if graph.clean else optimise(graph)


def count(graph: Graph) -> dict[str, int]:
    """How many stages with and without a reduction, views, and bytes of constants a graph has."""
    stages = [n for n in graph.nodes if isinstance(n, Stage)]
    return {
        "reductions": sum(bool(s.reduce) for s in stages),
        "maps": sum(not s.reduce for s in stages),
        "views": len(graph.nodes) - len(stages),
        "constant_bytes": sum(a.size * SIZES[a.dtype.name] for a in graph.constants.values()),
    }
