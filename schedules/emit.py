"""A small writer of LLVM IR text: one function body, typed values, and nothing about loops or schedules.

Text instead of an object model because a candidate has to compile in milliseconds: appending a line costs a
microsecond.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.graph.dtypes import UNSIGNED

LLVM_TYPES = {
    "float32": "float", "float64": "double", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16",
    "int32": "i32", "uint32": "i32", "int64": "i64", "uint64": "i64", "bool": "i1",
}  # fmt: skip
#: Flags on floating-point arithmetic: fuse multiply-add, divide by reciprocal when invariant. No
#: reassociation, NaN and
#: infinities keep their meaning.
FAST = "contract arcp"


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name or literal, with its data type and lane count (1 is a scalar)."""

    name: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """LLVM type text."""
        return vector_type(LLVM_TYPES[self.dtype], self.lanes)

    @property
    def typed(self) -> str:
        """``type name``."""
        return f"{self.type} {self.name}"


def vector_type(scalar: str, lanes: int) -> str:
    """``<lanes x scalar>``, or the scalar itself."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def memory_type(dtype: str) -> str:
    """Element type in memory (a bool takes a byte)."""
    return "i8" if dtype == "bool" else LLVM_TYPES[dtype]


def suffix(dtype: str, lanes: int) -> str:
    """The mangled type of an intrinsic: ``v8f32``."""
    scalar = {"float32": "f32", "float64": "f64"}.get(dtype, LLVM_TYPES[dtype])
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def literal(value: bool | int | float, dtype: str) -> str:
    """A scalar constant."""
    if dtype == "float32":
        value = struct.unpack("f", struct.pack("f", _clamp32(float(value))))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype == "float64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if dtype == "bool":
        return "true" if value else "false"
    return str(int(value))


def _clamp32(value: float) -> float:
    try:
        struct.pack("f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def splat_literal(value: bool | int | float, dtype: str, lanes: int) -> str:
    """A constant of ``lanes`` lanes."""
    text = literal(value, dtype)
    if lanes == 1:
        return text
    return f"splat ({LLVM_TYPES[dtype]} {text})"


def unsigned(dtype: str) -> bool:
    """Whether integer comparison and division are unsigned."""
    return dtype in UNSIGNED


@dataclass
class Function:
    """The text of one function being written."""

    lines: list[str] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    block: str = "entry"
    count: int = 0
    declares: set[str] = field(default_factory=set)

    def fresh(self, hint: str = "v") -> str:
        """A new SSA name."""
        self.count += 1
        return f"%{hint}{self.count}"

    def op(self, text: str, dtype: str, lanes: int = 1) -> Value:
        """``%new = text``."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return Value(name, dtype, lanes)

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        """Start a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def new_label(self, hint: str) -> str:
        """A fresh block name."""
        self.count += 1
        return f"{hint}{self.count}"

    def branch(self, target: str) -> None:
        """Jump."""
        self.do(f"br label %{target}")

    def branch_if(self, condition: Value, then: str, otherwise: str) -> None:
        """Conditional jump."""
        self.do(f"br i1 {condition.name}, label %{then}, label %{otherwise}")

    def declare(self, text: str) -> None:
        """Note an external declaration."""
        self.declares.add(text)

    def intrinsic(self, name: str, args: list[Value], dtype: str, lanes: int, flags: str = "") -> Value:
        """Call ``@llvm.name`` overloaded on the result type."""
        full = f"@llvm.{name}.{suffix(dtype, lanes)}"
        result = vector_type(LLVM_TYPES[dtype], lanes)
        self.declare(f"declare {result} {full}({', '.join(a.type for a in args)})")
        return self.op(
            f"call {flags + ' ' if flags else ''}{result} {full}({', '.join(a.typed for a in args)})",
            dtype,
            lanes,
        )

    def splat(self, v: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if v.lanes == lanes:
            return v
        assert v.lanes == 1
        if not v.name.startswith("%"):
            return Value(f"splat ({v.type} {v.name})", v.dtype, lanes)
        vec = vector_type(v.type, lanes)
        one = self.op(f"insertelement {vec} poison, {v.typed}, i64 0", v.dtype, lanes)
        return self.op(f"shufflevector {vec} {one.name}, {vec} poison, <{lanes} x i32> zeroinitializer", v.dtype, lanes)

    def shuffle(self, a: Value, b: Value | None, mask: list[int]) -> Value:
        """Lanes picked from ``a`` then ``b``."""
        other = f"{a.type} {b.name}" if b is not None else f"{a.type} poison"
        text = ", ".join(f"i32 {m}" for m in mask)
        if len(mask) == 1:
            both = mask[0] if mask[0] < a.lanes else mask[0] - a.lanes
            source = a if mask[0] < a.lanes or b is None else b
            return self.op(f"extractelement {source.typed}, i64 {both}", a.dtype)
        return self.op(f"shufflevector {a.typed}, {other}, <{len(mask)} x i32> <{text}>", a.dtype, len(mask))


Emit = Callable[[Function, list[Value], str, int], Value]
"""Writes an operation on values of equal lane counts: ``emit(function, arguments, dtype of the result, lanes)``."""


def instruction(text: str) -> Emit:
    """One instruction on two values: ``instruction("add")``."""

    def emit(fn: Function, a: list[Value], dtype: str, lanes: int) -> Value:
        return fn.op(f"{text} {a[0].typed}, {a[1].name}", dtype, lanes)

    return emit
