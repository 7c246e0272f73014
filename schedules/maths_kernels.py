"""The float32 kernels: one Python function writes the body of one vector function.

Method. Arguments are reduced exactly (Cody-Waite: a constant is split so that its large part times the
quotient is exact), then a minimax polynomial is evaluated with fused multiply-adds, in float32 wherever 4 ulp
allows. The polynomials were fitted for this file by the Remez exchange at 40 digits, on the interval and with
the weight given beside each, and rounded to float32; the power of two is the error before that rounding.

There is no branch and no table: cases are both computed and one selected, so a kernel costs the same for any
argument. Every intermediate that could overflow or lose a subnormal is scaled instead.
"""

from __future__ import annotations

from typing import Final

from tilewright.schedules.maths_emit import DOUBLE, FLOAT, Emitter, Value

LOG2_E: Final = 1.4426950408889634
LN2: Final = 0.6931471805599453
LN2_HIGH: Final = 0.693145751953125  # 15 bits: exact times any exponent
LN2_LOW: Final = 1.4286068203094173e-06  # the rest of ln 2
LN2_FLOAT: Final = 0.693147182464599609375  # ln 2 rounded: its multiples less what is near them are exact
LN2_REST: Final = LN2 - LN2_FLOAT
LARGEST: Final = 3.4028234663852886e38
INF: Final = float("inf")
NAN: Final = float("nan")
ROUND: Final = 1.5 * 2.0**23  # adding it rounds a float32 to an integer and leaves that in the low bits
ROUND_DOUBLE: Final = 1.5 * 2.0**52

# exp(r) = 1 + r + r^2 P(r), |r| <= ln 2, relative to exp(r): 2^-26.1
EXP_WIDE = (0.5000003576278687, 0.16666613519191742, 0.04166125878691673, 0.008336111903190613,
            0.0014104676665738225, 0.0001961105444934219)  # fmt: skip
# the same for |r| <= ln(2)/2, relative to exp(r): 2^-23.2
EXP_NARROW = (0.499992311000824, 0.16667115688323975, 0.041890330612659454, 0.008312505669891834)
# the same with one coefficient more: 2^-28.3
EXP_MIDDLE = (0.4999999403953552, 0.16666516661643982, 0.04166810214519501, 0.00836788211017847,
              0.0013823055196553469)  # fmt: skip
# expm1(r) = r + r^2 P(r), |r| <= ln(2)/2, relative to r: 2^-26.2
EXPM1 = (0.5, 0.16666541993618011, 0.04166628047823906, 0.008366639725863934, 0.0013946532271802425)
# 2^r = 1 + r P(r), |r| <= 1, relative to 2^r: 2^-26.4
EXP2_WIDE = (0.6931472420692444, 0.24022673070430756, 0.05550379678606987, 0.00961671955883503,
             0.0013339490396901965, 0.00015653664013370872, 1.5030617760203313e-05)  # fmt: skip
# log(1 + f) = f + f^2 P(f) / Q(f), |f| <= 1/3, relative to it: 2^-28.3; the last coefficient of Q is 1
LOG = ((-1.0210357904434204, -0.795351505279541, -0.026484569534659386, 0.0036994817201048136),
       (2.0420713424682617, 2.952085256576538))  # fmt: skip
# tanh(x/2) = x P(x^2) / Q(x^2), |x| <= 9.1, so that the error of tanh(x) relative to it is 2^-27.0
TANH_HALF = ((0.925000011920929, 0.02753314934670925, 0.0001055277170962654),
             (1.850000023841858, 0.2092328667640686, 0.0022305415477603674, 2.267420995849534e-06))  # fmt: skip
# tanh(r/2) = r (C + r^2) / (B + A r^2), |r| <= ln(2)/2, relative to it: 2^-33.3; as C, B, A
EXP_RATIO: Final = (60.077171325683594, 120.15434265136719, 12.012853622436523)
# tanh(artanh(erf(x)) / 2) = x P(x^2) / Q(x^2), |x| <= 3.95, so that the error of erf(x) relative to it is 2^-24.8; scaled so
# that P, Q and Q^2 are high in their binades where x is small, which is where roundings count
ERF_HALF = ((0.9839466214179993, 0.25933369994163513, 0.028149666264653206, 0.0022156601771712303),
            (1.74399995803833, 0.48585981130599976, 0.08450664579868317, 0.01054941862821579,
             0.00017252952966373414))  # fmt: skip
