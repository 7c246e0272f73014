"""Vector maths functions as LLVM IR text, for any number of lanes: no maths library is linked for float32.

Why our own: a vectoriser only has vector `exp` where the platform ships such a library, and a softmax or an
activation is then either scalar or not portable. A function here is `alwaysinline` straight-line code on
`<lanes x float>`, so it is inlined into the loop that calls it and is scheduled with its surroundings.

    text, declares = define("exp", 8, "float32")  # define internal <8 x float> @tw_exp_f32x8(...)

A module contains each text once and each declare line once (`define` answers them as a set for that reason).
The target should have fused multiply-add; without it the code is right but slow.

float64 is for correctness, not for speed: each lane calls the C library (square roots excepted).

Cost in cycles for a vector of 8 elements, data in L1, on one Zen 3 core at 3.2 GHz, at the better vector widths: tanh 6.6, exp 7.5,
sigmoid 7.7, erf 8.5, softplus 14, log 13, log1p 19; an older measurement: sin 60, pow 80. Multiplications, comparisons,
minima and blends share two pipes there, additions two others, and the two kinds together reach about 2.6 operations a cycle.
In a long formula the length of the chain counts as much as the number of operations, because a core looks ahead over a
hundred or two of them: tanh and erf are quotients of two short polynomials side by side, and sigmoid has one division where
exp(-x) as a quotient would need a second.

Errors come only from a caller's mistake: `KeyError` on an unknown function, `ValueError` on a dtype or lane
count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from tilewright.schedules import maths_angles, maths_kernels
from tilewright.schedules.maths_emit import DOUBLE, FLOAT, Emitter, Value, llvm_type

Kernel = Callable[..., Value]

_KIND: Final = {"float32": FLOAT, "float64": DOUBLE}
_SHORT: Final = {"float32": "f32", "float64": "f64"}


@final
@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """What a caller may rely on."""

    name: str
    arity: int
    max_ulp: float
    """Largest error, in units of the last place of the rounded result (tests measure it)."""
    method: str
    kernel: Kernel
    """Writes the float32 body: takes the pen and the arguments."""


def _info(kernel: Kernel, max_ulp: float, method: str, arity: int = 1) -> FunctionInfo:
    return FunctionInfo(kernel.__name__, arity, max_ulp, method, kernel)


FUNCTIONS: Final[dict[str, FunctionInfo]] = {
    info.name: info
    for info in (
        _info(maths_kernels.exp, 2, "Cody-Waite in steps of 2 ln 2, minimax, two products by a power of two"),
        _info(
            maths_kernels.exp_falling,
            5.5,
            "exp of what cannot be positive: steps of ln 2, 0 from 2^-126.5 down; 3 ulp above 2^-28",
        ),
        _info(maths_kernels.exp2, 2, "as exp, with an exact reduction"),
        _info(maths_kernels.expm1, 2, "minimax for expm1(r), 2^k q + (2^k - 1) fused"),
        _info(maths_kernels.log, 1.5, "mantissa in [2/3, 4/3), rational minimax about 1, exponent times a split ln 2"),
        _info(maths_kernels.log2, 2, "as log; exact for powers of two"),
        _info(maths_kernels.log1p, 2, "as log, with the rounding error of 1 + x put back"),
        _info(maths_kernels.tanh, 3.5, "2AB / (A^2 + B^2), A/B rational minimax for tanh(x/2)"),
        _info(
            maths_kernels.erf, 4, "2AB / (A^2 + B^2), A/B rational minimax for tanh(artanh(erf(x))/2); never above 1"
        ),
        _info(maths_kernels.sigmoid, 3, "A / (A + 2^k B), B/A rational minimax for what is left of exp(-x)"),
        _info(maths_kernels.softplus, 3.5, "max(x, 0) + log1p(exp(-|x|)), rational minimax for log1p on [0, 1]"),
        _info(maths_kernels.sqrt, 0.5, "the hardware's, correctly rounded"),
        _info(maths_kernels.rsqrt, 1.5, "a true division by a true square root"),
        _info(maths_angles.sin, 2, "2/pi in double-double, modulo 4 for large x: holds for every float32"),
        _info(maths_angles.cos, 2, "as sin"),
        _info(maths_angles.tan, 3.5, "as sin, then one division"),
        _info(maths_kernels.pow, 1, "exp2(y log2 |x|) in double; special cases as C99 Annex F", arity=2),
        _info(maths_angles.asin, 3, "minimax on [0, 1/2], pi/2 - 2 asin(sqrt((1 - x)/2)) above"),
        _info(maths_angles.acos, 2, "as asin"),
        _info(maths_angles.atan, 2.5, "minimax on [0, 1], pi/2 - atan(1/x) above"),
        _info(maths_angles.sinh, 3, "minimax below 1, (e^x - e^-x)/2 above, scaled against overflow"),
        _info(maths_angles.cosh, 3, "(e^x + e^-x)/2, scaled against overflow"),
        _info(maths_angles.asinh, 3, "log1p(x + x^2/(1 + sqrt(1 + x^2)))"),
        _info(maths_angles.acosh, 3, "log1p(t + sqrt(2t + t^2)), t = x - 1"),
        _info(maths_angles.atanh, 3, "log1p(2x/(1 - x))/2"),
    )
}


def symbol(name: str, lanes: int, dtype: str) -> str:
    """The function's name in IR, without the `@`: `tw_exp_f32x8` (`tw_exp_f32` at one lane)."""
    if name not in FUNCTIONS:
        raise KeyError(f"maths function: expected one of {', '.join(sorted(FUNCTIONS))}; got {name!r}")
    if dtype not in _SHORT:
        raise ValueError(f"dtype of {name}: expected one of {', '.join(_SHORT)}; got {dtype!r}")
    if lanes < 1:
        raise ValueError(f"lanes of {name}: expected at least 1; got {lanes}")
    return f"tw_{name}_{_SHORT[dtype]}" + (f"x{lanes}" if lanes > 1 else "")


