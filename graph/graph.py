"""The operator graph: tensors, and the stages and views that define them, in execution order.

A :class:`Graph` is built through :class:`Tensor` handles::

    g = Graph()
    x = g.input("x", (1, 3, 32, 32))
    w = g.constant(weights)                       # a NumPy array
    y = g.compute((m, n), lambda i, j, k: a[i, k] * b[k, j], reduce=(kk,), reducer="sum")
    g.output(y)

Passes return new graphs; a graph is only ever appended to while it is being built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tilewright.graph.dtypes import GraphError, numpy_dtype
from tilewright.graph.expr import Expr, Load, index, var
from tilewright.graph.ordered import Ordered
from tilewright.graph.stage import Node, Stage, TensorType, View
from tilewright.graph.traverse import depth

Array = NDArray[np.generic]
MAX_DEPTH = 160
"""Operations inside each other in one expression, or in all that is fused: what walks them is written recursively."""


@dataclass
class Graph:
    """What to compute. Build one with :meth:`input`, :meth:`constant`, operators on tensors, and :meth:`output`.

    ``inputs`` and ``outputs`` are tensor names in order; ``constants`` hold their arrays; ``nodes`` are in an order in
    which every tensor is defined before it is used. ``output_names`` are the names callers see.
    """

    types: dict[str, TensorType] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    origin: str = ""
    """Label given to stages made from now on (an importer sets it to the node it is importing)."""
    clean: bool = field(default=False, compare=False)
    """Whether the passes have run and nothing was added since."""

    def fresh(self, hint: str = "t") -> str:
        """A tensor name that is not taken yet."""
        hint = "".join(c if c.isalnum() or c == "_" else "_" for c in hint) or "t"
        if hint not in self.types:
            return hint
        n = len(self.types)
        while f"{hint}_{n}" in self.types:
            n += 1
        return f"{hint}_{n}"

    def tensor(self, name: str) -> Tensor:
        """The handle of an existing tensor."""
        if name not in self.types:
            raise GraphError(f"expected a tensor of this graph; got {name!r}")
        return Tensor(self, name)

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Declare an input of a fixed shape; ``dtype`` is a NumPy name such as ``float32``, ``int64`` or ``bool``. Raises GraphError
        for a name that is taken and a type that there is not."""
        if name in self.types:
            raise GraphError(f"input {name!r}: the name is taken")
        self.types[name] = TensorType(tuple(int(d) for d in shape), dtype)
        self.inputs.append(name)
        self.clean = False
        return Tensor(self, name)

    def constant(self, array: object, name: str = "const", dtype: str | None = None) -> Tensor:
        """Add a constant. Python numbers and nested lists become float32/int64/bool arrays unless ``dtype`` is given."""
        value = np.asarray(array)
        if dtype is None and not isinstance(array, (np.ndarray, np.generic)):
            dtype = {"f": "float32", "i": "int64", "b": "bool"}.get(value.dtype.kind)
        value = np.ascontiguousarray(value if dtype is None else value.astype(numpy_dtype(dtype))).reshape(value.shape)
        t = TensorType(tuple(value.shape), value.dtype.name)
        name = self.fresh(name)
        self.types[name] = t
        self.constants[name] = value
        return Tensor(self, name)

    def add(self, node: Node) -> Tensor:
        """Append a stage or view whose sources exist, and return what it defines."""
        for s in node.sources:
            if s not in self.types:
                raise GraphError(f"{node.output}: source {s!r} is not defined before it")
        if node.output in self.types:
            raise GraphError(f"{node.output}: the name is taken")
        if isinstance(node, Stage) and (deep := depth(node.body)) > MAX_DEPTH:
            raise GraphError(
                f"{node.output}: expected an expression of at most {MAX_DEPTH} operations inside each other; got {deep}; compute parts "
                "of it as tensors of their own, or combine many values pairwise (tilewright.graph.ops.balanced)"
            )
        if isinstance(node, View) and self.types[node.source].size != node.type.size:
            raise GraphError(
                f"view {node.output}: expected {self.types[node.source].size} elements; got {node.type.shape}"
            )
        self.types[node.output] = node.type
        self.nodes.append(node)
        self.clean = False
        return Tensor(self, node.output)

    def compute(
        self,
        shape: Sequence[int],
        body: Callable[..., Expr],
        reduce: Sequence[int] = (),
        reducer: str | Ordered | None = None,
        name: str = "t",
    ) -> Tensor:
        """Define a tensor by index notation: ``body`` gets one index variable for each dimension of ``shape``, then one for
        each extent of ``reduce``, and returns a scalar expression. A body with ``*args`` gets them all. ``reducer`` is ``sum``,
        ``prod``, ``max`` or ``min`` over the axes of ``reduce``, or an ordered reduction (:mod:`tilewright.graph.ordered`). Raises
        GraphError for a body that takes another number of indices."""
        axes = tuple((f"i{n}", int(d)) for n, d in enumerate(shape))
        raxes = tuple((f"r{n}", int(d)) for n, d in enumerate(reduce))
        names = [a for a, _ in axes + raxes]
        signature = inspect.signature(body).parameters.values()
        if all(p.kind is not p.VAR_POSITIONAL for p in signature) and len(signature) != len(names):
            raise GraphError(f"compute: expected a body of {len(names)} index arguments; got one of {len(signature)}")
        expression = body(*(var(a) for a in names))
        return self.add(Stage(self.fresh(name), axes, expression, raxes, reducer, self.origin))

    def view(self, source: Tensor, shape: Sequence[int], name: str = "view") -> Tensor:
        """The same elements under another shape."""
        expect_tensor(source, "view", self)
        if tuple(shape) == source.shape:
            return source
        return self.add(View(self.fresh(name), source.name, TensorType(tuple(shape), source.dtype), self.origin))

    def output(self, t: Tensor, name: str | None = None) -> None:
        """Declare ``t`` an output, seen by callers as ``name`` (its own name if None). Outputs are returned in this order."""
        expect_tensor(t, "output", self)
        self.outputs.append(t.name)
        self.clean = False
        self.output_names.append(name or t.name)

    def consumers(self) -> dict[str, list[Node]]:
        """For each tensor, the nodes that read it."""
        out: dict[str, list[Node]] = {t: [] for t in self.types}
        for n in self.nodes:
            for s in n.sources:
                out[s].append(n)
        return out

    def producers(self) -> dict[str, Node]:
        """For each computed tensor, the node that defines it."""
        return {n.output: n for n in self.nodes}


