"""Affine forms of index expressions, and the interval arithmetic that proves things about them.

``Affine`` is ``constant + sum(coefficient * variable)``. Quotients and remainders by a constant simplify away when the
ranges of the variables allow it (the part divisible by the divisor plus a rest inside ``[0, divisor)``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.graph.expr import Const, Expr, Op, Var, binary, const, var


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + sum(c * v)``; ``terms`` is sorted by variable name and holds no zero coefficient."""

    terms: tuple[tuple[str, int], ...]
    const: int

    def coefficient(self, name: str) -> int:
        """The coefficient of variable ``name`` (0 if absent)."""
        return dict(self.terms).get(name, 0)

    def __add__(self, other: Affine) -> Affine:
        merged = dict(self.terms)
        for v, c in other.terms:
            merged[v] = merged.get(v, 0) + c
        return make(merged, self.const + other.const)

    def scale(self, k: int) -> Affine:
        """``k * self``."""
        return make({v: c * k for v, c in self.terms}, self.const * k)

    def expr(self) -> Expr:
        """The same value as an expression."""
        e: Expr = const(self.const, "int64")
        for v, c in self.terms:
            e = binary("add", e, binary("mul", var(v), c))
        return e


def make(terms: Mapping[str, int], constant: int) -> Affine:
    """Normalise a mapping of coefficients."""
    return Affine(tuple(sorted((v, c) for v, c in terms.items() if c)), constant)


Ranges = Mapping[str, tuple[int, int]]


def affine(e: Expr, ranges: Ranges | None = None) -> Affine | None:
    """The affine form of an int64 expression, or None if it has none. ``ranges`` gives inclusive bounds of variables,
    with which ``//`` and ``%`` by a constant may simplify."""
    terms: dict[str, int] = {}
    constant = _gather(e, 1, terms, ranges)
    return None if constant is None else make(terms, constant)


@dataclass(frozen=True, slots=True)
class Parted:
    """An index that is affine but for some *parts*, such as the row that a gather looks up: ``form`` has a variable for each of
    them, and ``parts`` says what it stands for."""

    form: Affine
    parts: Mapping[str, Expr]

    def expr(self) -> Expr:
        """The same value as an expression."""
        out: Expr = const(0, "int64")
        for name, part in self.parts.items():
            out = binary("add", out, binary("mul", part, self.form.coefficient(name)))
        plain = make({v: c for v, c in self.form.terms if v not in self.parts}, self.form.const)
        return binary("add", out, plain.expr())


def parted(e: Expr, ranges: Ranges | None = None) -> Parted:
    """An int64 expression as an affine form and the parts that have none; an affine expression has no parts."""
    terms: dict[str, int] = {}
    parts: dict[Expr, str] = {}
    constant = _gather(e, 1, terms, ranges, parts)
    assert constant is not None
    names = {name: part for part, name in parts.items() if terms[name]}
    return Parted(make(terms, constant), names)


def _gather(
    e: Expr, times: int, terms: dict[str, int], ranges: Ranges | None, parts: dict[Expr, str] | None = None
) -> int | None:
    """Add the terms of ``times * e`` to ``terms``; returns its constant, or None if ``e`` is not affine. With ``parts``, what is
    not is a variable there."""
    found = _terms(e, times, terms, ranges, parts)
    if found is None and parts is not None:
        name = parts.setdefault(e, f"part {len(parts)}")
        terms[name] = terms.get(name, 0) + times
        return 0
    return found


def _terms(
    e: Expr, times: int, terms: dict[str, int], ranges: Ranges | None, parts: dict[Expr, str] | None
) -> int | None:
    if isinstance(e, Const):
        return times * int(e.value)
    if isinstance(e, Var):
        terms[e.name] = terms.get(e.name, 0) + times
        return 0
    if not isinstance(e, Op) or e.dtype != "int64":
        return None
    if e.kind == "neg":
        return _gather(e.args[0], -times, terms, ranges, parts)
    if e.kind in ("add", "sub"):
        first = _gather(e.args[0], times, terms, ranges, parts)
        second = _gather(e.args[1], times if e.kind == "add" else -times, terms, ranges, parts)
        return None if first is None or second is None else first + second
    if e.kind == "mul" and isinstance(e.args[1], Const):
        return _gather(e.args[0], times * int(e.args[1].value), terms, ranges, parts)
    whole = _combined(e, ranges)
    if whole is None:
        return None
    for v, c in whole.terms:
        terms[v] = terms.get(v, 0) + times * c
    return times * whole.const


