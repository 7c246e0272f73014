"""Floating-point operations in LLVM IR, by the kind of the expression node."""

from __future__ import annotations

from tilewright.schedules.emit import FAST, Emit, Function, Value, instruction, splat_literal


def _intrinsic(name: str, flags: str = "") -> Emit:
    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        return fn.intrinsic(name, a, dtype, lanes, flags)

    return emit


def _extreme(name: str, compare: str) -> Emit:
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


FLOAT_OPS: dict[str, Emit] = {
    "add": instruction(f"fadd {FAST}"),
    "sub": instruction(f"fsub {FAST}"),
    "mul": instruction(f"fmul {FAST}"),
    "div": instruction(f"fdiv {FAST}"),
    "fmod": instruction("frem"),
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