# log(1 + t) = t + t^2 P(t) / (Q(t) + t^2), 0 <= t <= 1, relative to log(1 + t): 2^-24.6
LOG1P_UNIT = ((-1.5413005352020264, -0.8659362196922302, -0.007473209872841835),
              (3.082616090774536, 3.786660671234131))  # fmt: skip
# Double precision, for pow. log2(m) = s P(s^2), s = (m-1)/(m+1), 1/sqrt 2 <= m <= sqrt 2: 2^-43.6
LOG2_DOUBLE = (2.8853900817778495, 0.9617966941141246, 0.5770779421394624, 0.4122092747401029,
               0.3199047976883936, 0.28291277108928264)  # fmt: skip
# 2^r = P(r), |r| <= 1/2: 2^-29.0
EXP2_DOUBLE = (1.0000000005584329, 0.69314720588674, 0.24022646869220507, 0.05550328450224163,
               0.009618490263959488, 0.0013400063603517722, 0.00015345728161056196)  # fmt: skip


def scaled_exp(e: Emitter, x: Value, lowest: float | None, highest: float | None) -> tuple[Value, Value]:
    """(p, s) with exp(x) = p * s * s.

    The quotient counts in steps of 2 ln 2, so s = 2^m is always a normal number and its bits are those of the
    rounding sum moved into place (the sum carries the exponent bias); the last product alone rounds to
    a subnormal or overflows. `lowest`/`highest` clamp x to where exp is already 0 or infinite.
    """
    if highest is not None:
        x = e.at_most(x, highest)
    if lowest is not None:
        x = e.at_least(x, lowest)
    shifted = e.fma(x, LOG2_E / 2, ROUND + 127)
    m = shifted - (ROUND + 127)
    r = e.fma(m, -2 * LN2_LOW, e.fma(m, -2 * LN2_HIGH, x))
    p = e.fma(r, e.fma(r, e.horner(r, EXP_WIDE), 1.0), 1.0)
    return p, (shifted.bits() << 23).as_float()


def exp(e: Emitter, x: Value) -> Value:
    p, s = scaled_exp(e, x, -104.0, 89.0)
    return p * s * s


def exp_falling(e: Emitter, x: Value) -> Value:
    """exp(x) for x <= 0 (it holds up to 88): 0 from about 2^-126.5 down, as the exponent bits of 2^-127 are those of 0.

    ln 2 is not split: what its rounding adds is 0.03 units of the last place for each halving of the answer, and that stands
    beside a 1."""
    x = e.at_least(x, -88.0)
    shifted = e.fma(x, LOG2_E, ROUND + 127)
    r = e.fma(shifted - (ROUND + 127), -LN2, x)
    square = r * r
    a, b, c, d = EXP_NARROW  # by halves, not by Horner: the chain is what one row of a softmax waits for
    p = e.fma(square, e.fma(square, e.fma(r, d, c), e.fma(r, b, a)), r + 1.0)
    return p * (shifted.bits() << 23).as_float()


def exp2(e: Emitter, x: Value) -> Value:
    x = e.at_least(e.at_most(x, 129.0), -151.0)
    shifted = e.fma(x, 0.5, ROUND + 127)
    r = e.fma(shifted - (ROUND + 127), -2.0, x)
    s = (shifted.bits() << 23).as_float()
    return e.fma(r, e.horner(r, EXP2_WIDE), 1.0) * s * s


def _expm1_parts(e: Emitter, x: Value, scale: float, bias: int) -> tuple[Value, Value]:
    """(q, s) with expm1(scale * x) = 2^k q + (2^k - 1) and s = 2^(k + bias - 127); `scale` is +-1 or +-2."""
    shifted = e.fma(x, scale * LOG2_E, ROUND + bias)
    k = shifted - (ROUND + bias)
    r = e.fma(k, -LN2_LOW / scale, e.fma(k, -LN2_HIGH / scale, x))
    if scale != 1.0:
        r = r * scale
    q = e.fma(r * r, e.horner(r, EXPM1), r)
    return q, (shifted.bits() << 23).as_float()


def expm1(e: Emitter, x: Value) -> Value:
    # Half the answer first: 2^128 is not a float, yet expm1 is finite there.
    clamped = e.at_least(e.at_most(x, 89.0), -20.0)
    q, half = _expm1_parts(e, clamped, 1.0, 126)
    answer = e.fma(half, q, half - 0.5) * 2.0
    return e.select(e.magnitude(x) < 2.0**-26, x, answer)  # keeps -0 and the last bit of subnormals


