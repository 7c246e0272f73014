"""What an operator of the registry sees of a node, and the errors of an import.

A value is a NumPy array where the importer knows it already (initializers, shapes, and whatever was computed
from those) and a :class:`Tensor` otherwise. Arrays may be empty or of types that no tensor may have; they
become constants of the graph only when an operator asks for them as tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph import ops
from tilewright.graph.dtypes import SIZES, GraphError
from tilewright.graph.folding import FOLD_LIMIT, computed_constant
from tilewright.graph.graph import Array, Graph, Tensor

if TYPE_CHECKING:
    from onnx import NodeProto

DEFAULT_DOMAINS = ("", "ai.onnx")

Value = Tensor | Array
Result = Value | Sequence[Value | None]


class ImportFailure(GraphError):
    """A model file that cannot be read, or whose inputs were not bound to shapes."""


class UnsupportedError(GraphError):
    """A model with nodes that have no translation; ``nodes`` lists each with its reason."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        super().__init__(f"{len(self.nodes)} unsupported node(s):\n  " + "\n  ".join(self.nodes))


def dtype_name(onnx_type: int) -> str:
    """NumPy's name of a data type of ONNX."""
    from onnx import TensorProto, helper

    if onnx_type not in TensorProto.DataType.values() or onnx_type == TensorProto.UNDEFINED:
        raise GraphError(f"expected a data type of ONNX; got {onnx_type}")
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(onnx_type)).name)


@dataclass
class Constants:
    """Turns known arrays into graph constants, each once."""

    graph: Graph
    _made: dict[int, tuple[Array, Tensor]] = field(default_factory=dict)

    def tensor(self, array: Array, name: str) -> Tensor:
        """The graph constant that holds ``array``."""
        done = self._made.get(id(array))
        if done is not None:
            return done[1]
        if array.dtype.name not in SIZES:
            raise GraphError(f"{name or 'a constant'}: data type {array.dtype.name} is not supported; "
                             "convert the model to float32")  # fmt: skip
        t = self._spread(array, name) if array.nbytes > FOLD_LIMIT else self.graph.constant(array, name or "const")
        self._made[id(array)] = (array, t)
        return t

    def _spread(self, array: Array, name: str) -> Tensor:
        """A large array: what is the same along a dimension (a broadcast view) is stored once and spread where it is used."""
        once = tuple(
            slice(0, 1) if step == 0 and d > 1 else slice(None)
            for d, step in zip(array.shape, array.strides, strict=True)
        )
        return ops.expand(self.graph.constant(array[once], name or "const"), array.shape)

    def known(self, tensor: Tensor) -> Array | None:
        """The value of a tensor that depends on constants only: one that was too large to compute before it was asked for."""
        return computed_constant(self.graph, tensor.name)

    def small_inputs(self, tensor: Tensor) -> list[str]:
        """The inputs that a tensor depends on, if all are so small that they may be numbers to choose by."""
        found: set[str] = {tensor.name}
        for n in reversed(self.graph.nodes):
            if n.output in found:
                found.update(n.sources)
        names = [i for i in self.graph.inputs if i in found]
        return names if all(self.graph.types[i].size <= 16 for i in names) else []


