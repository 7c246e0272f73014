"""Scalar operations in LLVM IR: what each expression node means, for one value or a vector of them."""

from __future__ import annotations

from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import MATHS
from tilewright.schedules import maths
from tilewright.schedules.emit import LLVM_TYPES, Function, Value, splat_literal, suffix, unsigned, vector_type
from tilewright.schedules.falling import FALLING
from tilewright.schedules.scalar_float import FLOAT_OPS
from tilewright.schedules.scalar_int import INTEGER_OPS


def operate(fn: Function, kind: str, args: list[Value], dtype: str, helpers: set[tuple[str, int, str]]) -> Value:
    """``kind`` applied to values of equal lane counts; result of type ``dtype``. Maths functions needed are
    added to ``helpers``."""
    lanes = max(a.lanes for a in args)
    args = [fn.splat(a, lanes) for a in args]
    if kind in MATHS or kind == FALLING or (kind == "pow" and dtype in FLOATS):
        return call_maths(fn, kind, args, dtype, lanes, helpers)
    if kind == "cast":
        return convert(fn, args[0], dtype)
    if kind in _COMPARE:
        return _compare(fn, kind, args[0], args[1])
    table = FLOAT_OPS if args[0].dtype in FLOATS else INTEGER_OPS
    return table[kind](fn, args, dtype, lanes)


def call_maths(
    fn: Function, kind: str, args: list[Value], dtype: str, lanes: int, helpers: set[tuple[str, int, str]]
) -> Value:
    """Call the vector maths library."""
    helpers.add((kind, lanes, dtype))
    typed = ", ".join(a.typed for a in args)
    return fn.op(f"call {args[0].type} @{maths.symbol(kind, lanes, dtype)}({typed})", dtype, lanes)


_COMPARE = {
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
}


def _compare(fn: Function, kind: str, a: Value, b: Value) -> Value:
    floating, signed, without = _COMPARE[kind]
    if a.dtype in FLOATS:
        return fn.op(f"fcmp {floating} {a.typed}, {b.name}", "bool", a.lanes)
    return fn.op(f"icmp {without if unsigned(a.dtype) else signed} {a.typed}, {b.name}", "bool", a.lanes)


def convert(fn: Function, v: Value, dtype: str) -> Value:
    """``v`` as ``dtype``; out-of-range float-to-int conversion saturates."""
    if v.dtype == dtype:
        return v
    source, target = v.dtype, vector_type(LLVM_TYPES[dtype], v.lanes)
    if dtype == "bool":
        zero = splat_literal(0, source, v.lanes)
        return fn.op(f"{'fcmp une' if source in FLOATS else 'icmp ne'} {v.typed}, {zero}", "bool", v.lanes)
    if source in FLOATS and dtype in FLOATS:
        return fn.op(f"{'fpext' if dtype == 'float64' else 'fptrunc'} {v.typed} to {target}", dtype, v.lanes)
    if source in FLOATS:
        # through int64, so that a value outside the range of a small type wraps as NumPy's conversion does
        wide = vector_type("i64", v.lanes)
        name = f"@llvm.fptosi.sat.{'i64' if v.lanes == 1 else f'v{v.lanes}i64'}.{suffix(source, v.lanes)}"
        fn.declare(f"declare {wide} {name}({v.type})")
        whole = fn.op(f"call {wide} {name}({v.typed})", "int64", v.lanes)
        return convert(fn, whole, dtype)
    if dtype in FLOATS:
        return fn.op(f"{'uitofp' if unsigned(source) else 'sitofp'} {v.typed} to {target}", dtype, v.lanes)
    bits_from, bits_to = (int(LLVM_TYPES[d][1:]) for d in (source, dtype))
    if bits_from == bits_to:
        return Value(v.name, dtype, v.lanes)
    if bits_from > bits_to:
        return fn.op(f"trunc {v.typed} to {target}", dtype, v.lanes)
    return fn.op(f"{'zext' if unsigned(source) else 'sext'} {v.typed} to {target}", dtype, v.lanes)
