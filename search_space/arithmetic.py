"""The arithmetic of one point of a stage, as the analytic models count it."""

from __future__ import annotations

from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import COMPARE, MATHS, Const, Expr, Load, Op
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.falling import FALLING

#: Rough cost of a maths function, in fused multiply-adds of the same vector width.
MATHS_COST = {
    "exp": 12, FALLING: 9, "tanh": 12, "sigmoid": 13, "erf": 15, "softplus": 24, "log": 24, "sqrt": 8,
    "rsqrt": 12, "pow": 90, "sin": 70, "cos": 70,
}  # fmt: skip


class Arithmetic:
    """Counts the operations of a body at each point. ``unrolled`` axes are constants where code is written, ``packed``
    factors are only read."""

    def __init__(self, unrolled: frozenset[str], packed: list[Expr]) -> None:
        self.unrolled = unrolled
        self.seen: set[Expr] = set(packed)
        self.guards: list[frozenset[str]] = []

    def of(self, body: Expr, reducer: str | None) -> tuple[int, float, tuple[frozenset[str], ...]]:
        """Simple operations at each point (a multiply that is summed counts as one fused operation), the cost
        of its maths, and the axes of its index comparisons. What computes an index is not counted."""
        fused = 1 if reducer == "sum" and isinstance(body, Op) and body.kind == "mul" and body.dtype in FLOATS else 0
        ops, maths = self._count(body)
        return max(1, ops + (1 if reducer else 0) - fused), maths, tuple(self.guards)

    def _count(self, e: Expr) -> tuple[int, float]:
        if e in self.seen or not isinstance(e, Op):
            return 0, 0.0
        self.seen.add(e)
        if e.kind in COMPARE and not list(loads(e)):
            self.guards.append(frozenset(variables(e)))
            return 0, 0.0
        if e.kind == "select" and variables(e.args[0]) <= self.unrolled and not loads(e.args[0]):
            return self._longer(e.args[1], e.args[2])
        if e.kind == "select" and isinstance(e.args[1], Load) and isinstance(e.args[2], Const) and e.args[2].value == 0:
            return self._count(e.args[0])  # a guarded load gives that zero
        ops, maths = 0, 0.0
        if e.kind in MATHS or e.kind in ("pow", FALLING):
            maths = MATHS_COST.get(e.kind, 30)
        elif e.kind in ("div", "floordiv", "mod", "fmod"):
            maths = 4 if e.dtype in FLOATS else 20
        elif e.kind not in ("cast", "and", "or", "not"):
            ops = 1
        for x in e.args:
            more, cost = self._count(x)
            ops, maths = ops + more, maths + cost
        return ops, maths

    def _longer(self, then: Expr, otherwise: Expr) -> tuple[int, float]:
        """The longer of two sides of which one is written."""
        before, guards = set(self.seen), len(self.guards)
        first = self._count(then)
        after, found = self.seen, self.guards[guards:]
        self.seen = before
        del self.guards[guards:]
        second = self._count(otherwise)
        if sum(first) > sum(second):
            self.seen = after
            self.guards[guards:] = found
            return first
        return second
