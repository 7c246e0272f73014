"""The float32 kernels of the circular and hyperbolic functions and their inverses (see `maths_kernels`)."""

from __future__ import annotations

from typing import Final

from tilewright.schedules.maths_emit import DOUBLE, FLOAT, Emitter, Value
from tilewright.schedules.maths_kernels import INF, LN2, NAN, ROUND_DOUBLE, log1p_finite, scaled_exp

PI: Final = 3.141592653589793
HUGE: Final = 2.0**30  # from here on log(2x) replaces the exact form of asinh and acosh, which would overflow
# sin(r) = r + r^3 P(r^2) to 2^-28.1; cos(r) = 1 - r^2/2 + r^4 P(r^2) to 2^-33.3; |r| <= pi/4
SIN = (-0.16666655242443085, 0.008332177996635437, -0.0001951723243109882)
COS = (0.04166664555668831, -0.0013887366512790322, 2.4438379114144482e-05)
# atan(x) = x + x^3 P(x^2), |x| <= 1, relative to x: 2^-28.7
ATAN = (-0.33333301544189453, 0.19998638331890106, -0.1426524668931961, 0.1095757856965065,
        -0.08419449627399445, 0.058234166353940964, -0.0314551517367363, 0.011064073070883751,
        -0.0018271177541464567)  # fmt: skip
# asin(x) = x + x^3 P(x^2), |x| <= 1/2, relative to x: 2^-27.6
ASIN = (0.16666753590106964, 0.07495243102312088, 0.04547705128788948, 0.024147480726242065,
        0.042219165712594986)  # fmt: skip
# sinh(x) = x + x^3 P(x^2), |x| <= 1, relative to x: 2^-34.0
SINH = (0.1666666716337204, 0.008333350531756878, 0.0001983606634894386, 2.817440417857142e-06)
# Steps of the sin/cos reduction: from |x| >= start on, x is a multiple of `1 / scale`, so that
# 2/pi may be replaced by (2/pi / scale) mod 4, here as a double and the double that follows it.
TWO_OVER_PI = (
    (0.0, 1.0, 0.6366197723675814, -3.935735335036497e-17),
    (2.0**44, 2.0**-21, 0.42886021794879353, 1.2738156800822154e-17),
    (2.0**65, 2.0**-42, 1.063791748279411, 1.0868183711658421e-16),
    (2.0**86, 2.0**-63, 0.9924876636310758, -1.5589282983320628e-17),
    (2.0**107, 2.0**-84, 1.4887592377745509, 8.550831001313827e-17),
)


def square_polynomial(e: Emitter, x: Value, coefficients: tuple[float, ...]) -> Value:
    """x + x^3 P(x^2)."""
    square = x * x
    return e.fma(x * square, e.horner(square, coefficients), x)


def _reduce_angle(e: Emitter, x: Value) -> tuple[Value, Value]:
    """(quarter turns as i32, the rest in [-pi/4, pi/4] as float32) of |x|, for every finite float32.

    |x| * 2/pi in double-double, where 2/pi is taken modulo 4 once x is a multiple of a large power of two
    (TWO_OVER_PI), so the product stays below 2^45 and the fraction is good to 2^-60.
    """
    a = e.convert("fpext", e.magnitude(x), DOUBLE)
    _, scale, high, low = (e.as_value(number, DOUBLE) for number in TWO_OVER_PI[0])
    for start, *numbers in TWO_OVER_PI[1:]:
        far = a >= start
        scale, high, low = (
            e.select(far, e.as_value(new, DOUBLE), old) for new, old in zip(numbers, (scale, high, low), strict=True)
        )
    a = a * scale
    turns = a * high
    shifted = turns + ROUND_DOUBLE
    rest = (turns - (shifted - ROUND_DOUBLE)) + e.fma(a, low, e.fma(a, high, -turns))
    return e.convert("trunc", shifted.bits(), "i32"), e.convert("fptrunc", rest * (PI / 2), FLOAT)


def _sin_cos(e: Emitter, r: Value) -> tuple[Value, Value]:
    square = r * r
    cosine = e.fma(square, e.fma(square, e.horner(square, COS), -0.5), 1.0)
    return square_polynomial(e, r, SIN), cosine


