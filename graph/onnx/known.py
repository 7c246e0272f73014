"""Computing a node all of whose inputs are known at import.

A result is computed at once unless it is large and has more elements than the stored data (initializers, constants,
given values) that it comes from: then it becomes stages like the result of any other node, and is computed where the
model runs (:mod:`tilewright.graph.folding` has the limit).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.graph.dtypes import SIZES, GraphError, numpy_dtype
from tilewright.graph.evaluate import evaluate
from tilewright.graph.folding import WORK_LIMIT, may_keep
from tilewright.graph.graph import Array, Graph, Tensor
from tilewright.graph.onnx.context import OPERATORS, Constants, Node, Value, dtype_name
from tilewright.graph.onnx.folding import FOLD

_NO_MEMORY = frozenset({"Expand", "Identity", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Foldings whose result is a view of their input."""
_REDUCING = frozenset({"ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"})
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Equal", "Where"})


class Known:
    """Known values, and from how many elements of stored data each was computed."""

    def __init__(self) -> None:
        self._roots: dict[int, tuple[Array, frozenset[int]]] = {}

    def stored(self, a: Array) -> Array:
        """``a``, which the model holds or its user gave."""
        self._roots[id(a)] = (a, frozenset((id(a),)))
        return a

    def compute(self, node: Node) -> list[Value | None]:
        """The outputs of a node without run-time inputs: arrays, or tensors of its graph where those would be too large."""
        arrays = [v for v in node.inputs if v is not None and not isinstance(v, Tensor)]
        roots = frozenset[int]().union(*(self._roots[id(a)][1] for a in arrays if id(a) in self._roots))
        stored = sum(self._roots[r][0].size for r in roots)
        results = self._folded(node, stored) if node.proto.op_type in FOLD else self._evaluated(node, stored)
        for r in results:
            if isinstance(r, np.ndarray) and not any(r is a for a in arrays):
                self._roots[id(r)] = (r, roots if arrays else frozenset((id(r),)))
        return results

    def _folded(self, node: Node, stored: int) -> list[Value | None]:
        kind = node.proto.op_type
        arrays: list[Any] = list(node.inputs)
        try:
            size, nbytes = _extent(node, arrays)
            if not may_keep(nbytes, size, stored):
                if kind in OPERATORS and all(a is None or a.dtype.name in SIZES for a in arrays):
                    return listed(OPERATORS[kind](node))
                if not may_keep(nbytes, size, stored, WORK_LIMIT):
                    raise GraphError(f"its result of {nbytes} bytes is too large to compute when the model is imported")
            with np.errstate(all="ignore"):
                return [np.asarray(FOLD[kind](node, *arrays))]
        except (ValueError, IndexError) as e:
            raise GraphError(str(e)) from e

    def _evaluated(self, node: Node, stored: int) -> list[Value | None]:
        alone = Graph()
        results = listed(OPERATORS[node.proto.op_type](node.within(Constants(alone))))
        made = [r for r in results if isinstance(r, Tensor)]
        keep = all(may_keep(r.type.nbytes, r.type.size, stored) for r in made)
        if not keep or any(not may_keep(n.type.nbytes, n.type.size, stored, WORK_LIMIT) for n in alone.nodes):
            return listed(OPERATORS[node.proto.op_type](node))
        for r in made:
            alone.output(r)
        computed = iter(evaluate(alone, {}))
        return [next(computed).astype(numpy_dtype(r.dtype)) if isinstance(r, Tensor) else r for r in results]


def _extent(node: Node, arrays: list[Any]) -> tuple[int, int]:
    """Elements and bytes that a folding makes, or for a reduction goes through."""
    kind = node.proto.op_type
    first = next(a for a in arrays if a is not None)
    if kind in _NO_MEMORY:
        return 0, 0
    width = first.dtype.itemsize
    if kind in _BROADCASTING:
        size = math.prod(np.broadcast_shapes(*(a.shape for a in arrays)))
        width = {"Equal": 1, "Where": arrays[-1].dtype.itemsize}.get(kind, width)
    elif kind == "Gather" and first.ndim:
        size = arrays[1].size * first.size // max(1, first.shape[node.integer("axis", 0)])
    elif kind == "Concat":
        size = sum(a.size for a in arrays)
    else:
        size = first.size
        if kind == "Cast":
            width = np.dtype(dtype_name(node.integer("to", 0))).itemsize
        elif kind == "NonZero":
            size, width = size * max(1, first.ndim), 8
        elif kind == "DequantizeLinear":
            width = 4
    return size, (0 if kind in _REDUCING and size * width <= WORK_LIMIT else size * width)


def listed(result: Any) -> list[Value | None]:
    """The outputs of a translation, which may return a single one as it is."""
    return list(result) if isinstance(result, (list, tuple)) else [result]