class Node:
    """One ONNX node with its input values: attributes and inputs by position, typed, with defaults."""

    def __init__(self, proto: NodeProto, inputs: Sequence[Value | None], opset: int, constants: Constants) -> None:
        self.proto = proto
        self.inputs = inputs
        self.opset = opset
        self.graph = constants.graph
        self._constants = constants
        self._attributes = {a.name: a for a in proto.attribute}

    def within(self, constants: Constants) -> Node:
        """The same node as a part of another graph."""
        return Node(self.proto, self.inputs, self.opset, constants)

    def has(self, k: int) -> bool:
        """Whether input ``k`` is given."""
        return k < len(self.inputs) and self.inputs[k] is not None

    def wants(self, k: int) -> bool:
        """Whether output ``k`` is used by name."""
        return k < len(self.proto.output) and bool(self.proto.output[k])

    def value(self, k: int) -> Value:
        """Input ``k`` as it is."""
        v = self.inputs[k] if k < len(self.inputs) else None
        if v is None:
            raise GraphError(f"expected input {k}; it is absent")
        return v

    def tensor(self, k: int) -> Tensor:
        """Input ``k`` as a tensor of the graph."""
        v = self.value(k)
        return v if isinstance(v, Tensor) else self._constants.tensor(v, self.proto.input[k])

    def maybe(self, k: int) -> Tensor | None:
        """Input ``k`` as a tensor, or None if absent."""
        return self.tensor(k) if self.has(k) else None

    def tensors(self) -> list[Tensor]:
        """All inputs as tensors."""
        return [self.tensor(k) for k in range(len(self.inputs))]

    def shape(self, k: int) -> tuple[int, ...]:
        """Shape of input ``k``."""
        return tuple(self.value(k).shape)

    def dtype(self, k: int) -> str:
        """Data type of input ``k``."""
        v = self.value(k)
        return v.dtype if isinstance(v, Tensor) else v.dtype.name

    def known(self, k: int, what: str) -> Array:
        """Input ``k`` where it must be known at import."""
        v = self.value(k)
        if not isinstance(v, Tensor):
            return v
        found = self._constants.known(v)
        if found is None:
            names = self._constants.small_inputs(v)
            hint = f" from {', '.join(names)}: give {names[0]} a value (--value {names[0]}=…)" if names else ""
            raise GraphError(f"input {k} ({what}) must be a constant; it is computed at run time{hint}")
        return found

    def known_ints(self, k: int, what: str) -> list[int]:
        """Input ``k`` as integers known at import."""
        return [int(x) for x in np.asarray(self.known(k, what)).reshape(-1)]

    def known_number(self, k: int, what: str) -> Any:
        """Input ``k`` as one number known at import."""
        a = self.known(k, what)
        if a.size != 1:
            raise GraphError(f"input {k} ({what}): expected one number; got shape {a.shape}")
        return a.reshape(()).item()

    def raw(self, name: str) -> Any:
        """An attribute's value as the protobuf helper gives it, or None."""
        from onnx import helper

        a = self._attributes.get(name)
        return None if a is None else helper.get_attribute_value(a)

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        v = self.raw(name)
        return default if v is None else int(v)

    def flag(self, name: str, default: bool = False) -> bool:
        """An integer attribute that means yes or no."""
        return bool(self.integer(name, default))

    def real(self, name: str, default: float) -> float:
        """A floating-point attribute, as the shortest decimal that reads back as the stored float32."""
        v = self.raw(name)
        return default if v is None else float(str(np.float32(v)))

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        v = self.raw(name)
        return default if v is None else v.decode() if isinstance(v, bytes) else str(v)

    def ints(self, name: str) -> list[int] | None:
        """A list of integers, or None if absent."""
        v = self.raw(name)
        return None if v is None else [int(x) for x in v]

    def axes(self, k: int = 1, name: str = "axes") -> list[int] | None:
        """Axes given as input ``k`` (newer operator sets) or as an attribute; None if neither."""
        return self.known_ints(k, name) if self.has(k) else self.ints(name)

    def only(self, name: str, *allowed: str) -> str:
        """A string attribute that must be one of ``allowed``, the first being the default."""
        v = self.text(name, allowed[0])
        if v not in allowed:
            raise GraphError(f"attribute {name}: expected {' or '.join(map(repr, allowed))}; got {v!r}")
        return v


Translate = Callable[[Node], Result]

#: Every supported operator of the default domain.
OPERATORS: dict[str, Translate] = {}


def operator(*names: str) -> Callable[[Translate], Translate]:
    """Register a translation under the given operator names."""

    def register(f: Translate) -> Translate:
        for n in names:
            OPERATORS[n] = f
        return f

    return register