def sin(e: Emitter, x: Value) -> Value:
    quarter, r = _reduce_angle(e, x)
    sine, cosine = _sin_cos(e, r)
    answer = e.select((quarter & 1).compare("ne", 0), cosine, sine)
    return e.with_sign(answer, e.sign_bit(x) ^ ((quarter & 2) << 30))


def cos(e: Emitter, x: Value) -> Value:
    quarter, r = _reduce_angle(e, x)
    sine, cosine = _sin_cos(e, r)
    answer = e.select((quarter & 1).compare("ne", 0), sine, cosine)
    return e.with_sign(answer, ((quarter + 1) & 2) << 30)


def tan(e: Emitter, x: Value) -> Value:
    quarter, r = _reduce_angle(e, x)
    sine, cosine = _sin_cos(e, r)
    odd = quarter & 1
    swap = odd.compare("ne", 0)
    ratio = e.select(swap, cosine, sine) / e.select(swap, sine, cosine)
    return e.with_sign(ratio, e.sign_bit(x) ^ (odd << 31))


def atan(e: Emitter, x: Value) -> Value:
    a = e.magnitude(x)
    outside = a > 1.0
    p = square_polynomial(e, e.select(outside, 1.0 / a, a), ATAN)
    return e.with_sign(e.select(outside, PI / 2 - p, p), e.sign_bit(x))


def _asin_parts(e: Emitter, a: Value) -> tuple[Value, Value]:
    """(far, p): asin(a) = p, or pi/2 - 2p where far (a > 1/2); NaN beyond 1."""
    far = a > 0.5
    z = e.select(far, (1.0 - a) * 0.5, a * a)
    s = e.select(far, e.intrinsic("sqrt", z), a)
    return far, e.fma(s * z, e.horner(z, ASIN), s)


def asin(e: Emitter, x: Value) -> Value:
    far, p = _asin_parts(e, e.magnitude(x))
    return e.with_sign(e.select(far, e.fma(p, -2.0, PI / 2), p), e.sign_bit(x))


def acos(e: Emitter, x: Value) -> Value:
    far, p = _asin_parts(e, e.magnitude(x))
    sign = e.sign_bit(x)
    start = e.select(far, e.select(x < 0.0, e.as_value(PI, FLOAT), 0.0), PI / 2)
    return start + e.with_sign(e.select(far, p * 2.0, -p), sign)


def _half_exp(e: Emitter, x: Value) -> tuple[Value, Value]:
    """(exp(|x|)/2, exp(-|x|)/2)."""
    p, s = scaled_exp(e, e.magnitude(x), None, 90.0)
    half = p * s * (s * 0.5)
    return half, 0.25 / half


def sinh(e: Emitter, x: Value) -> Value:
    up, down = _half_exp(e, x)
    a = e.magnitude(x)
    near = square_polynomial(e, e.at_most(a, 1.0), SINH)
    return e.with_sign(e.select(a < 1.0, near, up - down), e.sign_bit(x))


def cosh(e: Emitter, x: Value) -> Value:
    up, down = _half_exp(e, x)
    return up + down


def _log1p_or_log_of_double(e: Emitter, x: Value, exact: Value) -> Value:
    """log1p(exact), or log(2x) where x is huge; infinity and NaN of x come through."""
    huge = x > HUGE
    answer = log1p_finite(e, e.select(huge, x, exact)) + e.select(huge, e.as_value(LN2, FLOAT), 0.0)
    return e.select(x < INF, answer, x)


def asinh(e: Emitter, x: Value) -> Value:
    a = e.magnitude(x)
    square = a * a
    exact = a + square / (e.intrinsic("sqrt", square + 1.0) + 1.0)
    return e.with_sign(_log1p_or_log_of_double(e, a, exact), e.sign_bit(x))


def acosh(e: Emitter, x: Value) -> Value:
    t = x - 1.0
    exact = t + e.intrinsic("sqrt", e.fma(t, t, t * 2.0))
    return e.select(x < 1.0, NAN, _log1p_or_log_of_double(e, x, exact))


def atanh(e: Emitter, x: Value) -> Value:
    a = e.magnitude(x)
    inner = a * 2.0 / (1.0 - a)
    answer = e.select(a.compare("oeq", 1.0), INF, log1p_finite(e, inner) * 0.5)
    answer = e.select(a.compare("ule", 1.0), answer, NAN)
    answer = e.select(a < 2.0**-26, a, answer)
    return e.with_sign(answer, e.sign_bit(x))
