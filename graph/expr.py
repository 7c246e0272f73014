"""Scalar expressions: the one language for the body of a stage, an index, a loop bound and a padding predicate.

Design choice: expressions are immutable values with structural equality, so a rewrite returns a new value, a common
subexpression is found by hashing, and the same node kinds serve the front end (operators), the oracle (NumPy) and the
code generator. Integer index arithmetic is ordinary expression arithmetic; what is affine is *found* by
:mod:`tilewright.graph.affine`, not declared.

Grammar::

    e ::= Const(value) | Var(name) | Load(tensor, (e, ...)) | Op(kind, (e, ...))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.graph.dtypes import FLOATS, GraphError, check_dtype, int_range

Number = bool | int | float

#: Arithmetic on two values of one type.
BINARY = frozenset({"add", "sub", "mul", "div", "floordiv", "mod", "max", "min", "pow", "fmod"})
COMPARE = frozenset({"lt", "le", "eq", "ne"})
LOGICAL = frozenset({"and", "or", "xor"})
#: Functions of one floating-point value.
MATHS = frozenset(
    {
        "exp", "log", "tanh", "erf", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "asinh", "acosh", "atanh", "log1p", "expm1", "softplus",
    }
)  # fmt: skip
ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
UNARY = MATHS | ROUNDING | frozenset({"neg", "abs", "not", "isnan", "isinf", "bitnot"})
BITWISE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
BOUNDED = "bounded"
"""An index and what it must be below (:mod:`tilewright.graph.bounds`)."""
_INTEGER_ONLY = BITWISE | {"floordiv", "mod"}


@dataclass(frozen=True, slots=True)
class Expr:
    """Base of all expressions. ``a + b``, ``a < b`` (as :meth:`lt`) and so on build :class:`Op` nodes."""

    dtype: str

    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return binary("mod", self, other)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def lt(self, other: Operand) -> Expr:
        """``self < other`` as a bool expression (Python's ``<`` is kept for ordinary comparison)."""
        return binary("lt", self, other)

    def le(self, other: Operand) -> Expr:
        """``self <= other``."""
        return binary("le", self, other)

    def ge(self, other: Operand) -> Expr:
        """``self >= other``."""
        return binary("le", other, self)

    def gt(self, other: Operand) -> Expr:
        """``self > other``."""
        return binary("lt", other, self)

    def eq(self, other: Operand) -> Expr:
        """``self == other`` element by element."""
        return binary("eq", self, other)


Operand = Expr | Number


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal. ``Const('float32', 0.5)``."""

    value: Number = 0
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        # nan equals nan, and 0.0 differs from -0.0: two constants are equal when they are the same bits
        if self is other:
            return True
        return isinstance(other, Const) and self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.dtype, repr(self.value))) or 1)
        return self._hash


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """An axis of a stage or a loop variable; always int64."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a tensor, at int64 index expressions (one for each dimension)."""

    tensor: str = ""
    index: tuple[Expr, ...] = ()
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # at once, from what the parts have: a deep expression is hashed without recursion
        object.__setattr__(self, "_hash", hash((self.dtype, self.tensor, self.index)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Op(Expr):
    """An operation on argument expressions; ``kind`` is one of the names at the top of this module,
    ``select`` (condition, then, else: the untaken side is not evaluated) or ``cast``."""

    kind: str = ""
    args: tuple[Expr, ...] = ()
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # at once, from what the parts have: a deep expression is hashed without recursion
        object.__setattr__(self, "_hash", hash((self.dtype, self.kind, self.args)))

    def __hash__(self) -> int:
        return self._hash


def const(value: Number, dtype: str) -> Const:
    """A literal of ``dtype``; the Python value is converted (``const(1, 'float32').value == 1.0``)."""
    check_dtype(dtype)
    if dtype in FLOATS:
        return Const(dtype, float(value))
    if dtype == "bool":
        return Const(dtype, bool(value))
    if isinstance(value, float) and not value.is_integer():
        raise GraphError(f"constant of {dtype}: expected a whole number; got {value!r}")
    if dtype != "int64" and not _fits(value, dtype):
        raise GraphError(f"constant of {dtype}: expected a value of {int_range(dtype)}; got {value!r}")
    return Const(dtype, int(value))


def _fits(value: Number, dtype: str) -> bool:
    low, high = int_range(dtype)
    return low <= value <= high


def var(name: str) -> Var:
    """An int64 axis or loop variable."""
    return Var("int64", name)


def index(value: Expr | int) -> Expr:
    """``value`` as an int64 index expression."""
    return const(value, "int64") if isinstance(value, int) else value


def _pair(a: Operand, b: Operand, kind: str) -> tuple[Expr, Expr]:
    if isinstance(a, Expr) and isinstance(b, Expr):
        if a.dtype != b.dtype:
            raise GraphError(f"{kind}: expected two values of one data type; got {a.dtype} and {b.dtype}; cast one")
        return a, b
    if isinstance(a, Expr):
        assert not isinstance(b, Expr)
        return a, const(b, a.dtype)
    if isinstance(b, Expr):
        return const(a, b.dtype), b
    raise GraphError(f"{kind}: expected at least one expression; got {a!r} and {b!r}")


def binary(kind: str, a: Operand, b: Operand) -> Expr:
    """Arithmetic, comparison or logic on two values of one type; integer constants fold, ``x+0`` and ``x*1`` vanish."""
    x, y = _pair(a, b, kind)
    if kind in COMPARE:
        result = "bool"
    elif kind == BOUNDED and x.dtype == "int64" and isinstance(y, Const):
        return Op("int64", kind, (x, y))
    elif kind in BINARY or kind in BITWISE or (kind in LOGICAL and x.dtype == "bool"):
        result = x.dtype
    else:
        raise GraphError(f"expected a two-argument operation on {x.dtype}; got {kind!r}")
    if kind in _INTEGER_ONLY and (x.dtype in FLOATS or x.dtype == "bool"):
        raise GraphError(f"{kind}: expected integers; got {x.dtype}")
    if x.dtype == "bool" and kind in BINARY and kind not in ("max", "min"):
        raise GraphError(f"{kind}: expected numbers; got bool")
    if x.dtype == "int64":
        if isinstance(x, Const) and isinstance(y, Const) and (kind in COMPARE or kind in _FOLD):
            return _fold(kind, int(x.value), int(y.value), result)
        if isinstance(y, Const):
            v = y.value
            if (kind in ("add", "sub") and v == 0) or (kind in ("mul", "floordiv") and v == 1):
                return x
            if (kind == "mul" and v == 0) or (kind == "mod" and v == 1):
                return const(0, "int64")
        if isinstance(x, Const) and ((kind == "add" and x.value == 0) or (kind == "mul" and x.value == 1)):
            return y
    return Op(result, kind, (x, y))


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def _fold(kind: str, a: int, b: int, dtype: str) -> Expr:
    if kind in ("floordiv", "mod") and b == 0:
        raise GraphError(f"{kind}: division of {a} by the constant zero")
    return const(_FOLD[kind](a, b), dtype)


def unary(kind: str, a: Expr) -> Expr:
    """A function of one value. Maths and rounding expect a floating-point value."""
    if kind not in UNARY:
        raise GraphError(f"expected a one-argument operation; got {kind!r}")
    if kind in MATHS | ROUNDING | {"isnan", "isinf"} and a.dtype not in FLOATS:
        raise GraphError(f"{kind}: expected float32 or float64; got {a.dtype}")
    if (kind == "not") != (a.dtype == "bool") or (kind == "bitnot" and a.dtype in FLOATS):
        wanted = {"not": "bool", "bitnot": "integers"}.get(kind, "numbers")
        raise GraphError(f"{kind}: expected {wanted}; got {a.dtype}")
    return Op("bool" if kind in ("isnan", "isinf", "not") else a.dtype, kind, (a,))


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger value; NaN if either is NaN."""
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller value; NaN if either is NaN."""
    return binary("min", a, b)


def select(condition: Expr, then: Operand, otherwise: Operand) -> Expr:
    """``then`` where ``condition`` holds, else ``otherwise``; the untaken side is not evaluated, so it may guard a load."""
    if condition.dtype != "bool":
        raise GraphError(f"select: expected a bool condition; got {condition.dtype}")
    x, y = _pair(then, otherwise, "select")
    if isinstance(condition, Const):
        return x if condition.value else y
    return Op(x.dtype, "select", (condition, x, y))


def _folds(value: int, dtype: str) -> bool:
    return dtype in FLOATS or dtype == "bool" or _fits(value, dtype)


def cast(a: Expr, dtype: str) -> Expr:
    """``a`` converted to ``dtype`` (float to int truncates towards zero, to bool tests for non-zero)."""
    check_dtype(dtype)
    if a.dtype == dtype:
        return a
    if isinstance(a, Const) and isinstance(a.value, (bool, int)) and _folds(a.value, dtype):
        return const(bool(a.value) if dtype == "bool" else a.value, dtype)
    return Op(dtype, "cast", (a,))


def all_of(conditions: list[Expr]) -> Expr:
    """The conjunction; true for an empty list."""
    result: Expr = const(True, "bool")
    for c in conditions:
        if isinstance(c, Const):
            if not c.value:
                return c
            continue
        result = c if isinstance(result, Const) else binary("and", result, c)
    return result
