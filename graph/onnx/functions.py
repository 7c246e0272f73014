"""Operators that are defined by other operators: functions of the model, and those of the ONNX standard.

A call is walked like a graph of its own, with its own operator sets and with the values, shapes and types of
its inputs known, so nothing is inlined or inferred beforehand. Its attributes are what the call gives, else the
defaults of the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.graph import Tensor
from tilewright.graph.onnx.context import DEFAULT_DOMAINS, ImportFailure, Value

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, OperatorSetIdProto

Key = tuple[str, str, str]
"""Domain (the default one is empty), name and overload."""


@dataclass(frozen=True)
class Definition:
    """What a call computes: a body, and the attributes that it may have with their defaults (None: no default)."""

    key: Key
    body: FunctionProto
    defaults: Mapping[str, AttributeProto | None]

    def check(self, call: NodeProto) -> None:
        """Raise GraphError for more inputs or outputs than the definition has, and for attributes it does not have."""
        for what, given, known in (
            ("inputs", call.input, self.body.input),
            ("outputs", call.output, self.body.output),
        ):
            if len(given) > len(known):
                raise GraphError(f"the function has {len(known)} {what}; the call gives {len(given)}")
        for a in call.attribute:
            if a.name not in self.defaults:
                names = ", ".join(sorted(self.defaults)) or "none"
                raise GraphError(f"attribute {a.name!r}: the function's attributes are {names}")

    def nodes(self, call: NodeProto) -> list[NodeProto]:
        """The body's nodes with the call's attributes in place of references. A reference to an attribute that has
        neither a value nor a default leaves its node without that attribute; GraphError for one that the
        function does not declare."""
        bound = {**self.defaults, **{a.name: a for a in call.attribute}}
        return [_instance(n, bound) for n in self.body.node]


def _instance(node: NodeProto, bound: Mapping[str, AttributeProto | None]) -> NodeProto:
    if not node.attribute:
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name not in bound:
                raise GraphError(
                    f"attribute {a.name} of {node.name or node.op_type} refers to {a.ref_attr_name!r}, "
                    "which the function does not declare"
                )
            value = bound[a.ref_attr_name]
            if value is None:
                continue
            if a.type and value.type and a.type != value.type:
                raise GraphError(
                    f"attribute {a.ref_attr_name}: {node.name or node.op_type} expects type {a.type}; got {value.type}"
                )
            copy.attribute.add().CopyFrom(value)
            copy.attribute[-1].name = a.name
            continue
        copy.attribute.add().CopyFrom(a)
        for graph in (copy.attribute[-1].g, *copy.attribute[-1].graphs):
            inner = [_instance(n, bound) for n in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return copy


class Definitions:
    """All functions that a model's nodes may call."""

    def __init__(self, model: ModelProto) -> None:
        self._local: dict[Key, Definition] = {}
        for f in model.functions:
            key = (_domain(f.domain), f.name, getattr(f, "overload", ""))
            if key in self._local:
                raise ImportFailure(f"function {f.name!r} of domain {f.domain!r} is defined twice")
            defaults: dict[str, AttributeProto | None] = dict.fromkeys(f.attribute)
            defaults |= {a.name: a for a in f.attribute_proto}
            self._local[key] = Definition(key, f, defaults)

    def local(self, call: NodeProto) -> Definition | None:
        """The model's own function of that name."""
        return self._local.get((_domain(call.domain), call.op_type, getattr(call, "overload", "")))


def standard(call: NodeProto, opset: int, inputs: Sequence[Value | None]) -> Definition | None:
    """The definition that the ONNX standard gives an operator of the default domain in operator set ``opset``,
    for inputs of these types and shapes; None if there is none."""
    from onnx import FunctionProto, defs

    if call.domain not in DEFAULT_DOMAINS or not defs.has(call.op_type, opset, ""):
        return None
    schema: Any = defs.get_schema(call.op_type, opset, "")
    defaults = {n: a.default_value if a.default_value.type else None for n, a in schema.attributes.items()}
    version = _newest(schema.function_opset_versions, opset)
    if version is not None:
        text = schema.get_function_with_opset_version(version)
    else:
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        if version is None:
            return None
        whole = type(call)()
        whole.CopyFrom(call)
        given = {a.name for a in call.attribute}
        whole.attribute.extend(a for n, a in defaults.items() if a is not None and n not in given)
        text = schema.get_context_dependent_function_with_opset_version(
            version, whole.SerializeToString(), [_type(v) for v in inputs]
        )
    body = FunctionProto.FromString(text)
    return Definition(("", call.op_type, ""), body, defaults) if body.node else None


def has_definition(call: NodeProto, opset: int) -> bool:
    """Whether the standard may define an operator by others, whatever its inputs."""
    from onnx import defs

    if call.domain not in DEFAULT_DOMAINS or not defs.has(call.op_type, opset, ""):
        return False
    schema: Any = defs.get_schema(call.op_type, opset, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def _newest(versions: Iterable[int], opset: int) -> int | None:
    return max((v for v in versions if v <= opset), default=None)


def _type(v: Value | None) -> bytes:
    from onnx import TypeProto, helper

    if v is None:
        return bytes(TypeProto().SerializeToString())
    dtype = np.dtype(v.dtype) if isinstance(v, Tensor) else v.dtype
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    return bytes(helper.make_tensor_type_proto(kind, list(v.shape)).SerializeToString())


def opset_of(imports: Iterable[OperatorSetIdProto], default: int) -> int:
    """The version of the default domain among ``imports``."""
    return max((o.version for o in imports if o.domain in DEFAULT_DOMAINS), default=default)


def _domain(name: str) -> str:
    return "" if name in DEFAULT_DOMAINS else name
