"""Write running maxima and minima that keep NaN.

A maximum that keeps NaN of either side takes three floating-point instructions: the maximum, a comparison for NaN, and a
choice. A running one needs one, the maximum that keeps NaN of what it was, and a flag beside it: the largest of the bits of
all elements without their signs, which are above those of infinity once one was NaN. Those are two integer operations, of
which processors do more at a time. Whoever reads the maximum takes both together.

The flags take registers, so only few accumulators have them.
"""

from __future__ import annotations

from tilewright.graph.dtypes import SIZES
from tilewright.schedules.emit import LLVM_TYPES, Value, splat_literal, vector_type
from tilewright.schedules.nest import Alloc, Store, walk
from tilewright.schedules.write_scope import Scope

FLAGGED_BYTES = 192
"""Accumulators that leave registers for their flags on every processor: six of the sixteen of 32 bytes."""
_COMPARE = {"max": "ogt", "min": "olt"}
_INTEGER = {"float32": "int32", "float64": "int64"}
_INFINITY = {"float32": 0xFF000000, "float64": 0xFFE0000000000000}
"""The bits of infinity without its sign, shifted by one: those of NaN are above."""


def has_flags(n: Alloc) -> bool:
    """Whether a register buffer holds running maxima or minima that get flags."""
    b = n.buffer
    if b.dtype not in _INTEGER or b.size * SIZES[b.dtype] > FLAGGED_BYTES:
        return False
    return any(isinstance(x, Store) and x.tensor == b.name and x.reducer in _COMPARE for x in walk(n.body))


def extreme(scope: Scope, reducer: str, new: Value, old: Value) -> Value:
    """The maximum or minimum; NaN if ``old`` is, whatever ``new`` is."""
    c = scope.fn.op(f"fcmp {_COMPARE[reducer]} {new.typed}, {old.name}", "bool", new.lanes)
    return scope.fn.op(f"select {c.typed}, {new.typed}, {old.typed}", new.dtype, new.lanes)


def flagged(scope: Scope, new: Value, flag: Value) -> Value:
    """The flag once ``new`` was seen."""
    fn = scope.fn
    x, seen = _bits(scope, new), _bits(scope, flag)
    twice = fn.op(f"add {x.typed}, {x.name}", x.dtype, x.lanes)
    return _float(scope, fn.intrinsic("umax", [seen, twice], x.dtype, x.lanes), new.dtype)


def with_flag(scope: Scope, v: Value, flag: Value) -> Value:
    """``v``, NaN where the flag says so."""
    fn, bits = scope.fn, _bits(scope, flag)
    c = fn.op(f"icmp ugt {bits.typed}, {splat_literal(_INFINITY[v.dtype], bits.dtype, v.lanes)}", "bool", v.lanes)
    nan = splat_literal(float("nan"), v.dtype, v.lanes)
    return fn.op(f"select {c.typed}, {v.type} {nan}, {v.typed}", v.dtype, v.lanes)


def _bits(scope: Scope, v: Value) -> Value:
    kind = _INTEGER[v.dtype]
    return scope.fn.op(f"bitcast {v.typed} to {vector_type(LLVM_TYPES[kind], v.lanes)}", kind, v.lanes)


def _float(scope: Scope, v: Value, dtype: str) -> Value:
    return scope.fn.op(f"bitcast {v.typed} to {vector_type(LLVM_TYPES[dtype], v.lanes)}", dtype, v.lanes)


def no_flag(dtype: str, lanes: int) -> Value:
    """The flag before anything was seen."""
    return Value(splat_literal(0, dtype, lanes), dtype, lanes)
