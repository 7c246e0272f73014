"""Integer and bool operations in LLVM IR, by the kind of the expression node: defined for every operand, where LLVM's instructions
are not (a division by zero gives 0, a shift by the width or more moves everything out)."""

from __future__ import annotations

from tilewright.graph.dtypes import SIZES, UNSIGNED, int_range
from tilewright.schedules.emit import LLVM_TYPES, Emit, Function, Value, instruction, splat_literal, unsigned


def _int_minmax(name: str) -> Emit:
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


def _floored(part: int) -> Emit:
    """The quotient (0) or the remainder (1) of a division that rounds down; 0 where there is none."""

    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        if _plain_divisor(a[1]):
            return _floor_parts(fn, a, dtype, lanes)[part]
        safe, bad = _safe_divisor(fn, a[0], a[1])
        v = _floor_parts(fn, [a[0], safe], dtype, lanes)[part]
        return fn.op(f"select {bad.typed}, {v.type} {splat_literal(0, dtype, lanes)}, {v.typed}", dtype, lanes)

    return emit


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
    """By squaring, a step for each bit of the exponent. A negative power is truncated towards zero: that of 1 and -1 is a unit, all
    others (of 0 too, which has none) are 0."""
    bits = 8 * SIZES[dtype] - (dtype not in UNSIGNED)
    one = Value(splat_literal(1, dtype, lanes), dtype, lanes)
    zero = splat_literal(0, dtype, lanes)
    result, square, left = one, a[0], a[1]
    for _ in range(bits):
        bit = fn.op(f"and {left.typed}, {one.name}", dtype, lanes)
        odd = fn.op(f"icmp ne {bit.typed}, {zero}", "bool", lanes)
        product = fn.op(f"mul {result.typed}, {square.name}", dtype, lanes)
        result = fn.op(f"select {odd.typed}, {product.typed}, {result.typed}", dtype, lanes)
        square = fn.op(f"mul {square.typed}, {square.name}", dtype, lanes)
        left = fn.op(f"lshr {left.typed}, {one.name}", dtype, lanes)
    if dtype in UNSIGNED:
        return result
    negative = fn.op(f"icmp slt {a[1].typed}, {zero}", "bool", lanes)
    minus = splat_literal(-1, dtype, lanes)
    last = fn.op(f"and {a[1].typed}, {one.name}", dtype, lanes)
    odd = fn.op(f"icmp ne {last.typed}, {zero}", "bool", lanes)
    below = fn.op(f"icmp eq {a[0].typed}, {minus}", "bool", lanes)
    turned = fn.op(f"select {odd.typed}, {one.type} {minus}, {one.typed}", dtype, lanes)
    unit = fn.op(f"icmp eq {a[0].typed}, {one.name}", "bool", lanes)
    truncated = fn.op(f"select {below.typed}, {turned.typed}, {one.type} {zero}", dtype, lanes)
    truncated = fn.op(f"select {unit.typed}, {one.typed}, {truncated.typed}", dtype, lanes)
    return fn.op(f"select {negative.typed}, {truncated.typed}, {result.typed}", dtype, lanes)


def _add(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
    return instruction("or" if dtype == "bool" else "add")(fn, a, dtype, lanes)


def _shift(fn: Function, a: list[Value], dtype: str, lanes: int, left: bool) -> Value:
    """A shift by as many bits as the type has, or more, moves everything out (LLVM leaves that undefined)."""
    bits = int(LLVM_TYPES[dtype][1:])
    most = Value(splat_literal(bits - 1, dtype, lanes), dtype, lanes)
    count = fn.intrinsic("umin", [a[1], most], dtype, lanes)
    if not left and not unsigned(dtype):
        return instruction("ashr")(fn, [a[0], count], dtype, lanes)
    shifted = instruction("shl" if left else "lshr")(fn, [a[0], count], dtype, lanes)
    inside = fn.op(f"icmp ule {a[1].typed}, {most.name}", "bool", lanes)
    return fn.op(
        f"select {inside.typed}, {shifted.typed}, {shifted.type} {splat_literal(0, dtype, lanes)}",
        dtype,
        lanes,
    )


INTEGER_OPS: dict[str, Emit] = {
    "add": _add,
    "sub": instruction("sub"),
    "mul": instruction("mul"),
    "div": _divide,
    "floordiv": _floored(0),
    "mod": _floored(1),
    "fmod": _fmod,
    "pow": _int_pow,
    "max": _int_minmax("max"),
    "min": _int_minmax("min"),
    "and": instruction("and"),
    "or": instruction("or"),
    "xor": instruction("xor"),
    "bitand": instruction("and"),
    "bitor": instruction("or"),
    "bitxor": instruction("xor"),
    "shl": lambda fn, a, dtype, lanes: _shift(fn, a, dtype, lanes, left=True),
    "shr": lambda fn, a, dtype, lanes: _shift(fn, a, dtype, lanes, left=False),
    "neg": _int_negate,
    "abs": _int_abs,
    "not": _invert,
    "bitnot": _invert,
}
