"""Reducing the lanes of a vector to one value, in LLVM IR."""

from __future__ import annotations

from tilewright.graph.dtypes import FLOATS
from tilewright.schedules.emit import LLVM_TYPES, Function, Value, suffix, unsigned
from tilewright.schedules.scalar_float import FLOAT_OPS

_REDUCE_FLOAT = {"sum": "fadd", "prod": "fmul"}
_REDUCE_INT = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def across(fn: Function, reducer: str, v: Value) -> Value:
    """Reduce the lanes of a vector to a scalar."""
    if v.lanes == 1:
        return v
    if v.dtype in FLOATS and reducer in ("max", "min"):
        return _halved(fn, reducer, v)
    scalar = LLVM_TYPES[v.dtype]
    kind = suffix(v.dtype, v.lanes)
    if v.dtype in FLOATS:
        name = f"@llvm.vector.reduce.{_REDUCE_FLOAT[reducer]}.{kind}"
        start = "0x0000000000000000" if reducer == "sum" else "0x3FF0000000000000"
        fn.declare(f"declare {scalar} {name}({scalar}, {v.type})")
        return fn.op(f"call reassoc {scalar} {name}({scalar} {start}, {v.typed})", v.dtype)
    name = "or" if v.dtype == "bool" and reducer == "sum" else _REDUCE_INT[reducer]
    if reducer in ("max", "min"):
        name = ("u" if unsigned(v.dtype) else "s") + name
    name = f"@llvm.vector.reduce.{name}.{kind}"
    fn.declare(f"declare {scalar} {name}({v.type})")
    return fn.op(f"call {scalar} {name}({v.typed})", v.dtype)


def _halved(fn: Function, reducer: str, v: Value) -> Value:
    """The largest or smallest lane, by halves: LLVM's own reduction that keeps NaN compares lane by lane, with
    branches. A vector has a power of two of lanes."""
    while v.lanes > 1:
        half = v.lanes // 2
        low, high = fn.shuffle(v, None, list(range(half))), fn.shuffle(v, None, list(range(half, v.lanes)))
        v = FLOAT_OPS[reducer](fn, [low, high], v.dtype, half)
    return v


#: The two-argument operation a reducer repeats.
REDUCER_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
