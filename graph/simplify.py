"""Algebraic clean-up of stages, and stages that only move elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.graph.dtypes import FLOATS
from tilewright.graph.edits import eliminate_dead, rebuilt, retargeted, with_body
from tilewright.graph.expr import Const, Expr, Load, Op, cast, const
from tilewright.graph.graph import Array, Graph
from tilewright.graph.moves import as_view
from tilewright.graph.stage import Node, Stage, View
from tilewright.graph.traverse import postorder, rewrite, substitute


def simplify(graph: Graph) -> Graph:
    """Algebraic clean-up: ``x * 1``, ``x + 0``, stages that only copy, views of views, moves of moves, and
    loads from tensors whose elements are all equal."""
    constants = graph.constants
    uniform = {c: v for c, a in constants.items() if (v := _uniform(a)) is not None}
    renamed: dict[str, str] = {}
    made: dict[str, Node] = {}
    for old in graph.nodes:
        n = retargeted(old, renamed)
        if isinstance(n, Stage):
            n = _simplify_stage(n, made, uniform)
            n = as_view(n, graph.types) or n
        if isinstance(n, View):
            source = made.get(n.source)
            if isinstance(source, View):
                n = View(n.output, source.source, n.type, n.origin)
            if n.source in uniform:
                uniform[n.output] = uniform[n.source]
            if graph.types[n.source] == n.type:
                renamed[n.output] = n.source
                continue
        made[n.output] = n
        if isinstance(n, Stage) and not n.reduce and isinstance(n.body, Const):
            uniform[n.output] = n.body
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
    done: dict[Expr, Expr] = {}
    for n in postorder(e):
        done[n] = _rule(Op(n.dtype, n.kind, tuple(done[a] for a in n.args)) if isinstance(n, Op) else n)
    return done[e]


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
    if e.dtype not in FLOATS and (settled := _settled(e)) is not None:
        return settled
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


def _settled(e: Op) -> Expr | None:
    """What an operation on integers or booleans gives whatever one operand is. (For floating-point numbers there is no such: NaN
    passes through.)"""
    a = e.args
    if len(a) != 2 or a[0].dtype in FLOATS:
        return None
    if e.kind in ("sub", "xor", "bitxor") and a[0] == a[1]:
        return const(0, e.dtype)
    for x in a:
        if e.kind in ("mul", "and", "bitand") and _is(x, 0):
            return const(0, e.dtype)
        if e.kind == "or" and _is(x, 1):
            return x
    return None


def _cast_constant(c: Const, e: Op) -> Expr:
    if e.dtype in FLOATS and isinstance(c.value, float):
        return const(float(np.float32(c.value)) if e.dtype == "float32" else c.value, e.dtype)
    return cast(c, e.dtype)