def define(name: str, lanes: int, dtype: str) -> tuple[str, frozenset[str]]:
    """The text of the function, and the declare lines that its module needs (each exactly once)."""
    label = symbol(name, lanes, dtype)
    kind = _KIND[dtype]
    vector = llvm_type(kind, lanes)
    pen = Emitter(lanes)
    arguments = [Value(pen, kind, f"%{letter}") for letter in "xy"[: FUNCTIONS[name].arity]]
    answer = FUNCTIONS[name].kernel(pen, *arguments) if dtype == "float32" else _float64(pen, name, arguments)
    parameters = ", ".join(f"{vector} {argument.name}" for argument in arguments)
    body = "\n".join(pen.lines)
    text = (
        f"define internal {vector} @{label}({parameters}) alwaysinline nounwind {{\n"
        f"{body}\n  ret {vector} {answer.name}\n}}\n"
    )
    return text, frozenset(pen.declarations)


def _float64(pen: Emitter, name: str, arguments: list[Value]) -> Value:
    x = arguments[0]
    match name:
        case "sqrt":
            return pen.intrinsic("sqrt", x, kind=DOUBLE)
        case "rsqrt":
            return 1.0 / pen.intrinsic("sqrt", x, kind=DOUBLE)
        case "exp_falling":
            return _library(pen, "exp", [x])
        case "sigmoid":
            t = _library(pen, "exp", [-pen.magnitude(x)])
            return pen.select(x < 0.0, t, 1.0) / (t + 1.0)
        case "softplus":
            t = _library(pen, "log1p", [_library(pen, "exp", [-pen.magnitude(x)])])
            return pen.select(x.compare("uno", x), x, pen.select(x > 0.0, x, 0.0) + t)
        case _:
            return _library(pen, name, arguments)


def _library(pen: Emitter, name: str, arguments: list[Value]) -> Value:
    """Call the C library's double function of that name on each lane."""
    pen.declarations.add(f"declare double @{name}({', '.join(['double'] * len(arguments))})")
    vector = pen.type_of(DOUBLE)
    if pen.lanes == 1:
        return pen.line(DOUBLE, f"call double @{name}({', '.join(f'double {a.name}' for a in arguments)})")
    result = Value(pen, DOUBLE, "poison")
    for lane in range(pen.lanes):
        scalars = [pen.line(DOUBLE, f"extractelement {vector} {a.name}, i32 {lane}") for a in arguments]
        called = pen.line(DOUBLE, f"call double @{name}({', '.join(f'double {s.name}' for s in scalars)})")
        result = pen.line(DOUBLE, f"insertelement {vector} {result.name}, double {called.name}, i32 {lane}")
    return result
