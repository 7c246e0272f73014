"""Write expressions.

A value is scalar unless it depends on the lane of the vector loop around: what all lanes share is computed once. Index
arithmetic is done on affine forms, so that constants fold and a comparison of indices that is known (most edges of
padding) leaves no code; the others are compared in 32 bits, of which a vector holds twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

from tilewright.graph.affine import Affine
from tilewright.graph.expr import BOUNDED, Const, Expr, Load, Op, binary
from tilewright.graph.traverse import loads, variables
from tilewright.schedules import write_memory as memory
from tilewright.schedules.emit import Value, splat_literal
from tilewright.schedules.scalar import operate
from tilewright.schedules.write_bounds import bounded
from tilewright.schedules.write_scope import Scope

_SIGNED = {"lt": "slt", "le": "sle", "eq": "eq", "ne": "ne"}
_FAR = 1 << 30
"""Indices are clamped to this: so far from an edge, every lane is on the same side of it."""


def value(scope: Scope, e: Expr) -> Value:
    """The value of an expression here; scalar unless it depends on the lane."""
    if isinstance(e, Const):
        return Value(splat_literal(e.value, e.dtype, 1), e.dtype)
    if e in scope.computed:
        return scope.computed[e]
    if isinstance(e, Load):
        return _load(scope, e)
    if e.dtype == "int64":
        a = scope.affine(e)
        if a is not None:
            return _index(scope, a)
    assert isinstance(e, Op)  # a variable is affine
    if e.kind == "select":
        return _select(scope, e)
    if e.kind == BOUNDED:
        return bounded(scope, e, value(scope, e.args[0]))
    if e.kind in _SIGNED and e.args[0].dtype == "int64":
        quick = _compare_index(scope, e)
        if quick is not None:
            return quick
    return operate(scope.fn, e.kind, [value(scope, x) for x in e.args], e.dtype, scope.helpers)


def _load(scope: Scope, e: Load) -> Value:
    a = scope.affine(e.index[0])
    if a is not None:
        return memory.load(scope, e, a)
    form = placed(scope, e.index[0])
    return memory.gather(scope, e, value(scope, e.index[0])) if form is None else memory.load(scope, e, form)


def placed(scope: Scope, index: Expr) -> Affine | None:
    """The affine form of an index whose other parts are the same in all lanes: they are computed here, as variables of the form.
    None where a part differs from lane to lane."""
    found = scope.in_parts(index)
    if scope.lane is not None and any(scope.lane[0] in variables(part) for part in found.parts.values()):
        return None
    for name, part in found.parts.items():
        v = _part(scope, part)
        if v.lanes > 1:
            return None
        scope.vars[name] = v.name
    scope.parts = dict(found.parts)
    return found.form


def _part(scope: Scope, part: Expr) -> Value:
    """A part of an index, computed once for all loads that have it."""
    if any(e.tensor in scope.written or e.tensor not in scope.parameters for e in loads(part)):
        return value(scope, part)
    here = tuple(scope.vars[v] for v in sorted(variables(part)))
    return scope.once((part, here, scope.guard, scope.row), lambda: value(scope, part))


def _index(scope: Scope, a: Affine) -> Value:
    dynamic, constant, stride = scope.split(a)
    if not dynamic:
        base = Value(str(constant), "int64")
    else:
        base = Value(scope.sum(dynamic), "int64")
        if constant:
            base = scope.fn.op(f"add nsw i64 {base.name}, {constant}", "int64")
    if not stride:
        return base
    ramp = ", ".join(f"i64 {stride * k}" for k in range(scope.lanes))
    wide = scope.fn.splat(base, scope.lanes)
    return scope.fn.op(f"add {wide.typed}, <{ramp}>", "int64", scope.lanes)


def _compare_index(scope: Scope, e: Op) -> Value | None:
    """An index comparison whose sides are affine: a constant where everything is known, 32-bit lanes otherwise."""
    d = scope.affine(binary("sub", e.args[0], e.args[1]))
    if d is None:
        return None
    fn, signed = scope.fn, _SIGNED[e.kind]
    lane = scope.lane[0] if scope.lane is not None else None
    stride = d.coefficient(lane) if lane is not None else 0
    if not stride and (dynamic := scope.split(d)[0]):
        key = (e.kind, *sorted(dynamic), scope.split(d)[1])
        return scope.once(key, lambda: fn.op(f"icmp {signed} i64 {_index(scope, d).name}, 0", "bool"))
    base = _index(scope, Affine(tuple((v, c) for v, c in d.terms if v != lane), d.const + stride * scope.first))
    if stride and not base.name.startswith("%"):
        start, n = int(base.name), scope.lanes
        at = [start + stride * k for k in range(n)]
        holds_at = [{"lt": x < 0, "le": x <= 0, "eq": x == 0, "ne": x != 0}[e.kind] for x in at]
        if all(holds_at) or not any(holds_at):
            return Value("true" if holds_at[0] else "false", "bool")
    if stride:
        clamped = fn.intrinsic("smax", [base, Value(str(-_FAR), "int64")], "int64", 1)
        clamped = fn.intrinsic("smin", [clamped, Value(str(_FAR), "int64")], "int64", 1)
        narrow = fn.op(f"trunc i64 {clamped.name} to i32", "int32")
        ramp = ", ".join(f"i32 {-stride * k}" for k in range(scope.lanes))
        return fn.op(f"icmp {signed} {fn.splat(narrow, scope.lanes).typed}, <{ramp}>", "bool", scope.lanes)
    k = int(base.name)
    holds = {"lt": k < 0, "le": k <= 0, "eq": k == 0, "ne": k != 0}[e.kind]
    return Value("true" if holds else "false", "bool")


def _select(scope: Scope, e: Op) -> Value:
    fn, otherwise = scope.fn, e.args[2]
    safe = set(_certain(e.args[0]))
    if isinstance(e.args[1], Load) and e.args[1] not in safe and _is_zero(otherwise) and scope.guard is None:
        return _guarded_load(scope, e, e.args[1])
    condition = value(scope, e.args[0])
    if condition.name in ("true", "false"):
        return _known(scope, e.args[0], e.args[1] if condition.name == "true" else e.args[2])
    chosen = _chosen_load(scope, condition, e.args[1], otherwise)
    if chosen is not None:
        return chosen
    then = _under(scope, condition, e.args[1], safe)
    if not safe.issuperset(loads(otherwise)):
        yes = splat_literal(True, "bool", condition.lanes)
        inverse = fn.op(f"xor {condition.typed}, {yes}", "bool", condition.lanes)
        other = _under(scope, inverse, otherwise, safe)
    else:
        other = value(scope, otherwise)
    lanes = max(condition.lanes, then.lanes, other.lanes)
    if condition.lanes > 1:
        condition = fn.splat(condition, lanes)
    then, other = fn.splat(then, lanes), fn.splat(other, lanes)
    return fn.op(f"select {condition.typed}, {then.typed}, {other.typed}", e.dtype, lanes)


def _chosen_load(scope: Scope, condition: Value, then: Expr, otherwise: Expr) -> Value | None:
    """One load of two, by a condition of all lanes together: the address is chosen, not what is there. None where it must not."""
    if condition.lanes > 1 or scope.guard is not None or not (isinstance(then, Load) and isinstance(otherwise, Load)):
        return None
    if not {then.tensor, otherwise.tensor} <= scope.parameters.keys() - scope.flags.keys():
        return None
    inverse = scope.fn.op(f"xor {condition.typed}, true", "bool")
    forms: list[Affine] = []
    for side, holds in ((then, condition), (otherwise, inverse)):
        scope.guard = holds
        form = placed(scope, side.index[0])
        scope.guard = None
        if form is None:
            return None
        forms.append(form)
    return memory.chosen(scope, condition, [(then.tensor, forms[0]), (otherwise.tensor, forms[1])], then.dtype)


def _guarded_load(scope: Scope, e: Op, then: Load) -> Value:
    """A load, or zero where a condition fails: the guarded load gives that zero by itself. What holds for all lanes or for
    none selects the address; only what differs from lane to lane is a mask."""
    found = [value(scope, c) for c in _conjuncts(e.args[0])]
    if any(c.name == "false" for c in found):
        return _known(scope, e.args[0], e.args[2])
    row = _all(scope, [c for c in found if c.lanes == 1 and c.name != "true"])
    mask = _all(scope, [c for c in found if c.lanes > 1])
    if row is None and mask is None:
        return _known(scope, e.args[0], then)
    scope.guard, scope.row = (mask, row) if mask is not None else (row, None)
    out = value(scope, then)
    scope.guard = scope.row = None
    return out


def _conjuncts(e: Expr) -> list[Expr]:
    if isinstance(e, Op) and e.kind == "and" and e.dtype == "bool":
        return [c for x in e.args for c in _conjuncts(x)]
    return [e]


def _all(scope: Scope, found: list[Value]) -> Value | None:
    """Whether all conditions of the same width hold."""
    return reduce(lambda a, b: scope.once(("and", a, b), lambda: _both(scope, a, b)), found) if found else None


def _both(scope: Scope, a: Value, b: Value) -> Value:
    return scope.fn.op(f"and {a.typed}, {b.name}", "bool", a.lanes)


def _is_zero(e: Expr) -> bool:
    """Whether all bits of a constant are 0."""
    return isinstance(e, Const) and e.value == 0 and math.copysign(1.0, e.value) > 0


def _known(scope: Scope, condition: Expr, e: Expr) -> Value:
    """``e``, the side of a select that is taken here; other iterations of a loop may take the other side."""
    saved = scope.unrolled
    scope.unrolled = {v: n for v, n in saved.items() if v not in variables(condition)}
    out = value(scope, e)
    scope.unrolled = saved
    return out


def _under(scope: Scope, condition: Value, e: Expr, safe: set[Load]) -> Value:
    """``e`` evaluated where ``condition`` holds: its loads are made safe elsewhere, unless they are anyway."""
    if safe.issuperset(loads(e)):
        return value(scope, e)
    saved = scope.guard
    if saved is None:
        scope.guard = condition
    else:
        lanes = max(saved.lanes, condition.lanes)
        a, b = scope.fn.splat(saved, lanes), scope.fn.splat(condition, lanes)
        scope.guard = scope.fn.op(f"and {a.typed}, {b.name}", "bool", lanes)
    out = value(scope, e)
    scope.guard = saved
    return out


def _certain(e: Expr) -> Iterator[Load]:
    """Loads that are made wherever ``e`` is evaluated: those of a condition are, those of the sides of a choice are not."""
    if isinstance(e, Load):
        yield e
    children = e.index if isinstance(e, Load) else e.args if isinstance(e, Op) else ()
    for x in children[:1] if isinstance(e, Op) and e.kind == "select" else children:
        yield from _certain(x)
