"""Whether a node has the inputs and attributes that the ONNX standard requires of its operator."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.graph.dtypes import GraphError

if TYPE_CHECKING:
    from onnx import NodeProto


@cache
def _requirements(kind: str, opset: int) -> tuple[tuple[str, ...], dict[str, int], frozenset[str]] | None:
    """Names of the leading required inputs, types of all attributes, and names of the required ones."""
    from onnx import defs

    if not defs.has(kind, opset, ""):
        return None
    schema: Any = defs.get_schema(kind, opset, "")
    single = defs.OpSchema.FormalParameterOption.Single
    inputs = [i.name if i.option == single else "" for i in schema.inputs]
    if len(inputs) == 1 and not inputs[0] and schema.min_input:
        inputs = [schema.inputs[0].name]  # a list of operands with at least one
    types = {name: int(a.type.value) for name, a in schema.attributes.items()}
    return tuple(inputs), types, frozenset(n for n, a in schema.attributes.items() if a.required)


def check_node(proto: NodeProto, opset: int) -> None:
    """Raise GraphError if a required input or attribute is absent, or an attribute has another type."""
    needs = _requirements(proto.op_type, opset)
    if needs is None:
        return
    inputs, types, required = needs
    for k, name in enumerate(inputs):
        if name and (k >= len(proto.input) or not proto.input[k]):
            raise GraphError(f"expected input {k} ({name}); it is absent")
    given = {a.name: int(a.type) for a in proto.attribute}
    for name in sorted(required - set(given)):
        raise GraphError(f"expected attribute {name}; it is absent")
    for name, kind in given.items():
        if types.get(name, kind) != kind:
            raise GraphError(f"attribute {name}: expected type {types[name]} of the standard; got {kind}")
