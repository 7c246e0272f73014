"""Element-wise arithmetic, comparison, logic and maths. Operands broadcast as NumPy arrays do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.graph.dtypes import FLOATS, UNSIGNED, GraphError
from tilewright.graph.expr import Const, Expr, binary, const, maximum, minimum, select, unary
from tilewright.graph.expr import cast as cast_expr
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import Operand, balanced, elementwise


def _binary(kind: str, meaning: str) -> Callable[[Operand, Operand], Tensor]:
    def operator(a: Operand, b: Operand) -> Tensor:
        return elementwise(kind, lambda x, y: binary(kind, x, y), _like(a, b), _like(b, a))

    operator.__doc__ = f"{meaning}, element by element; both of one data type, or one a number."
    return operator


def _like(a: Operand, b: Operand) -> Operand:
    """A number as a literal of the other operand's type (checked early, for the text of the error)."""
    if not isinstance(a, Tensor) and isinstance(b, Tensor):
        const(a, b.dtype)
    return a


add = _binary("add", "``a + b``")
sub = _binary("sub", "``a - b``")
mul = _binary("mul", "``a * b``")
div = _binary("div", "``a / b`` (of integers: towards zero, and 0 where ``b`` is 0)")
less = _binary("lt", "``a < b`` as bool")
less_equal = _binary("le", "``a <= b`` as bool")
equal = _binary("eq", "``a == b`` as bool")
not_equal = _binary("ne", "``a != b`` as bool")
logical_and = _binary("and", "Both of two bools")
logical_or = _binary("or", "Either of two bools")
logical_xor = _binary("xor", "One of two bools, not both")
bit_and = _binary("bitand", "``a & b`` of integers")
bit_or = _binary("bitor", "``a | b`` of integers")
bit_xor = _binary("bitxor", "``a ^ b`` of integers")
shift_left = _binary("shl", "``a << b`` of integers (0 where all bits leave)")
shift_right = _binary("shr", "``a >> b`` of integers (signed ones keep their sign)")


def greater(a: Operand, b: Operand) -> Tensor:
    """``a > b``."""
    return less(b, a)


def greater_equal(a: Operand, b: Operand) -> Tensor:
    """``a >= b``."""
    return less_equal(b, a)


def maximum_of(*operands: Operand) -> Tensor:
    """The largest of the operands; NaN where any is NaN."""
    return elementwise("max", lambda *e: balanced(maximum, e), *operands)


def minimum_of(*operands: Operand) -> Tensor:
    """The smallest of the operands; NaN where any is NaN."""
    return elementwise("min", lambda *e: balanced(minimum, e), *operands)


def sum_of(*operands: Operand) -> Tensor:
    """The sum of the operands."""
    return elementwise("sum", lambda *e: balanced(lambda a, b: a + b, e), *operands)


def mean_of(*operands: Operand) -> Tensor:
    """The mean of the operands."""
    return elementwise("mean", lambda *e: balanced(lambda a, b: a + b, e) / len(operands), *operands)


def _unary(kind: str, meaning: str = "") -> Callable[[Tensor], Tensor]:
    def operator(x: Tensor) -> Tensor:
        return elementwise(kind, lambda a: unary(kind, a), x)

    operator.__doc__ = f"{meaning or f'``{kind}(x)``'}, element by element."
    return operator


exp = _unary("exp")
log = _unary("log")
tanh = _unary("tanh")
erf = _unary("erf", "The error function")
sigmoid = _unary("sigmoid", "``1 / (1 + exp(-x))``")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt", "``1 / sqrt(x)``")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
log1p = _unary("log1p", "``log(1 + x)``, exact near 0")
expm1 = _unary("expm1", "``exp(x) - 1``, exact near 0")
floor = _unary("floor", "The largest whole number not above ``x``")
ceil = _unary("ceil", "The smallest whole number not below ``x``")
round_even = _unary("round", "The nearest whole number, halves to the even one")
trunc = _unary("trunc", "``x`` rounded towards zero")
neg = _unary("neg", "``-x``")
absolute = _unary("abs", "``|x|``")
logical_not = _unary("not", "True where a bool is false")
bit_not = _unary("bitnot", "``~x`` of integers")
isnan = _unary("isnan", "True where ``x`` is NaN")


def isinf(x: Tensor, negative: bool = True, positive: bool = True) -> Tensor:
    """True where an element is infinite, of the signs asked for."""
    if negative and positive:
        return elementwise("isinf", lambda a: unary("isinf", a), x)
    if not negative and not positive:
        return elementwise("isinf", lambda a: const(False, "bool"), x)
    return elementwise("isinf", lambda a: a.eq(float("-inf") if negative else float("inf")), x)


