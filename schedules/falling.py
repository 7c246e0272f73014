"""Exponentials that need no guard against overflow: ``exp(a - m)`` where ``m`` is the maximum of ``a`` over a row, and
``exp(min(a, c)) + d`` with constants ``c`` and ``d``.

Every softmax has one of the first kind, many activation functions have one of the second. Next to the 1 that is in every row,
and next to ``d``, nobody sees values below the smallest normal number, so a shorter function serves: :data:`FALLING` in the
maths library. That the argument is bounded is found by comparing expressions, whatever operator made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.graph.expr import Const, Expr, Load, Op, Var
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import children, rewrite, walk

FALLING = "exp_falling"
"""The kind of operation that takes the place of ``exp``."""
HIGHEST = 80
"""The largest argument that it is used for."""


def falling(stages: list[Stage]) -> list[Stage]:
    """The stages with every float32 ``exp`` of one of the two kinds marked as falling."""
    largest = {s.output: s for s in stages if s.reducer == "max"}
    return [_marked(s, largest) for s in stages]


def _marked(stage: Stage, largest: Mapping[str, Stage]) -> Stage:
    nodes = list(walk(stage.body))
    if not any(isinstance(e, Op) and e.kind == "exp" for e in nodes):
        return stage
    summed = {e.args[0] for e in nodes if isinstance(e, Op) and e.kind in ("add", "sub") and _constant(e.args[1])}

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Op) or e.kind != "exp" or e.dtype != "float32":
            return None
        x = e.args[0]
        low = (e in summed and _has_bound(x)) or _is_below_maximum(x, stage, largest)
        return Op(e.dtype, FALLING, (rewrite(x, rule, memo),)) if low else None  # what is shared stays shared

    memo: dict[Expr, Expr] = {}
    body = rewrite(stage.body, rule, memo)
    return stage if body is stage.body else replace(stage, body=body)


def _constant(e: Expr) -> bool:
    """Whether ``e`` is a constant beside which 2^-126 is nothing."""
    return isinstance(e, Const) and abs(e.value) >= 2.0**-64


def _has_bound(x: Expr) -> bool:
    """Whether ``x`` is the minimum of something and a constant that is not too large."""
    return isinstance(x, Op) and x.kind == "min" and any(isinstance(a, Const) and a.value <= HIGHEST for a in x.args)


def _is_below_maximum(x: Expr, stage: Stage, largest: Mapping[str, Stage]) -> bool:
    """Whether ``x`` is an element less the maximum of its row."""
    if not isinstance(x, Op) or x.kind != "sub":
        return False
    element, top = x.args
    if not isinstance(top, Load) or top.tensor not in largest:
        return False
    row = largest[top.tensor]
    values: dict[str, Expr] = {a: i for (a, _), i in zip(row.axes, top.index, strict=True)}
    return _same(row.body, element, values, {a: n for a, n in row.reduce}, stage.extents)


def _same(pattern: Expr, e: Expr, values: dict[str, Expr], free: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Whether ``e`` is ``pattern`` for these values of its axes. An axis in ``free`` may be any axis that walks the same range."""
    if isinstance(pattern, Var):
        if pattern.name not in values and pattern.name in free:
            if not isinstance(e, Var) or extents.get(e.name) != free[pattern.name]:
                return False
            values[pattern.name] = e
        return values.get(pattern.name) == e
    if type(pattern) is not type(e) or pattern.dtype != e.dtype:
        return False
    if isinstance(pattern, Load) and isinstance(e, Load) and pattern.tensor != e.tensor:
        return False
    if isinstance(pattern, Op) and isinstance(e, Op) and pattern.kind != e.kind:
        return False
    mine, other = children(pattern), children(e)
    if not mine:
        return pattern == e
    return len(mine) == len(other) and all(_same(p, x, values, free, extents) for p, x in zip(mine, other, strict=True))
