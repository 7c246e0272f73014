"""Stages: index notation. One stage defines one tensor, element by element, from other tensors.

    c[i, j] = sum(a[i, k] * b[k, j] for k in range(K))

is ``Stage('c', axes=(('i', M), ('j', N)), reduce=(('k', K),), reducer='sum', body=a[i, k] * b[k, j])``. Every operator is a
function of a few lines that returns stages; nothing after this module looks at operator names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.graph.dtypes import FLOATS, SIZES, GraphError, check_dtype, int_range
from tilewright.graph.expr import Const, Expr, Load, const
from tilewright.graph.ordered import Ordered, Scan, Select
from tilewright.graph.traverse import loads, variables

#: What a reduction starts from. ``max``/``min`` start from the smallest/largest value of the type.
REDUCERS = ("sum", "prod", "max", "min")


LARGEST_BYTES = 1 << 47
"""Of a tensor: what a process can address on common 64-bit machines (128 TiB)."""
MOST_POINTS = 1 << 53
"""Of a stage: so many are counted exactly everywhere, and take a machine days."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and data type. Sizes are positive ints: dynamic dimensions are bound before a graph is built."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        for d in self.shape:
            if not isinstance(d, int) or isinstance(d, bool) or d < 1:
                raise GraphError(
                    f"tensor shape {self.shape}: expected sizes of at least 1; got {d!r} (zero-size tensors have nothing "
                    "to compute and are not supported)"
                )
        if self.nbytes > LARGEST_BYTES:
            raise GraphError(
                f"tensor shape {self.shape}: expected at most {LARGEST_BYTES} bytes (what a process can address); got "
                f"{self.nbytes} bytes of {self.dtype}"
            )

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return self.size * SIZES[self.dtype]

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides, in elements."""
        out: list[int] = []
        n = 1
        for d in reversed(self.shape):
            out.append(n)
            n *= d
        return tuple(reversed(out))


Axes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """``output[axes] = reducer over reduce axes of body``; without a reducer, ``output[axes] = body``. The reducer is one of
    ``REDUCERS``, or an ordered one (:mod:`tilewright.graph.ordered`), which lists several results along an axis of the output.

    The output is indexed by its axes in order, so its shape is the extents of ``axes``. ``origin`` is a label for people
    (the model's node name); it is no part of the meaning and not compared.
    """

    output: str
    axes: Axes
    body: Expr
    reduce: Axes = ()
    reducer: str | Ordered | None = None
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        names = [n for n, _ in self.axes + self.reduce]
        if len(set(names)) != len(names):
            raise GraphError(f"stage {self.output}: expected distinct axis names; got {names}")
        for n, extent in self.axes + self.reduce:
            if extent < 1:
                raise GraphError(f"stage {self.output}: expected an extent of at least 1 for axis {n}; got {extent}")
        if bool(self.reduce) != (self.reducer is not None):
            raise GraphError(f"stage {self.output}: expected a reducer exactly when there are reduction axes")
        if isinstance(self.reducer, Scan | Select):
            self._check_ordered(self.reducer)
        elif self.reducer is not None and self.reducer not in REDUCERS:
            raise GraphError(f"stage {self.output}: expected a reducer of {', '.join(REDUCERS)}; got {self.reducer!r}")
        if self.points > MOST_POINTS:
            raise GraphError(
                f"stage {self.output}: expected at most {MOST_POINTS} points (the product of all extents); got {self.points} "
                f"({' x '.join(str(e) for _, e in self.axes + self.reduce)})"
            )
        unknown = variables(self.body) - set(names)
        if unknown:
            raise GraphError(f"stage {self.output}: body uses {sorted(unknown)}, which are no axes of it ({names})")

    def _check_ordered(self, form: Ordered) -> None:
        what = f"stage {self.output}"
        if len(self.reduce) != 1:
            raise GraphError(f"{what}: expected one reduction axis for {form}; got {self.reduce}")
        if isinstance(form, Scan) and (form.reducer not in REDUCERS or not 0 <= form.axis < len(self.axes)):
            raise GraphError(
                f"{what}: expected a reducer of {', '.join(REDUCERS)} and one of {len(self.axes)} axes; got {form}"
            )
        if not self.axes:
            raise GraphError(f"{what}: expected an axis that the results of {form} are listed along; got none")
        if self.body.dtype == "bool":
            raise GraphError(f"{what}: expected numbers for {form}; got bool")
        name, extent = self.axes[form.axis if isinstance(form, Scan) else -1]
        over = self.reduce[0][1]
        if extent > over or (isinstance(form, Scan) and extent != over):
            most = "" if isinstance(form, Scan) else "at most "
            raise GraphError(f"{what}: expected {most}{over} results along axis {name}; got {extent}")
        if name in variables(self.body):
            raise GraphError(f"{what}: the body uses {name}, the axis that the results of {form} are listed along")

    @property
    def ordered(self) -> Ordered | None:
        """The ordered reduction that this stage is, if it is one."""
        return self.reducer if isinstance(self.reducer, Scan | Select) else None

    @property
    def type(self) -> TensorType:
        """Type of the tensor this stage defines."""
        dtype = "int64" if isinstance(self.reducer, Select) else self.body.dtype
        return TensorType(tuple(e for _, e in self.axes), dtype)

    @property
    def sources(self) -> list[str]:
        """Names of the tensors read, in order of first appearance."""
        return list(dict.fromkeys(load.tensor for load in loads(self.body)))

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every axis, spatial and reduction."""
        return dict(self.axes + self.reduce)

    @property
    def points(self) -> int:
        """Number of times the body is evaluated."""
        n = 1
        form = self.ordered
        listed = None if form is None else self.axes[form.axis if isinstance(form, Scan) else -1][0]
        for name, e in self.axes + self.reduce:
            n *= 1 if name == listed else e
        return n


@dataclass(frozen=True, slots=True)
class View:
    """``output`` is ``source`` with another shape: the same elements in the same order, no copy."""

    output: str
    source: str
    type: TensorType
    origin: str = field(default="", compare=False)

    @property
    def sources(self) -> list[str]:
        """The one tensor that is viewed."""
        return [self.source]


Node = Stage | View


def identity(reducer: str, dtype: str) -> Const:
    """The value a reduction starts from."""
    if reducer == "sum":
        return const(0, dtype)
    if reducer == "prod":
        return const(1, dtype)
    if dtype in FLOATS:
        return const(float("-inf") if reducer == "max" else float("inf"), dtype)
    low, high = int_range(dtype)
    return const(low if reducer == "max" else high, dtype)


def load(tensor: str, dtype: str, *index: Expr) -> Load:
    """An element of a tensor."""
    return Load(dtype, tensor, index)
