"""Which results are computed once and kept: the limit that folding keeps to, in the importer and in the passes.

A constant of more than :data:`FOLD_LIMIT` bytes is kept only if it has no more elements than the stored data that it is computed
from. A table that a few numbers span (a broadcast value, a mask, a range) is then computed where the model runs, so that
a model is never much larger than what it was made from; weights that are cast, transposed or scaled fold, whatever their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.edits import eliminate_dead, rebuilt
from tilewright.graph.evaluate import evaluate_nodes
from tilewright.graph.graph import Array, Graph
from tilewright.graph.stage import Node, TensorType

FOLD_LIMIT = 4 << 20
"""Bytes up to which a constant is kept whatever it was computed from."""
WORK_LIMIT = 256 << 20
"""Bytes up to which an intermediate result may be computed on the way to a constant."""


def may_keep(nbytes: int, elements: int, stored: int, limit: int = FOLD_LIMIT) -> bool:
    """Whether a constant may be kept that is computed from ``stored`` elements of stored data."""
    return nbytes <= limit or elements <= stored


def constant_tensors(graph: Graph) -> set[str]:
    """The tensors that depend on no input, constants included."""
    known = set(graph.constants)
    for n in graph.nodes:
        if all(s in known for s in n.sources):
            known.add(n.output)
    return known


class Folding:
    """Computes now what depends on constants only, rounding each result to its type once. One object serves all passes over
    a model, so that what a constant was first computed from is not forgotten when it is folded again."""

    def __init__(self, limit: int = FOLD_LIMIT) -> None:
        self.limit = limit
        self._roots: dict[str, frozenset[str]] = {}
        self._elements: dict[str, int] = {}

    def __call__(self, graph: Graph) -> Graph:
        """The graph with constants in place of what they are computed by."""
        roots = {c: self._roots_of(c, a) for c, a in graph.constants.items()}
        computable = set(graph.constants)
        for n in graph.nodes:
            if all(s in roots for s in n.sources):
                roots[n.output] = frozenset().union(*(roots[s] for s in n.sources))
                small = may_keep(n.type.nbytes, n.type.size, self._stored(roots[n.output]), max(WORK_LIMIT, self.limit))
                if small and all(s in computable for s in n.sources):
                    computable.add(n.output)
        kept, needed = self._chosen(graph, roots, computable)
        constants = {**graph.constants, **_computed(graph, kept, needed)}
        self._roots |= {t: roots[t] for t in kept}
        return eliminate_dead(rebuilt(graph, [n for n in graph.nodes if n.output not in kept], constants))

    def _roots_of(self, name: str, array: Array) -> frozenset[str]:
        if name not in self._roots:
            self._roots[name] = frozenset((name,))
            self._elements[name] = array.size
        return self._roots[name]

    def _stored(self, roots: Iterable[str]) -> int:
        return sum(self._elements[r] for r in roots)

    def _chosen(
        self, graph: Graph, roots: Mapping[str, frozenset[str]], computable: set[str]
    ) -> tuple[set[str], set[str]]:
        """The tensors that become constants, and all that have to be computed for them. From the outputs back: what is used
        outside is kept if it may be, else what it is computed from is."""
        used = set(graph.outputs)
        kept: set[str] = set()
        needed: set[str] = set()
        for n in reversed(graph.nodes):
            if n.output in used:
                if n.output in computable and self._may_keep(n.type, roots[n.output]):
                    kept.add(n.output)
                else:
                    used.update(n.sources)
            if n.output in kept or n.output in needed:
                needed.add(n.output)
                needed.update(n.sources)
        return kept, needed

    def _may_keep(self, t: TensorType, roots: frozenset[str]) -> bool:
        return may_keep(t.nbytes, t.size, self._stored(roots), self.limit)


def _computed(graph: Graph, kept: set[str], needed: set[str]) -> dict[str, Array]:
    values: dict[str, Array] = {c: _wide(a) for c, a in graph.constants.items() if c in needed}
    nodes = [n for n in graph.nodes if n.output in needed]
    last: dict[str, Node] = {s: n for n in nodes for s in n.sources}
    out: dict[str, Array] = {}
    for n in nodes:
        evaluate_nodes([n], values)
        with np.errstate(all="ignore"):
            result = values[n.output].astype(numpy_dtype(n.type.dtype))
        if n.output in kept:
            out[n.output] = np.ascontiguousarray(result).reshape(n.type.shape)
        values[n.output] = _wide(result)
        for s in n.sources:
            if last[s] is n:
                values.pop(s, None)
    return out


def _wide(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind == "f" else a


def fold_constants(graph: Graph, limit: int = FOLD_LIMIT) -> Graph:
    """One pass of :class:`Folding`."""
    return Folding(limit)(graph)


def computed_constant(graph: Graph, name: str) -> Array | None:
    """The value of a tensor of ``graph``, if it depends on constants only and can be computed within the limit of work."""
    alone = rebuilt(graph, graph.nodes, graph.constants)
    alone.outputs, alone.output_names = [name], [name]
    alone = eliminate_dead(alone)
    wanted = {name} if any(n.output == name for n in alone.nodes) else set()
    if any(s in graph.inputs for n in alone.nodes for s in n.sources) or name in graph.inputs:
        return None
    if any(n.type.nbytes > WORK_LIMIT for n in alone.nodes):
        return None
    needed = {n.output for n in alone.nodes} | set(alone.constants)
    return _computed(alone, wanted, needed)[name] if wanted else graph.constants[name]
