"""Scalar operations in LLVM IR: what each expression node means, for one value or a vector of them."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.dtypes import FLOATS, int_range
from tilewright.graph.expr import MATHS
from tilewright.schedules import maths
from tilewright.schedules.emit import FAST, LLVM_TYPES, Function, Value, splat_literal, unsigned, vector_type
from tilewright.schedules.falling import FALLING


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
    table = _FLOAT if args[0].dtype in FLOATS else _INT
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


def _simple(text: str) -> Callable[[Function, list[Value], str, int], Value]:
    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        return fn.op(f"{text} {a[0].typed}, {a[1].name}", dtype, lanes)

    return emit


def _intrinsic(name: str, flags: str = "") -> Callable[[Function, list[Value], str, int], Value]:
    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        return fn.intrinsic(name, a, dtype, lanes, flags)

    return emit


def _extreme(name: str, compare: str) -> Callable[[Function, list[Value], str, int], Value]:
    """NaN-propagating max/min. With a constant operand one compare is enough: the other side wins when it is
    NaN. Zeros of either sign are equal: to order them would take three more instructions."""

    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        x, y = a
        if not y.name.startswith("%"):
            x, y = y, x
        if not x.name.startswith("%") and "0x7FF8" not in x.name:
            c = fn.op(f"fcmp {compare} {x.typed}, {y.name}", "bool", lanes)
            return fn.op(f"select {c.typed}, {x.typed}, {y.typed}", dtype, lanes)
        return fn.intrinsic(name, [x, y], dtype, lanes, "nsz")

    return emit


def _negate(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    return fn.op(f"fneg {a[0].typed}", dtype, lanes)


def _isnan(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    return fn.op(f"fcmp uno {a[0].typed}, {a[0].name}", "bool", lanes)


def _isinf(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    size = fn.intrinsic("fabs", [a[0]], a[0].dtype, lanes)
    return fn.op(f"fcmp oeq {size.typed}, {splat_literal(float('inf'), a[0].dtype, lanes)}", "bool", lanes)


_FLOAT: dict[str, Callable[[Function, list[Value], str, int], Value]] = {
    "add": _simple(f"fadd {FAST}"),
    "sub": _simple(f"fsub {FAST}"),
    "mul": _simple(f"fmul {FAST}"),
    "div": _simple(f"fdiv {FAST}"),
    "fmod": _simple("frem"),
    "max": _extreme("maximum", "ogt"),
    "min": _extreme("minimum", "olt"),
    "neg": _negate,
    "abs": _intrinsic("fabs"),
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "isnan": _isnan,
    "isinf": _isinf,
}


def _int_minmax(name: str) -> Callable[[Function, list[Value], str, int], Value]:
    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        return fn.intrinsic(("u" if unsigned(dtype) else "s") + name, a, dtype, lanes)

    return emit


def _safe_divisor(fn: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """A divisor that is never zero (and never -1 with the smallest dividend), and whether it was replaced."""
    zero = splat_literal(0, b.dtype, b.lanes)
    one = splat_literal(1, b.dtype, b.lanes)
    bad = fn.op(f"icmp eq {b.typed}, {zero}", "bool", b.lanes)
    if not unsigned(b.dtype):
        low = splat_literal(int_range(b.dtype)[0], b.dtype, b.lanes)
        minus = fn.op(f"icmp eq {b.typed}, {splat_literal(-1, b.dtype, b.lanes)}", "bool", b.lanes)
        lowest = fn.op(f"icmp eq {a.typed}, {low}", "bool", b.lanes)
        both = fn.op(f"and {minus.typed}, {lowest.name}", "bool", b.lanes)
        replaced = fn.op(f"or {bad.typed}, {both.name}", "bool", b.lanes)
    else:
        replaced = bad
    return fn.op(f"select {replaced.typed}, {b.type} {one}, {b.typed}", b.dtype, b.lanes), bad


def _divide(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    """Truncating division; a zero divisor gives 0."""
    safe, bad = _safe_divisor(fn, a[0], a[1])
    q = fn.op(f"{'udiv' if unsigned(dtype) else 'sdiv'} {a[0].typed}, {safe.name}", dtype, lanes)
    return fn.op(f"select {bad.typed}, {q.type} {splat_literal(0, dtype, lanes)}, {q.typed}", dtype, lanes)


def _floor_parts(fn: Function, a: list[Value], dtype: str, lanes: int) -> tuple[Value, Value]:
    """Quotient rounded down, and the remainder with the divisor's sign."""
    if unsigned(dtype):
        q = fn.op(f"udiv {a[0].typed}, {a[1].name}", dtype, lanes)
        return q, fn.op(f"urem {a[0].typed}, {a[1].name}", dtype, lanes)
    q = fn.op(f"sdiv {a[0].typed}, {a[1].name}", dtype, lanes)
    r = fn.op(f"srem {a[0].typed}, {a[1].name}", dtype, lanes)
    zero = splat_literal(0, dtype, lanes)
    signs = fn.op(f"xor {r.typed}, {a[1].name}", dtype, lanes)
    differ = fn.op(f"icmp slt {signs.typed}, {zero}", "bool", lanes)
    inexact = fn.op(f"icmp ne {r.typed}, {zero}", "bool", lanes)
    adjust = fn.op(f"and {differ.typed}, {inexact.name}", "bool", lanes)
    step = fn.op(f"zext {adjust.typed} to {q.type}", dtype, lanes)
    moved = fn.op(f"select {adjust.typed}, {a[1].typed}, {q.type} {zero}", dtype, lanes)
    return fn.op(f"sub {q.typed}, {step.name}", dtype, lanes), fn.op(f"add {r.typed}, {moved.name}", dtype, lanes)


