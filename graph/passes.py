"""Passes: graph in, new graph out, with the same inputs, outputs and values.

They look at stages, never at operator names, so they work for whatever importer or user wrote the graph.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tilewright.graph.bounds import bound_indices
from tilewright.graph.dtypes import SIZES
from tilewright.graph.edits import eliminate_dead, rebuilt, retargeted
from tilewright.graph.folding import Folding, fold_constants
from tilewright.graph.graph import Graph
from tilewright.graph.scaling import fold_scaling
from tilewright.graph.simplify import simplify
from tilewright.graph.stage import Node, Stage, View
from tilewright.graph.views import absorb_unit_views, sink_views


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


def optimise(graph: Graph) -> Graph:
    """All passes, in the order that lets each see the result of the one before."""
    fold = Folding()
    clean = (simplify, fold, common_subexpressions, absorb_unit_views)
    for step in (eliminate_dead, fold, *clean, fold_scaling, *clean, sink_views, *clean):
        graph = step(graph)
    graph = bound_indices(graph)
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


__all__ = ["common_subexpressions", "count", "fold_constants", "optimise", "prepared"]
