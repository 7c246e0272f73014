"""ONNX models to graphs.

One walk over the nodes. What is known already (weights, shapes and whatever follows from them) is computed
with NumPy at once, so that shape arithmetic vanishes; the rest becomes stages through the registry of
:mod:`.context`. A node without a translation does not stop the walk: all of them are named together in one
error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph import passes
from tilewright.graph.dtypes import GraphError, numpy_dtype
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.onnx import neural, simple, tensors  # noqa: F401  (they fill the registry)
from tilewright.graph.onnx.bind import bind_inputs
from tilewright.graph.onnx.check import check_node
from tilewright.graph.onnx.context import OPERATORS, Constants, ImportFailure, Node, UnsupportedError, Value
from tilewright.graph.onnx.files import expand_functions, read_model
from tilewright.graph.onnx.folding import FOLD

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_DEFAULT_DOMAINS = ("", "ai.onnx")


class _Missing:
    """The value of a tensor whose producer has no translation."""


_MISSING = _Missing()
_Scope = dict[str, "Value | _Missing"]


def import_onnx(
    source: str | os.PathLike[str] | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimise: bool = True,
) -> Graph:
    """Import an ONNX model.

    ``source`` is a path or a ``ModelProto``; ``shapes`` binds the inputs that have dynamic dimensions, by
    name. The graph is optimised (:func:`tilewright.graph.passes.optimise`) unless told otherwise.

    Raises :class:`ImportFailure` if the file is broken or an input is not bound, and
    :class:`UnsupportedError` naming every node that has no translation.
    """
    model = expand_functions(read_model(source), {*OPERATORS, *FOLD, "If"})
    walk = _Walk(model, shapes or {})
    graph = walk.run()
    return passes.optimise(graph) if optimise else graph


class _Walk:
    def __init__(self, model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
        self.model = model
        self.graph = Graph()
        self.constants = Constants(self.graph)
        self.unsupported: list[str] = []
        self.opset = max([o.version for o in model.opset_import if o.domain in _DEFAULT_DOMAINS], default=1)
        self.shapes = shapes

    def run(self) -> Graph:
        scope: _Scope = {}
        self._initializers(self.model.graph, scope)
        scope.update(bind_inputs(self.graph, self.model.graph, self.shapes, set(scope)))
        self._nodes(self.model.graph, scope)
        results = [(o.name, scope.get(o.name)) for o in self.model.graph.output]
        if self.unsupported:
            raise UnsupportedError(self.unsupported)
        for name, value in results:
            if value is None or isinstance(value, _Missing):
                raise ImportFailure(f"output {name!r} is not computed by any node")
            if not isinstance(value, Tensor) and value.size == 0:
                raise ImportFailure(f"output {name!r} is empty (shape {value.shape}): there is nothing to compute")
            self.graph.output(value if isinstance(value, Tensor) else self.constants.tensor(value, name), name)
        return self.graph

    def _initializers(self, graph: GraphProto, scope: _Scope) -> None:
        from onnx import numpy_helper

        for t in graph.initializer:
            try:
                scope[t.name] = numpy_helper.to_array(t)
            except (ValueError, TypeError) as e:
                raise ImportFailure(f"initializer {t.name!r} cannot be read: {e}") from e
        if graph.sparse_initializer:
            raise ImportFailure("sparse initializers are not supported")

    def _nodes(self, graph: GraphProto, scope: _Scope) -> None:
        for number, proto in enumerate(graph.node):
            label = proto.name or f"{proto.op_type}_{number}"
            outputs: Sequence[Value | _Missing | None]
            try:
                outputs = self._node(proto, scope, label)
            except GraphError as e:
                if isinstance(e, ImportFailure):
                    raise
                self.unsupported.append(f"{label} ({proto.op_type}, domain {proto.domain or 'ai.onnx'!r}): {e}")
                outputs = [_MISSING] * len(proto.output)
            for name, value in zip(proto.output, outputs, strict=False):
                if name and value is not None:
                    scope[name] = value

    def _node(self, proto: NodeProto, scope: _Scope, label: str) -> Sequence[Value | _Missing | None]:
        if proto.op_type == "If" and proto.domain in _DEFAULT_DOMAINS:
            return self._branch(proto, scope)
        translate = OPERATORS.get(proto.op_type) if proto.domain in _DEFAULT_DOMAINS else None
        fold = FOLD.get(proto.op_type) if proto.domain in _DEFAULT_DOMAINS else None
        if translate is None and fold is None:
            raise GraphError("the operator is not supported")
        undefined = [i for i in proto.input if i and i not in scope]
        if undefined:
            raise ImportFailure(
                f"node {label} ({proto.op_type}) reads {undefined[0]!r}, which nothing before it defines"
            )
        inputs = [scope[i] if i else None for i in proto.input]
        values = [v for v in inputs if not isinstance(v, _Missing)]
        if len(values) != len(inputs):
            return [_MISSING] * len(proto.output)
        check_node(proto, self.opset)
        if values and all(not isinstance(v, Tensor) for v in values):
            return self._known(proto, values, label)
        if translate is None:
            raise GraphError("supported only on values known at import: its inputs must be a constant")
        self.graph.origin = label
        results = _as_list(translate(Node(proto, values, self.opset, self.constants)))
        missing = [o for o in proto.output[len(results) :] if o]
        if missing:
            raise GraphError(f"output {missing[0]!r} is used and has no translation")
        return results

    def _known(self, proto: NodeProto, values: Sequence[Value | None], label: str) -> Sequence[Value | None]:
        """Compute a node all of whose inputs are known."""
        small = Graph()
        constants = Constants(small)
        node = Node(proto, values, self.opset, constants)
        arrays: list[Any] = list(values)
        fold = FOLD.get(proto.op_type)
        if fold is not None:
            try:
                with np.errstate(all="ignore"):
                    return [np.asarray(fold(node, *arrays))]
            except (ValueError, IndexError) as e:
                raise GraphError(str(e)) from e
        results = _as_list(OPERATORS[proto.op_type](node))
        for r in results:
            if isinstance(r, Tensor):
                small.output(r)
        computed = iter(evaluate(small, {}))
        return [
            next(computed).astype(numpy_dtype(r.dtype)) if isinstance(r, Tensor) else r for r in results
        ]  # fmt: skip

    def _branch(self, proto: NodeProto, scope: _Scope) -> Sequence[Value | _Missing | None]:
        condition = scope.get(proto.input[0])
        if condition is None or isinstance(condition, Tensor):
            raise GraphError("the condition must be a constant; it is computed at run time")
        if isinstance(condition, _Missing):
            return [_MISSING] * len(proto.output)
        name = "then_branch" if bool(np.asarray(condition).reshape(-1)[0]) else "else_branch"
        body = next(a.g for a in proto.attribute if a.name == name)
        inner = dict(scope)
        self._initializers(body, inner)
        self._nodes(body, inner)
        return [inner.get(o.name) for o in body.output]


def _as_list(result: Any) -> Sequence[Value | None]:
    return result if isinstance(result, (list, tuple)) else [result]


def supported_operators() -> list[str]:
    """Names of the operators of the default domain that can be imported."""
    return sorted({*OPERATORS, *FOLD, "If"})