def _plain_divisor(v: Value) -> bool:
    """Whether a divisor is a literal that no dividend overflows with: neither zero nor minus one."""
    return not v.name.startswith("%") and v.name.removeprefix("splat (").rstrip(")").split()[-1] not in (
        "0",
        "-1",
    )


def _floordiv(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    if not _plain_divisor(a[1]):
        safe, bad = _safe_divisor(fn, a[0], a[1])
        q, _ = _floor_parts(fn, [a[0], safe], dtype, lanes)
        return fn.op(f"select {bad.typed}, {q.type} {splat_literal(0, dtype, lanes)}, {q.typed}", dtype, lanes)
    return _floor_parts(fn, a, dtype, lanes)[0]


def _mod(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    if not _plain_divisor(a[1]):
        safe, bad = _safe_divisor(fn, a[0], a[1])
        _, r = _floor_parts(fn, [a[0], safe], dtype, lanes)
        return fn.op(f"select {bad.typed}, {r.type} {splat_literal(0, dtype, lanes)}, {r.typed}", dtype, lanes)
    return _floor_parts(fn, a, dtype, lanes)[1]


def _fmod(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    """Remainder with the dividend's sign."""
    safe, bad = _safe_divisor(fn, a[0], a[1])
    r = fn.op(f"{'urem' if unsigned(dtype) else 'srem'} {a[0].typed}, {safe.name}", dtype, lanes)
    return fn.op(f"select {bad.typed}, {r.type} {splat_literal(0, dtype, lanes)}, {r.typed}", dtype, lanes)


def _int_negate(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    return fn.op(f"sub {a[0].type} {splat_literal(0, dtype, lanes)}, {a[0].name}", dtype, lanes)


def _int_abs(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    if unsigned(dtype):
        return a[0]
    negative = _int_negate(fn, a, dtype, lanes)
    return fn.intrinsic("smax", [a[0], negative], dtype, lanes)


def _invert(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    ones = splat_literal(True if dtype == "bool" else -1, dtype, lanes)
    return fn.op(f"xor {a[0].typed}, {ones}", dtype, lanes)


def _int_pow(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    """By squaring, six steps: exponents up to 63 (a larger one overflows every base but 0, 1 and -1, whose
    powers repeat)."""
    one = Value(splat_literal(1, dtype, lanes), dtype, lanes)
    zero = splat_literal(0, dtype, lanes)
    result, square, left = one, a[0], a[1]
    for _ in range(6):
        bit = fn.op(f"and {left.typed}, {one.name}", dtype, lanes)
        odd = fn.op(f"icmp ne {bit.typed}, {zero}", "bool", lanes)
        product = fn.op(f"mul {result.typed}, {square.name}", dtype, lanes)
        result = fn.op(f"select {odd.typed}, {product.typed}, {result.typed}", dtype, lanes)
        square = fn.op(f"mul {square.typed}, {square.name}", dtype, lanes)
        left = fn.op(f"lshr {left.typed}, {one.name}", dtype, lanes)
    return result


def _add(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    return _simple("or" if dtype == "bool" else "add")(fn, a, dtype, lanes)


def _shift(fn: Function, a: list[Value], dtype: str, lanes: int, left: bool) -> Value:
    """A shift by as many bits as the type has, or more, moves everything out (LLVM leaves that undefined)."""
    bits = int(LLVM_TYPES[dtype][1:])
    most = Value(splat_literal(bits - 1, dtype, lanes), dtype, lanes)
    count = fn.intrinsic("umin", [a[1], most], dtype, lanes)
    if not left and not unsigned(dtype):
        return _simple("ashr")(fn, [a[0], count], dtype, lanes)
    shifted = _simple("shl" if left else "lshr")(fn, [a[0], count], dtype, lanes)
    inside = fn.op(f"icmp ule {a[1].typed}, {most.name}", "bool", lanes)
    return fn.op(
        f"select {inside.typed}, {shifted.typed}, {shifted.type} {splat_literal(0, dtype, lanes)}",
        dtype,
        lanes,
    )


_INT: dict[str, Callable[[Function, list[Value], str, int], Value]] = {
    "add": _add,
    "sub": _simple("sub"),
    "mul": _simple("mul"),
    "div": _divide,
    "floordiv": _floordiv,
    "mod": _mod,
    "fmod": _fmod,
    "pow": _int_pow,
    "max": _int_minmax("max"),
    "min": _int_minmax("min"),
    "and": _simple("and"),
    "or": _simple("or"),
    "xor": _simple("xor"),
    "bitand": _simple("and"),
    "bitor": _simple("or"),
    "bitxor": _simple("xor"),
    "shl": lambda fn, a, dtype, lanes: _shift(fn, a, dtype, lanes, left=True),
    "shr": lambda fn, a, dtype, lanes: _shift(fn, a, dtype, lanes, left=False),
    "neg": _int_negate,
    "abs": _int_abs,
    "not": _invert,
    "bitnot": _invert,
}


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
        name = f"@llvm.fptosi.sat.{'i64' if v.lanes == 1 else f'v{v.lanes}i64'}.{_suffix(source, v.lanes)}"
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


def _suffix(dtype: str, lanes: int) -> str:
    scalar = "f32" if dtype == "float32" else "f64"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


_REDUCE_FLOAT = {"sum": "fadd", "prod": "fmul"}
_REDUCE_INT = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def across(fn: Function, reducer: str, v: Value) -> Value:
    """Reduce the lanes of a vector to a scalar."""
    if v.lanes == 1:
        return v
    if v.dtype in FLOATS and reducer in ("max", "min"):
        return _halved(fn, reducer, v)
    scalar = LLVM_TYPES[v.dtype]
    kind = f"{'v'}{v.lanes}{'f32' if scalar == 'float' else 'f64' if scalar == 'double' else scalar}"
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
        v = _FLOAT[reducer](fn, [low, high], v.dtype, half)
    return v


#: The two-argument operation a reducer repeats.
REDUCER_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