def reciprocal(x: Tensor) -> Tensor:
    """``1 / x``."""
    return elementwise("reciprocal", lambda a: const(1, a.dtype) / a, x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; NaN stays NaN."""
    if x.dtype in UNSIGNED:
        return elementwise("sign", lambda a: select(a.eq(0), 0, const(1, a.dtype)), x)
    return elementwise("sign", lambda a: select(a.lt(0), -1, select(a.gt(0), 1, a)), x)


def identity(x: Tensor) -> Tensor:
    """``x`` itself."""
    return x


def cast(x: Tensor, dtype: str) -> Tensor:
    """``x`` converted: float to int truncates towards zero, anything to bool tests for non-zero."""
    return x if x.dtype == dtype else elementwise("cast", lambda a: cast_expr(a, dtype), x)


def where(condition: Tensor, then: Operand, otherwise: Operand) -> Tensor:
    """``then`` where ``condition`` holds, else ``otherwise``."""
    known = then if isinstance(then, Tensor) else otherwise
    if not isinstance(known, Tensor):
        raise GraphError(f"where: expected a tensor for one of the two values; got {then!r} and {otherwise!r}")
    values = [v if isinstance(v, Tensor) else const(v, known.dtype) for v in (then, otherwise)]
    tensors = [v for v in values if isinstance(v, Tensor)]

    def body(c: Expr, *rest: Expr) -> Expr:
        given = iter(rest)
        a, b = (next(given) if isinstance(v, Tensor) else v for v in values)
        return select(c, a, b)

    return elementwise("where", body, condition, *tensors)


def clip(x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    """``min(max(x, low), high)``; a bound that is None does not bind, and NaN stays NaN."""
    if low is not None and high is not None:
        return elementwise("clip", lambda a, lo, hi: minimum(maximum(a, lo), hi), x, low, high)
    if low is not None:
        return elementwise("clip", maximum, x, low)
    return x if high is None else elementwise("clip", minimum, x, high)


def mod(a: Operand, b: Operand) -> Tensor:
    """The remainder with the sign of the divisor, as Python's ``%``."""
    return elementwise("mod", lambda x, y: _floor_mod(x, y), a, b)


def _floor_mod(x: Expr, y: Expr) -> Expr:
    if x.dtype not in FLOATS:
        return x % y
    r = binary("fmod", x, y)
    return select(binary("and", binary("ne", r, 0), binary("ne", r.lt(0), y.lt(0))), r + y, r)


def fmod(a: Operand, b: Operand) -> Tensor:
    """The remainder with the sign of the dividend, as C's ``fmod`` and integer ``%``."""
    return elementwise("fmod", lambda x, y: binary("fmod", x, y) if x.dtype in FLOATS else x - x / y * y, a, b)


def power(a: Tensor, b: Operand) -> Tensor:
    """``a ** b`` in the type of ``a``. Small constant exponents become products and roots, with the special values of a power.
    Integers to a negative power are truncated towards zero, and to a power of another integer type are computed in the wider one."""

    def body(x: Expr, y: Expr) -> Expr:
        if isinstance(y, Const) and y.value in _POWERS and (x.dtype in FLOATS or y.value in (1, 2, 3)):
            return _POWERS[float(y.value)](x)
        if x.dtype == y.dtype:
            return binary("pow", x, y)
        if x.dtype in FLOATS:
            return binary("pow", x, cast_expr(y, x.dtype))
        if y.dtype not in FLOATS:
            wide = "uint64" if "uint64" in (x.dtype, y.dtype) else np.promote_types(x.dtype, y.dtype).name
            whole = cast_expr(binary("pow", cast_expr(x, wide), cast_expr(y, wide)), x.dtype)
            if wide != "uint64" or y.dtype in UNSIGNED:
                return whole
            return select(y.lt(0), select(x.eq(1), const(1, x.dtype), const(0, x.dtype)), whole)
        return cast_expr(binary("pow", cast_expr(x, "float64"), cast_expr(y, "float64")), x.dtype)

    return elementwise("pow", body, a, b)


_POWERS: dict[Any, Callable[[Expr], Expr]] = {
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    # a power of -0.0 has no sign, and one of the negative infinity is that of the positive one
    0.5: lambda x: select(x.eq(0), 0, select(x.eq(-math.inf), math.inf, unary("sqrt", x))),
    -1.0: lambda x: const(1, x.dtype) / x,
    -0.5: lambda x: select(x.eq(0), math.inf, select(x.eq(-math.inf), 0, unary("rsqrt", x))),
}
