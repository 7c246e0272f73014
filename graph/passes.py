"""Passes: graph in, new graph out, with the same inputs, outputs and values.

They look at stages, never at operator names, so they work for whatever importer or user wrote the graph.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tilewright.graph.dtypes import SIZES, numpy_dtype
from tilewright.graph.edits import eliminate_dead, rebuilt, retargeted
from tilewright.graph.evaluate import evaluate_nodes
from tilewright.graph.graph import Array, Graph
from tilewright.graph.scaling import fold_scaling
from tilewright.graph.simplify import simplify
from tilewright.graph.stage import Node, Stage, View
from tilewright.graph.views import absorb_unit_views, sink_views

#: Results larger than this stay computed at run time.
FOLD_LIMIT = 64 << 20


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


def optimise(graph: Graph) -> Graph:
    """All passes, in the order that lets each see the result of the one before."""
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
