"""Neighbouring axes of a phase as one, wherever every stage and every load allows it: an element-wise chain over (1, 64, 56, 56)
becomes one loop of 200704."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from tilewright.graph.affine import Parted, make, parted
from tilewright.graph.expr import Expr, Load, Var, var
from tilewright.graph.stage import Axes
from tilewright.graph.traverse import loads, rewrite, variables
from tilewright.schedules.phase import Phase, PStage


def collapse(phase: Phase) -> Phase:
    """Merge neighbouring axes as long as a pair can be merged in every stage."""
    refused: set[tuple[str, str]] = set()  # for good: what other pairs merge changes nothing between these two
    while True:
        for pair in _neighbours(phase):
            merged = None if pair in refused else _merge(phase, *pair)
            if merged is not None:
                phase = merged
                break
            refused.add(pair)
        else:
            return phase


def _neighbours(phase: Phase) -> list[tuple[str, str]]:
    pairs: dict[tuple[str, str], None] = {}
    for s in reversed(phase.stages):
        for axes in (s.axes, s.reduce):
            for (a, _), (b, _) in pairwise(axes):
                pairs[a, b] = None
    return list(pairs)


def _merge(phase: Phase, a: str, b: str) -> Phase | None:
    """The phase with axes ``a`` (outer) and ``b`` (inner) as one axis, or None where some stage forbids
    it."""
    name = a + b
    out: list[PStage] = []
    local = {s.name: s for s in phase.stages[:-1]}
    for s in phase.stages:
        has_a, has_b = a in s.extents, b in s.extents
        if not has_a and not has_b:
            if any(a in local[e.tensor].extents for e in loads(s.body) if e.tensor in local):
                return None  # it reads a window of the axes, not along them
            out.append(s)
            continue
        if has_a != has_b:
            return None
        extent_b = s.extents[b]
        axes, reduce = _merge_axes(s.axes, a, b, name), _merge_axes(s.reduce, a, b, name)
        if axes is None or reduce is None:
            return None
        body = _merge_body(s.body, a, b, extent_b, name, local)
        if body is None:
            return None
        out.append(replace(s, axes=axes, reduce=reduce, body=body))
    return replace(phase, stages=tuple(out))


def _merge_axes(axes: Axes, a: str, b: str, name: str) -> Axes | None:
    names = [n for n, _ in axes]
    if a not in names and b not in names:
        return axes
    if a not in names or b not in names or names.index(b) != names.index(a) + 1:
        return None
    k = names.index(a)
    return (*axes[:k], (name, axes[k][1] * axes[k + 1][1]), *axes[k + 2 :])


def _merge_body(body: Expr, a: str, b: str, extent_b: int, name: str, local: Mapping[str, PStage]) -> Expr | None:
    memo: dict[Expr, Expr] = {}
    failed = False

    def rule(e: Expr) -> Expr | None:
        nonlocal failed
        if isinstance(e, Var):
            failed = failed or e.name in (a, b)
            return e
        if not isinstance(e, Load):
            return None
        used = variables(e)
        if a not in used and b not in used:
            return e
        if e.tensor in local:
            names = [n for n, _ in local[e.tensor].axes]
            if a not in names or b not in names:
                failed = True
                return e
            kept = [i for i, n in zip(e.index, names, strict=True) if n != b]
            return Load(e.dtype, e.tensor, tuple(var(name) if isinstance(i, Var) and i.name == a else i for i in kept))
        flat = parted(e.index[0])
        if flat.form.coefficient(a) != extent_b * flat.form.coefficient(b):
            failed = True
            return e
        terms = {v: c for v, c in flat.form.terms if v not in (a, b)}
        terms[name] = flat.form.coefficient(b)
        parts = {n: rewrite(part, rule, memo) for n, part in flat.parts.items()}
        return Load(e.dtype, e.tensor, (Parted(make(terms, flat.form.const), parts).expr(),))

    new = rewrite(body, rule, memo)
    return None if failed else new
