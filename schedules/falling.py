"""Exponentials of what cannot be positive: ``exp(a - m)`` where ``m`` is the maximum of ``a`` over a row.

Every softmax has one. Known to be at most 1 it needs no guard against overflow, and next to the 1 that is in every row
nobody sees values below the smallest normal number, so a shorter function serves: :data:`FALLING` in the maths library.
That the argument cannot be positive is found by comparing expressions, whatever operator made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.graph.expr import Expr, Load, Op, Var
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import children, rewrite

FALLING = "exp_falling"
"""The kind of operation that takes the place of ``exp``."""


def falling(stages: list[Stage]) -> list[Stage]:
    """The stages with every float32 ``exp`` of an element less the maximum of its row marked as falling."""
    largest = {s.output: s for s in stages if s.reducer == "max"}
    return [_marked(s, largest) if largest else s for s in stages]


def _marked(stage: Stage, largest: Mapping[str, Stage]) -> Stage:
    extents = stage.extents

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Op) or e.kind != "exp" or e.dtype != "float32":
            return None
        x = e.args[0]
        if not isinstance(x, Op) or x.kind != "sub":
            return None
        element, top = x.args
        if not isinstance(top, Load) or top.tensor not in largest:
            return None
        row = largest[top.tensor]
        values: dict[str, Expr] = {a: i for (a, _), i in zip(row.axes, top.index, strict=True)}
        free = {a: n for a, n in row.reduce}
        return Op(e.dtype, FALLING, (x,)) if _same(row.body, element, values, free, extents) else None

    body = rewrite(stage.body, rule)
    return stage if body is stage.body else replace(stage, body=body)


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
