"""Indices that are data: what is not known to lie inside a tensor is looked at when it is used.

A load whose index comes from other tensors may ask for any place. Where interval arithmetic does not show that it lies inside, the
index ``e`` becomes ``bounded(e, n)``: ``e`` itself from 0 up to ``n``, and elsewhere 0 and an error of the call, which names the
operator, the index and the range. So no other memory is ever touched.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.dtypes import FLOATS, int_range
from tilewright.graph.edits import rebuilt, with_body
from tilewright.graph.expr import COMPARE, Const, Expr, Load, Op, Var, binary
from tilewright.graph.graph import Graph
from tilewright.graph.ordered import Select
from tilewright.graph.stage import Node, Stage, View
from tilewright.graph.traverse import loads, postorder, rewrite

Range = tuple[float, float]
UNKNOWN: Range = (float("-inf"), float("inf"))


def bound_indices(graph: Graph) -> Graph:
    """The graph with every index that may lie outside of its tensor bounded."""
    known: dict[str, Range] = {}
    for name, array in graph.constants.items():
        if array.dtype.kind in "iub" and array.size:
            known[name] = float(array.min()), float(array.max())
    nodes: list[Node] = []
    changed = False
    for n in graph.nodes:
        if isinstance(n, View):
            if n.source in known:
                known[n.output] = known[n.source]
            nodes.append(n)
            continue
        body = _bounded(n, graph, known)
        changed = changed or body is not n.body
        nodes.append(n if body is n.body else with_body(n, body))
        found = _of_stage(n, known)
        if found != UNKNOWN:
            known[n.output] = found
    return rebuilt(graph, nodes, graph.constants) if changed else graph


def _bounded(s: Stage, graph: Graph, known: Mapping[str, Range]) -> Expr:
    memo: dict[Expr, Expr] = {}

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or not any(loads(i) for i in e.index):
            return None
        index = []
        for i, extent in zip(e.index, graph.types[e.tensor].shape, strict=True):
            inside = rewrite(i, rule, memo)
            low, high = interval(i, s, known)
            free = not loads(i) or (low >= 0 and high < extent) or (isinstance(i, Op) and i.kind == "bounded")
            index.append(inside if free else binary("bounded", inside, extent))
        return e if tuple(index) == e.index else Load(e.dtype, e.tensor, tuple(index))

    return rewrite(s.body, rule, memo)


def _of_stage(s: Stage, known: Mapping[str, Range]) -> Range:
    """What an integer stage may hold."""
    if isinstance(s.reducer, Select):
        return 0, s.reduce[0][1] - 1
    if s.body.dtype in FLOATS or s.reducer not in (None, "max", "min"):
        return UNKNOWN
    return interval(s.body, s, known)


def interval(e: Expr, s: Stage, known: Mapping[str, Range]) -> Range:
    """What an integer expression of a stage may be, both ends included; ``known`` says it for tensors."""
    found: dict[Expr, Range] = {}
    for n in postorder(e):
        found[n] = _interval(n, s, known, found)
    return found[e]


def _interval(e: Expr, s: Stage, known: Mapping[str, Range], found: Mapping[Expr, Range]) -> Range:
    whole: Range = UNKNOWN if e.dtype in FLOATS else (0, 1) if e.dtype == "bool" else int_range(e.dtype)
    if isinstance(e, Const):
        value = float(e.value)
        return (value, value) if value == value else UNKNOWN
    if isinstance(e, Var):
        return 0, s.extents[e.name] - 1
    if isinstance(e, Load):
        return known.get(e.tensor, whole)
    assert isinstance(e, Op)
    a = [found[x] for x in e.args]
    low, high = _operated(e, a, whole)
    if e.dtype not in FLOATS and (low < whole[0] or high > whole[1]):
        return whole  # it may wrap around
    return low, high


def _operated(e: Op, a: list[Range], whole: Range) -> Range:
    if e.kind == "select":
        settled = _settled(e.args[0], a[0])
        return a[1] if settled is True else a[2] if settled is False else (min(a[1][0], a[2][0]), max(a[1][1], a[2][1]))
    if e.kind in COMPARE:
        return _compared(e.kind, *a)
    if e.kind == "add":
        return a[0][0] + a[1][0], a[0][1] + a[1][1]
    if e.kind == "sub":
        return a[0][0] - a[1][1], a[0][1] - a[1][0]
    if e.kind == "mul":
        ends = [0.0 if x == 0 or y == 0 else x * y for x in a[0] for y in a[1]]
        return min(ends), max(ends)
    if e.kind == "max":
        return max(a[0][0], a[1][0]), max(a[0][1], a[1][1])
    if e.kind == "min":
        return min(a[0][0], a[1][0]), min(a[0][1], a[1][1])
    if e.kind == "mod" and a[1][0] == a[1][1] and a[1][0] > 0:
        return 0, a[1][0] - 1
    if e.kind == "bounded":
        return max(a[0][0], 0), min(a[0][1], a[1][1] - 1)
    if e.kind == "cast" and e.args[0].dtype not in FLOATS:
        return a[0]
    return whole


def _settled(condition: Expr, found: Range) -> bool | None:
    return None if found[0] != found[1] else bool(found[0])


def _compared(kind: str, a: Range, b: Range) -> Range:
    """What a comparison may give."""
    always = {
        "lt": a[1] < b[0],
        "le": a[1] <= b[0],
        "eq": a[0] == a[1] == b[0] == b[1],
        "ne": a[1] < b[0] or b[1] < a[0],
    }
    never = {
        "lt": a[0] >= b[1],
        "le": a[0] > b[1],
        "eq": a[1] < b[0] or b[1] < a[0],
        "ne": a[0] == a[1] == b[0] == b[1],
    }
    return (1, 1) if always[kind] else (0, 0) if never[kind] else (0, 1)
