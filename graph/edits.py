"""What every pass does to a graph: other nodes in it, other names for tensors, nothing that no output needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.graph.expr import Expr, Load
from tilewright.graph.graph import Array, Graph
from tilewright.graph.stage import Node, Stage, TensorType, View
from tilewright.graph.traverse import rewrite


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