def _double_angle(e: Emitter, x: Value, ratio: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[Value, Value]:
    """Numerator and denominator of tanh(2 artanh(h)) = 2h / (1 + h^2), where h = x P(x^2) / Q(x^2): where a function nears
    1 it hardly depends on h, so short polynomials do."""
    y = x * x
    a, b = x * e.horner(y, ratio[0]), e.horner(y, ratio[1])
    return a * (b + b), e.fma(a, a, b * b)


def tanh(e: Emitter, x: Value) -> Value:
    # No answer is above 1 (all were looked at). Two short polynomials side by side are done sooner than one exponential.
    top, bottom = _double_angle(e, e.at_least(e.at_most(x, 9.0), -9.0), TANH_HALF)
    return top / bottom


def erf(e: Emitter, x: Value) -> Value:
    top, bottom = _double_angle(e, e.at_least(e.at_most(x, 3.95), -3.95), ERF_HALF)
    size = e.magnitude(top)
    return top / e.select(size > bottom, size, bottom)  # roundings must not lead above 1


def sigmoid(e: Emitter, x: Value) -> Value:
    """1 / (1 + exp(-x)), where exp(-x) = 2^k (1 - t) / (1 + t) with t = tanh(r/2) = q / p: one division for all,
    (p + q) / ((p + q) + 2^k (p - q)), and small answers keep all bits.

    2^-28 times both halves lets k reach 150, where the answer is 0. ln 2 is not split: what that leaves out of r (k LN2_REST)
    is added to q, beside the chain of operations that the answer waits for."""
    down = 28
    x = e.at_least(e.at_most(x, 67.0), -105.0)
    shifted = e.fma(x, -LOG2_E, ROUND + 127 - down)
    k = shifted - (ROUND + 127 - down)
    r = e.fma(k, LN2_FLOAT, x)
    square = r * r
    c, b, a = EXP_RATIO
    q = e.fma(r, square + c, k * (LN2_REST * c))
    p = e.fma(square, a, b)
    numerator = ((p + q).bits() - (down << 23)).as_float()
    return numerator / e.fma((shifted.bits() << 23).as_float(), p - q, numerator)


def _split(e: Emitter, x: Value, pivot_bits: int) -> tuple[Value, Value]:
    """(k, m): x = 2^k m for a positive normal x, k an integer vector and m in [pivot, 2 pivot)."""
    bits = x.bits()
    power = (bits - pivot_bits) & -(1 << 23)
    return power >> 23, (bits - power).as_float()


TWO_THIRDS_BITS: Final = 0x3F2AAAAB
SQRT_HALF_BITS: Final = 0x3F3504F3


def _log_mantissa(e: Emitter, f: Value) -> Value:
    """log(1 + f) - f for f in [-1/3, 1/3]."""
    c, b = LOG[1]
    return f * f * e.horner(f, LOG[0]) / e.fma(f, f + b, c)


def _log_scaled(e: Emitter, x: Value, pivot_bits: int = TWO_THIRDS_BITS) -> tuple[Value, Value]:
    """(k, m) as floats, also for subnormal x: the bits of such an x, as a number, are x times 2^149."""
    bits = x.bits()
    small = bits.compare("slt", 1 << 23)
    k, m = _split(e, e.select(small, e.convert("sitofp", bits, FLOAT), x), pivot_bits)
    return e.convert("sitofp", k, FLOAT) - e.select(small, e.as_value(149.0, FLOAT), 0.0), m


def _log_or_special(e: Emitter, x: Value, answer: Value) -> Value:
    """The answer for a positive finite x; infinity and NaN map to themselves, 0 to -inf, and anything below to NaN."""
    bits = x.bits()
    special = (bits | (bits >> 31)).as_float()  # all bits set is a NaN
    special = e.select(x.compare("oeq", 0.0), -INF, special)
    return e.select((bits + -1).compare("ult", 0x7F7FFFFF), answer, special)


def _add_log2(e: Emitter, k: Value, f: Value, tail: Value) -> Value:
    """k ln 2 + f + tail, smallest first."""
    return e.fma(k, LN2_HIGH, e.fma(k, LN2_LOW, tail) + f)


def log(e: Emitter, x: Value) -> Value:
    k, m = _log_scaled(e, x)
    f = m - 1.0
    return _log_or_special(e, x, _add_log2(e, k, f, _log_mantissa(e, f)))


def log2(e: Emitter, x: Value) -> Value:
    k, m = _log_scaled(e, x)
    f = m - 1.0
    return _log_or_special(e, x, e.fma(_log_mantissa(e, f) + f, LOG2_E, k))


def log1p_finite(e: Emitter, x: Value) -> Value:
    """log(1 + x) for finite x > -1; the rounding error of 1 + x is put back, scaled like the mantissa."""
    u = x + 1.0
    back = u - x
    lost = (x - (u - back)) + (1.0 - back)
    k, m = _split(e, u, TWO_THIRDS_BITS)
    # From k = 127 on, `lost` no longer matters and 2^-k may be 0.
    shrink = ((127 - e.select(k.compare("slt", 127), k, 127)) << 23).as_float()
    f = e.fma(lost, shrink, m - 1.0)
    return _add_log2(e, e.convert("sitofp", k, FLOAT), f, _log_mantissa(e, f))


def log1p(e: Emitter, x: Value) -> Value:
    answer = e.select(x < INF, log1p_finite(e, x), x)
    answer = e.select(x.compare("oeq", -1.0), -INF, answer)
    answer = e.select(x < -1.0, NAN, answer)
    return e.select(e.magnitude(x) < 2.0**-26, x, answer)  # keeps -0


def softplus(e: Emitter, x: Value) -> Value:
    """max(x, 0) + log1p(t), t = exp(-|x|): t is between 0 and 1, where log1p has no special cases."""
    up = 30  # 2^k is computed times 2^30, so that the last product alone rounds to a subnormal
    a = e.at_least((x.bits() | -(1 << 31)).as_float(), -105.0)
    shifted = e.fma(a, LOG2_E, ROUND + 127 + up)
    k = shifted - (ROUND + 127 + up)
    r = e.fma(k, -LN2_FLOAT, a)
    rest = e.fma(k, -LN2_REST, 1.0)  # beside a 1, and beside the chain of operations
    square = r * r
    p = e.fma(square, e.pairs(r, EXP_MIDDLE, square), r + rest)
    t = p * (shifted.bits() << 23).as_float() * 2.0**-up
    (c, b), numerator = LOG1P_UNIT[1], e.horner(t, LOG1P_UNIT[0])
    curved = t * t * numerator / e.fma(t, t + b, c)
    return curved + (t + e.select(x > 0.0, x, 0.0))


def sqrt(e: Emitter, x: Value) -> Value:
    return e.intrinsic("sqrt", x)


def rsqrt(e: Emitter, x: Value) -> Value:
    return 1.0 / e.intrinsic("sqrt", x)


def pow(e: Emitter, x: Value, y: Value) -> Value:
    """exp2(y log2 |x|) in double, then C99's table of special cases."""
    a = e.magnitude(x)
    k, m = _log_scaled(e, a, SQRT_HALF_BITS)
    k = e.select(a.compare("oeq", 0.0), -INF, e.select(a.compare("oeq", INF), INF, k))
    wide = e.convert("fpext", m, DOUBLE)
    s = (wide - 1.0) / (wide + 1.0)
    log2_a = e.fma(s, e.horner(s * s, LOG2_DOUBLE), e.convert("fpext", k, DOUBLE))
    finite_y = e.convert("fpext", e.at_least(e.at_most(y, LARGEST), -LARGEST), DOUBLE)
    power = e.at_least(e.at_most(finite_y * log2_a, 300.0), -300.0)
    shifted = power + ROUND_DOUBLE
    p = e.horner(power - (shifted - ROUND_DOUBLE), EXP2_DOUBLE)
    answer = e.convert("fptrunc", ((shifted.bits() << 52) + p.bits()).as_float(), FLOAT)
    half_y = y * 0.5
    whole = e.intrinsic("trunc", y).compare("oeq", y)
    odd = whole & e.intrinsic("trunc", half_y).compare("one", half_y)
    answer = e.with_sign(answer, e.select(odd, e.sign_bit(x), e.as_value(0, "i32")))
    fractional = whole ^ 1
    answer = e.select((x < 0.0) & (x > -INF) & fractional, NAN, answer)
    answer = e.select(x.compare("uno", y), x + y, answer)
    return e.select(x.compare("oeq", 1.0) | y.compare("oeq", 0.0), 1.0, answer)
