"""One walk over the nodes of a model.

What is known already (weights, shapes and whatever follows from them) is computed at once
(:mod:`.known`), so that shape arithmetic vanishes; the rest becomes stages through the registry of
:mod:`.context`. A node without a translation does not stop the walk: all of them are named together in one
error, those inside branches, loops and functions included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.graph.dtypes import GraphError
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.onnx.bind import bind_inputs
from tilewright.graph.onnx.check import check_node
from tilewright.graph.onnx.context import (
    DEFAULT_DOMAINS,
    OPERATORS,
    Constants,
    ImportFailure,
    Node,
    UnsupportedError,
    Value,
)
from tilewright.graph.onnx.folding import FOLD
from tilewright.graph.onnx.functions import Definition, Definitions, has_definition, opset_of, standard
from tilewright.graph.onnx.known import Known, listed
from tilewright.graph.onnx.scope import INITIALIZER, MISSING, Given, Missing, Scope

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


class Walk:
    """The graph of a model whose inputs are bound to ``shapes`` or given ``values``."""

    def __init__(self, model: ModelProto, shapes: Mapping[str, Sequence[int]], values: Mapping[str, object]) -> None:
        self.model = model
        self.graph = Graph()
        self.constants = Constants(self.graph)
        self.known = Known()
        self.functions = Definitions(model)
        self.unsupported: list[str] = []
        self.shapes = shapes
        self.values = values

    def run(self) -> Graph:
        """Walk the model. Raises as :func:`.importer.import_onnx` does."""
        proto = self.model.graph
        scope = Scope(opset_of(self.model.opset_import, 1))
        self._initializers(proto, scope)
        for name, value in bind_inputs(self.graph, proto, self.shapes, self.values, set(scope.values)).items():
            scope.define_input(name, value if isinstance(value, Tensor) else self.known.stored(value))
        self._nodes(proto.node, scope)
        if self.unsupported:
            raise UnsupportedError(self.unsupported)
        for o in proto.output:
            result = scope.values.get(o.name)
            if result is None or isinstance(result, Missing):
                raise ImportFailure(f"output {o.name!r} is not computed by any node")
            if not isinstance(result, Tensor) and result.size == 0:
                raise ImportFailure(f"output {o.name!r} is empty (shape {result.shape}): there is nothing to compute")
            self.graph.output(result if isinstance(result, Tensor) else self.constants.tensor(result, o.name), o.name)
        return self.graph

    def _initializers(self, graph: GraphProto, scope: Scope) -> None:
        from onnx import numpy_helper

        for t in graph.initializer:
            try:
                value = self.known.stored(numpy_helper.to_array(t))
            except (ValueError, TypeError) as e:
                raise ImportFailure(f"initializer {t.name!r} cannot be read: {e}") from e
            scope.define(t.name, value, INITIALIZER)
        if graph.sparse_initializer:
            raise ImportFailure("sparse initializers are not supported")

    def _nodes(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        for number, proto in enumerate(nodes):
            label = scope.path + (proto.name or f"{proto.op_type}_{number}")
            outputs: Sequence[Given]
            try:
                outputs = self._node(proto, scope, label)
            except GraphError as e:
                if isinstance(e, ImportFailure):
                    raise
                self.unsupported.append(f"{label} ({proto.op_type}, domain {proto.domain or 'ai.onnx'!r}): {e}")
                self._inspect(proto, scope, label)
                outputs = _missing(proto)
            scope.outputs(proto.output, outputs, label)

    def _node(self, proto: NodeProto, scope: Scope, label: str) -> Sequence[Given]:
        function = self.functions.local(proto)
        ours = proto.domain in DEFAULT_DOMAINS and (proto.op_type in OPERATORS or proto.op_type in FOLD)
        branch = proto.domain in DEFAULT_DOMAINS and proto.op_type == "If"
        if not (function or ours or branch or has_definition(proto, scope.opset)):
            raise GraphError("the operator is not supported")
        undefined = [i for i in proto.input if i and i not in scope.values]
        if undefined:
            raise ImportFailure(
                f"node {label} ({proto.op_type}) reads {undefined[0]!r}, which nothing before it defines"
            )
        values = [scope.values[i] if i else None for i in proto.input]
        if function is not None:
            return self._call(function, proto, values, scope, label)
        if branch:
            return self._branch(proto, values, scope, label)
        present = _present(values)
        if present is None:
            return _missing(proto)
        if ours:
            return self._operator(proto, present, scope, label)
        function = standard(proto, scope.opset, present)
        if function is None:
            raise GraphError("the operator is not supported for these inputs")
        return self._call(function, proto, values, scope, label)

    def _operator(
        self, proto: NodeProto, values: Sequence[Value | None], scope: Scope, label: str
    ) -> Sequence[Value | None]:
        check_node(proto, scope.opset)
        self.graph.origin = label
        node = Node(proto, values, scope.opset, self.constants)
        if all(not isinstance(v, Tensor) for v in values):
            results = self.known.compute(node)
        elif proto.op_type not in OPERATORS:
            raise GraphError("supported only on values known at import: its inputs must be a constant")
        else:
            results = listed(OPERATORS[proto.op_type](node))
        missing = [o for o in proto.output[len(results) :] if o]
        if missing:
            raise GraphError(f"output {missing[0]!r} is used and has no translation")
        return results

    def _call(
        self, function: Definition, proto: NodeProto, values: Sequence[Given], scope: Scope, label: str
    ) -> Sequence[Given]:
        function.check(proto)
        inner = scope.call(f"{label}/", function.key, opset_of(function.body.opset_import, scope.opset))
        for k, name in enumerate(function.body.input):
            inner.define_input(name, values[k] if k < len(values) else None)
        self._nodes(function.nodes(proto), inner)
        return _results(function.body.output, proto, inner, label)

    def _branch(self, proto: NodeProto, values: Sequence[Given], scope: Scope, label: str) -> Sequence[Given]:
        check_node(proto, scope.opset)
        condition = values[0]
        if isinstance(condition, Missing):
            self._inspect(proto, scope, label)
            return _missing(proto)
        chosen = bool(Node(proto, [condition], scope.opset, self.constants).known_number(0, "condition"))
        name = "then_branch" if chosen else "else_branch"
        body = next(a.g for a in proto.attribute if a.name == name)
        if len(body.output) != len(proto.output):
            raise GraphError(f"{name}: expected {len(proto.output)} outputs; got {len(body.output)}")
        inner = scope.branch(f"{label}/")
        self._initializers(body, inner)
        self._nodes(body.node, inner)
        return _results([o.name for o in body.output], proto, inner, label)

    def _inspect(self, proto: NodeProto, scope: Scope, label: str) -> None:
        """Name what has no translation in the graphs inside a node that has none itself or whose branch is not known."""
        for a in proto.attribute:
            for body in ([a.g] if a.HasField("g") else []) + list(a.graphs):
                inner = scope.branch(f"{label}/{a.name}/")
                self._initializers(body, inner)
                for i in body.input:
                    inner.define_input(i.name, MISSING)
                self._nodes(body.node, inner)


def _present(values: Sequence[Given]) -> list[Value | None] | None:
    """The values, or None if one has no translation."""
    out = [v for v in values if not isinstance(v, Missing)]
    return out if len(out) == len(values) else None


def _missing(proto: NodeProto) -> list[Given]:
    return [MISSING] * len(proto.output)


def _results(names: Sequence[str], proto: NodeProto, scope: Scope, label: str) -> list[Given]:
    """The values of a body's outputs, of which the node that stands for it must have those that it names."""
    for name, used in zip(names, proto.output, strict=False):
        if used and scope.values.get(name) is None:
            raise ImportFailure(f"{label}: output {name!r} is not computed by any node")
    return [scope.values.get(name) for name in names[: len(proto.output)]]
