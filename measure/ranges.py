"""Interval analysis of expressions: which input values keep every index in range, and which sums are exact.

An interval is a pair of floats, both ends included; ``EVERYTHING`` says that nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from tilewright.graph.dtypes import FLOATS, INTS, int_range
from tilewright.graph.expr import BOUNDED, COMPARE, ROUNDING, Const, Expr, Load, Op, Var
from tilewright.graph.ordered import Scan, Select
from tilewright.graph.stage import Stage, View, identity
from tilewright.graph.traverse import walk
from tilewright.graph.workload import Workload

Range = tuple[float, float]
EVERYTHING: Range = (-math.inf, math.inf)
BOOL: Range = (0, 1)
_MANTISSA = {"float32": 2.0**24, "float64": 2.0**53}
_EXACT = frozenset({"add", "sub", "mul", "max", "min", "neg", "abs", "select", "cast", "isnan", "isinf"} | ROUNDING)


def of_type(dtype: str) -> Range:
    """Every value of a type."""
    return EVERYTHING if dtype in FLOATS else int_range(dtype)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _mul(a: Range, b: Range) -> Range:
    ends = [_times(x, y) for x in a for y in b]
    return min(ends), max(ends)


def _floordiv(a: Range, b: Range) -> Range:
    if b[0] != b[1] or b[0] <= 0 or math.isinf(b[0]):
        return EVERYTHING
    low, high = (x if math.isinf(x) else math.floor(x / b[0]) for x in a)
    return low, high


def _mod(a: Range, b: Range) -> Range:
    if b[0] != b[1] or b[0] <= 0 or math.isinf(b[0]):
        return EVERYTHING
    if not math.isinf(a[0]) and not math.isinf(a[1]) and math.floor(a[0] / b[0]) == math.floor(a[1] / b[0]):
        return a[0] % b[0], a[1] % b[0]
    return 0, b[0] - 1


def _compare(kind: str, a: Range, b: Range) -> Range:
    if kind == "eq" or kind == "ne":
        yes, no = a == b and a[0] == a[1], a[1] < b[0] or b[1] < a[0]
        if kind == "ne":
            yes, no = no, yes
    elif kind == "lt":
        yes, no = a[1] < b[0], a[0] >= b[1]
    else:
        yes, no = a[1] <= b[0], a[0] > b[1]
    return (1, 1) if yes else (0, 0) if no else BOOL


_BINARY: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "and": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "or": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
_ROUND: dict[str, Callable[[float], float]] = {
    "floor": math.floor, "ceil": math.ceil, "round": round, "trunc": math.trunc,
}  # fmt: skip


class Ranges:
    """Intervals of all tensors and expressions of a workload, from those of its inputs."""

    def __init__(self, workload: Workload, inputs: Mapping[str, Range]) -> None:
        self.workload = workload
        self.tensors: dict[str, Range] = {n: inputs.get(n, of_type(t.dtype)) for n, t, _ in workload.inputs}
        self._memo: dict[tuple[str, Expr], Range] = {}
        for node in workload.nodes:
            if isinstance(node, View):
                self.tensors[node.output] = self.tensors[node.source]
                continue
            self.tensors[node.output] = self._reduced(node, self.of(node, node.body))

    @staticmethod
    def _reduced(stage: Stage, body: Range) -> Range:
        if isinstance(stage.reducer, Select):
            return 0, stage.reduce[0][1] - 1
        one, count = body, math.prod(e for _, e in stage.reduce)
        reducer = stage.reducer.reducer if isinstance(stage.reducer, Scan) else stage.reducer
        if reducer == "sum":
            body = _times(body[0], count), _times(body[1], count)
        elif reducer == "prod":
            bound = max(abs(body[0]), abs(body[1]))
            bound = bound if bound <= 1 else math.inf if count * math.log2(bound) > 1000 else bound**count
            body = -bound, bound
        if isinstance(stage.reducer, Scan):
            start = float(identity(stage.reducer.reducer, stage.body.dtype).value)
            body = min(body[0], one[0], start), max(body[1], one[1], start)  # shorter prefixes, and of no element
        return _stored(body, stage.body.dtype)

    def of(self, stage: Stage, e: Expr) -> Range:
        """The interval of an expression of a stage."""
        key = (stage.output, e)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._compute(stage, e)
        return found

    def _compute(self, stage: Stage, e: Expr) -> Range:
        if isinstance(e, Const):
            value = float(e.value)
            return EVERYTHING if math.isnan(value) else (value, value)
        if isinstance(e, Var):
            return 0, stage.extents[e.name] - 1
        if isinstance(e, Load):
            for i in e.index:
                self.of(stage, i)
            return self.tensors[e.tensor]
        assert isinstance(e, Op)
        return _stored(self._operate(e, [self.of(stage, a) for a in e.args]), e.dtype)

    @staticmethod
    def _operate(e: Op, args: list[Range]) -> Range:
        if e.kind in COMPARE:
            return _compare(e.kind, *args)
        if e.kind in ("floordiv", "mod") and e.dtype in FLOATS:
            return EVERYTHING
        if e.kind in _BINARY:
            return _BINARY[e.kind](*args)
        a = args[0]
        if e.kind == BOUNDED:
            return a  # inputs are made such that it is inside
        if e.kind == "select":
            if a[0] == a[1]:
                return args[1] if a[0] else args[2]
            return min(args[1][0], args[2][0]), max(args[1][1], args[2][1])
        if e.kind == "cast":
            if e.dtype == "bool":
                return (0, 0) if a == (0, 0) else BOOL
            return a if e.dtype in FLOATS else _rounded(a, math.trunc)
        if e.kind in _ROUND:
            return _rounded(a, _ROUND[e.kind])
        if e.kind == "neg":
            return -a[1], -a[0]
        if e.kind == "not":
            return 1 - a[1], 1 - a[0]
        if e.kind == "abs":
            high = max(abs(a[0]), abs(a[1]))
            return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), high
        return EVERYTHING

    def loads(self) -> Iterator[tuple[Stage, Load]]:
        """Every load of the workload with the stage it is in."""
        for stage in self.workload.stages.values():
            for e in walk(stage.body):
                if isinstance(e, Load):
                    yield stage, e

    def exact(self) -> bool:
        """Whether every floating-point result is a whole number that its type holds exactly, in any order of
        summation."""
        for stage in self.workload.stages.values():
            for e in walk(stage.body):
                if not self._exact(stage, e):
                    return False
            summed = isinstance(stage.reducer, Scan) or stage.reducer in ("sum", "prod")
            if summed and not _holds(stage.body.dtype, self._worst(stage)):
                return False
        return True

    def _worst(self, stage: Stage) -> Range:
        low, high = self.of(stage, stage.body)
        bound = max(abs(low), abs(high))
        return self._reduced(stage, (-bound, bound))

    def _exact(self, stage: Stage, e: Expr) -> bool:
        if isinstance(e, Const):
            return e.dtype not in FLOATS or float(e.value).is_integer() or math.isinf(float(e.value))
        if isinstance(e, Op):
            reals = e.dtype in FLOATS or any(a.dtype in FLOATS for a in e.args)
            if reals and e.kind not in _EXACT | COMPARE:
                return False
            return not reals or e.dtype == "bool" or _holds(e.dtype, self.of(stage, e))
        return True


def _stored(r: Range, dtype: str) -> Range:
    """``r`` as the type keeps it: an integer outside wraps around, so that nothing is known of it."""
    if any(math.isnan(x) for x in r):
        return of_type(dtype)
    if dtype in FLOATS:
        return r
    whole = of_type(dtype)
    return r if whole[0] <= r[0] and r[1] <= whole[1] else whole


def _rounded(r: Range, function: Callable[[float], float]) -> Range:
    low, high = (x if math.isinf(x) else function(x) for x in r)
    return low, high


def _holds(dtype: str, r: Range) -> bool:
    """Whether the type holds all whole numbers of the range (integers do, by wrapping as the reference
    does)."""
    return dtype not in FLOATS or max(abs(r[0]), abs(r[1])) < _MANTISSA[dtype]


def dependencies(workload: Workload) -> dict[str, frozenset[str]]:
    """For each integer tensor, the integer inputs whose values it depends on through integers."""
    out: dict[str, frozenset[str]] = {n: frozenset({n}) for n, t, _ in workload.inputs if t.dtype in INTS}
    for node in workload.nodes:
        out[node.output] = frozenset().union(*(out.get(s, frozenset()) for s in node.sources))
        if node.type.dtype in FLOATS:
            out[node.output] = frozenset()
    return out
