"""A pen for straight-line vector code: Python arithmetic on `Value` writes LLVM IR lines.

Why: the maths kernels are formulas, and formulas read best as `p * r + c`. One `Emitter` is one function
body; every line is an operation on whole vectors of `lanes` elements (a plain scalar at one lane), so any
lane count is legal and the code generator splits or pads it. No fast-math flag is ever written: a kernel
means exactly the roundings it spells out, at every lane count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, final

FLOAT: Final = "float"
DOUBLE: Final = "double"
_INTRINSIC_SUFFIX: Final = {FLOAT: "f32", DOUBLE: "f64"}
_INTEGER_OF: Final = {FLOAT: "i32", DOUBLE: "i64"}
_FLOAT_OF: Final = {"i32": FLOAT, "i64": DOUBLE}


def llvm_type(kind: str, lanes: int) -> str:
    """`("float", 8)` -> `<8 x float>`; one lane is the scalar type itself."""
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def literal(kind: str, lanes: int, value: float | int) -> str:
    """A constant, rounded to `kind` first and repeated over the lanes (floats are written as double bits)."""
    if kind in _INTEGER_OF:
        rounded = struct.unpack("<f", struct.pack("<f", value))[0] if kind == FLOAT else float(value)
        text = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    else:
        text = str(int(value))
    return text if lanes == 1 else f"splat ({kind} {text})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value of a body. `+ - * /` follow its kind; `& | ^` are for integers and truth values."""

    pen: Emitter
    kind: str
    name: str

    def _binary(self, float_op: str, int_op: str, left: Operand, right: Operand) -> Value:
        op = float_op if self.kind in _INTEGER_OF else int_op
        a, b = self.pen.as_value(left, self.kind), self.pen.as_value(right, self.kind)
        return self.pen.line(self.kind, f"{op} {self.pen.type_of(self.kind)} {a.name}, {b.name}")

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "sdiv", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "sdiv", other, self)

    def __and__(self, other: Operand) -> Value:
        return self._binary("", "and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("", "or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("", "xor", self, other)

    def __lshift__(self, bits: int) -> Value:
        return self._binary("", "shl", self, bits)

    def __rshift__(self, bits: int) -> Value:
        """Arithmetic (sign-keeping) shift."""
        return self._binary("", "ashr", self, bits)

    def __neg__(self) -> Value:
        return self.pen.line(self.kind, f"fneg {self.pen.type_of(self.kind)} {self.name}")

    def __lt__(self, other: Operand) -> Value:
        return self.compare("olt", other)

    def __gt__(self, other: Operand) -> Value:
        return self.compare("ogt", other)

    def __ge__(self, other: Operand) -> Value:
        return self.compare("oge", other)

    def compare(self, predicate: str, other: Operand) -> Value:
        """`fcmp` (`oeq`, `une`, `uno`, ...) for floats, `icmp` (`eq`, `slt`, ...) for integers."""
        op = "fcmp" if self.kind in _INTEGER_OF else "icmp"
        right = self.pen.as_value(other, self.kind)
        type_ = self.pen.type_of(self.kind)
        return self.pen.line("i1", f"{op} {predicate} {type_} {self.name}, {right.name}")

    def bits(self) -> Value:
        """The same bits as an integer."""
        return self.pen.convert("bitcast", self, _INTEGER_OF[self.kind])

    def as_float(self) -> Value:
        """The same bits as a float of the same width."""
        return self.pen.convert("bitcast", self, _FLOAT_OF[self.kind])


Operand = Value | float | int


@final
class Emitter:
    """Collects the lines of one function body and the intrinsics they call."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.lines: list[str] = []
        self.declarations: set[str] = set()

    def type_of(self, kind: str) -> str:
        return llvm_type(kind, self.lanes)

    def line(self, kind: str, text: str) -> Value:
        """Append `%tN = text`; the answer names it."""
        name = f"%t{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return Value(self, kind, name)

    def as_value(self, operand: Operand, kind: str) -> Value:
        if isinstance(operand, Value):
            return operand
        return Value(self, kind, literal(kind, self.lanes, operand))

    def convert(self, op: str, value: Value, kind: str) -> Value:
        """`bitcast`, `fpext`, `fptrunc`, `trunc`, `sitofp`, ... of every lane."""
        return self.line(kind, f"{op} {self.type_of(value.kind)} {value.name} to {self.type_of(kind)}")

    def intrinsic(self, name: str, *args: Operand, kind: str = FLOAT) -> Value:
        """Call `llvm.<name>` on whole vectors."""
        suffix = _INTRINSIC_SUFFIX[kind]
        vector = self.type_of(kind)
        symbol = f"@llvm.{name}.{suffix if self.lanes == 1 else f'v{self.lanes}{suffix}'}"
        self.declarations.add(f"declare {vector} {symbol}({', '.join([vector] * len(args))})")
        values = ", ".join(f"{vector} {self.as_value(arg, kind).name}" for arg in args)
        return self.line(kind, f"call {vector} {symbol}({values})")

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """`a * b + c`, rounded once."""
        return self.intrinsic("fma", a, b, c, kind=a.kind)

    def horner(self, x: Value, coefficients: tuple[float, ...]) -> Value:
        """The polynomial with `coefficients` (lowest power first) at `x`: one fused step a coefficient, the fewest
        operations there can be."""
        *rest, top = coefficients
        total = self.as_value(top, x.kind)
        for coefficient in reversed(rest):
            total = self.fma(total, x, coefficient)
        return total

    def pairs(self, x: Value, coefficients: tuple[float, ...], square: Value | None = None) -> Value:
        """The same in half the time from `x` to the answer, for one operation more: Horner's rule in `x * x` over
        pairs of coefficients. A processor looks ahead over a few hundred operations; where a formula is long, the
        length of its chain counts, not only the number of its operations. ``square`` is `x * x` where the caller has
        it."""
        two = [
            self.fma(x, high[0], low) if high else self.as_value(low, x.kind)
            for low, *high in (coefficients[k : k + 2] for k in range(0, len(coefficients), 2))
        ]
        square = x * x if square is None else square
        total = two.pop()
        for part in reversed(two):
            total = self.fma(total, square, part)
        return total

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        kind = yes.kind if isinstance(yes, Value) else no.kind if isinstance(no, Value) else FLOAT
        a, b = self.as_value(yes, kind), self.as_value(no, kind)
        mask, type_ = self.type_of("i1"), self.type_of(kind)
        return self.line(kind, f"select {mask} {condition.name}, {type_} {a.name}, {type_} {b.name}")

    def at_most(self, x: Value, bound: float) -> Value:
        """min(x, bound) that keeps a NaN in x (one `min` instruction on x86)."""
        limit = self.as_value(bound, x.kind)
        return self.select(limit < x, limit, x)

    def at_least(self, x: Value, bound: float) -> Value:
        """max(x, bound) that keeps a NaN in x."""
        limit = self.as_value(bound, x.kind)
        return self.select(limit > x, limit, x)

    def magnitude(self, x: Value) -> Value:
        return self.intrinsic("fabs", x, kind=x.kind)

    def sign_bit(self, x: Value) -> Value:
        """The sign bit of a float vector, as an integer with every other bit clear."""
        return x.bits() & -(1 << 31)

    def with_sign(self, magnitude: Value, sign: Value) -> Value:
        """A float whose sign is flipped where `sign` (of `sign_bit`) is set."""
        return (magnitude.bits() ^ sign).as_float()