def expect_tensor(value: object, what: str, graph: Graph | None = None) -> None:
    """Raise GraphError unless ``value`` is a tensor (of ``graph``, if one is given): the one way in which that is refused."""
    if isinstance(value, Tensor):
        if graph is not None and value.graph is not graph:
            raise GraphError(f"{what}: expected a tensor of this graph; got {value.name!r} of another one")
        return
    if isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value):
        raise GraphError(
            f"{what}: expected one tensor; got {len(value)} in a {type(value).__name__}; take one, as in result[0]"
        )
    raise GraphError(
        f"{what}: expected a tensor of a graph; got {type(value).__name__}; arrays become one by graph.constant(…)"
    )


@dataclass(frozen=True, slots=True)
class Tensor:
    """Handle of one tensor of a graph. ``t[i, j]`` is a load expression for use in a ``compute`` body; arithmetic between
    tensors broadcasts as NumPy does (defined in :mod:`tilewright.graph.ops`)."""

    graph: Graph = field(repr=False, compare=False)
    name: str

    @property
    def type(self) -> TensorType:
        """Shape and data type."""
        return self.graph.types[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Data type name."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def value(self) -> Array | None:
        """The array, if the tensor is a constant."""
        return self.graph.constants.get(self.name)

    def __getitem__(self, key: Expr | int | tuple[Expr | int, ...]) -> Load:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != self.rank:
            raise GraphError(f"{self.name}: expected {self.rank} indices for shape {self.shape}; got {len(parts)}")
        return Load(self.dtype, self.name, tuple(index(p) for p in parts))

    def at(self, indices: Sequence[Expr | int]) -> Load:
        """``self[tuple(indices)]``; works for scalars too."""
        return self[tuple(indices)]

    # Arithmetic: operators of tilewright.graph.ops, imported when used because that package is built on this one.

    def __add__(self, other: Operand) -> Tensor:
        return _apply("add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return _apply("add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return _apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return _apply("sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return _apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return _apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return _apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _apply("div", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return _apply("power", self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return _apply("matmul", self, other)

    def __neg__(self) -> Tensor:
        return _apply("neg", self)

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape; one -1 is inferred."""
        return _apply("reshape", self, shape)

    def transpose(self, *order: int) -> Tensor:
        """Dimensions in another order (reversed if none is given)."""
        return _apply("transpose", self, order or None)


Operand = Tensor | bool | int | float


def _apply(operator: str, *operands: object) -> Tensor:
    from tilewright.graph import ops

    return cast(Tensor, getattr(ops, operator)(*operands))