def _combined(e: Op, ranges: Ranges | None) -> Affine | None:
    """The affine form of an operation on two affine forms that need not have one."""
    if e.kind not in ("mul", "floordiv", "mod", "max", "min"):
        return None
    a, b = affine(e.args[0], ranges), affine(e.args[1], ranges)
    if a is None or b is None:
        return None
    if e.kind == "mul":
        return b.scale(a.const) if not a.terms else a.scale(b.const) if not b.terms else None
    if ranges is None:
        return None
    if e.kind in ("floordiv", "mod"):
        return None if b.terms or b.const <= 0 else _quotient(a, b.const, ranges, remainder=e.kind == "mod")
    low, high = interval(a + b.scale(-1), ranges)
    if low >= 0:
        return a if e.kind == "max" else b
    if high <= 0:
        return b if e.kind == "max" else a
    return None


def _quotient(a: Affine, d: int, ranges: Ranges, remainder: bool) -> Affine | None:
    whole = make({v: c for v, c in a.terms if c % d == 0}, a.const - a.const % d)
    rest = make({v: c for v, c in a.terms if c % d}, a.const % d)
    low, high = interval(rest, ranges)
    if low // d != high // d:
        return None
    shift = low // d
    if remainder:
        return rest + Affine((), -shift * d)
    return Affine(tuple((v, c // d) for v, c in whole.terms), whole.const // d + shift)


def interval(a: Affine, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of an affine form over inclusive bounds of its variables (KeyError if one is unknown)."""
    low = high = a.const
    for v, c in a.terms:
        lo, hi = ranges[v]
        low += c * (lo if c > 0 else hi)
        high += c * (hi if c > 0 else lo)
    return low, high


def bounds(e: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Inclusive bounds of any index expression, or None where nothing is known."""
    a = affine(e, ranges)
    if a is not None and all(v in ranges for v, _ in a.terms):
        return interval(a, ranges)
    if not isinstance(e, Op) or len(e.args) != 2:
        return None
    x, y = bounds(e.args[0], ranges), bounds(e.args[1], ranges)
    if x is None or y is None:
        return None
    if e.kind == "add":
        return x[0] + y[0], x[1] + y[1]
    if e.kind == "sub":
        return x[0] - y[1], x[1] - y[0]
    if e.kind == "mul":
        corners = [p * q for p in x for q in y]
        return min(corners), max(corners)
    if e.kind == "min":
        return min(x[0], y[0]), min(x[1], y[1])
    if e.kind == "max":
        return max(x[0], y[0]), max(x[1], y[1])
    if e.kind == "floordiv" and y[0] == y[1] > 0:
        return x[0] // y[0], x[1] // y[0]
    if e.kind == "mod" and y[0] == y[1] > 0:
        return 0, y[0] - 1
    return None


def decide(e: Expr, ranges: Ranges) -> bool | None:
    """Whether a predicate always (True) or never (False) holds over ``ranges``; None when it depends."""
    if isinstance(e, Const):
        return bool(e.value)
    if not isinstance(e, Op):
        return None
    if e.kind in ("and", "or"):
        a, b = decide(e.args[0], ranges), decide(e.args[1], ranges)
        absorbing = e.kind == "or"
        if a is absorbing or b is absorbing:
            return absorbing
        return (not absorbing) if a is not None and b is not None else None
    if e.kind in ("lt", "le") and e.args[0].dtype == "int64":
        d = bounds(binary("sub", e.args[0], e.args[1]), ranges)
        if d is None:
            return None
        slack = 0 if e.kind == "lt" else 1
        return True if d[1] < slack else False if d[0] >= slack else None
    return None
