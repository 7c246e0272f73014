"""Stages in, stages out: the rewrites that come before a workload is cut into phases.

Views become flat loads, inlined stages vanish into their readers, factors that do not depend on a summed axis leave the sum, and
every reduction that may lead gets an identity stage that leads in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import Expr, Load, Var, const, var
from tilewright.graph.stage import Stage, TensorType
from tilewright.graph.traverse import rewrite, substitute, variables
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product, product_factors
from tilewright.schedules.phase import ACC
from tilewright.schedules.steps import check


def resolve_views(workload: Workload) -> list[Stage]:
    """Stages with every load of a view replaced by the flat load of what it views. A flat load has one
    index."""
    types = workload.types
    source = {n.output: n.source for n in workload.nodes if not isinstance(n, Stage)}
    out: list[Stage] = []
    for stage in workload.stages.values():

        def rule(e: Expr, extents: Mapping[str, int] = stage.extents) -> Expr | None:
            if not isinstance(e, Load) or e.tensor not in source:
                return None
            flat = flatten(tuple(rewrite(i, rule) for i in e.index), types[e.tensor])
            name = e.tensor
            while name in source:
                name = source[name]
            return Load(e.dtype, name, unflatten(flat, types[name], extents))

        out.append(replace(stage, body=rewrite(stage.body, rule)))
    if workload.output in source:  # a group that ends in a view hands on the viewed stage's elements
        final = workload.output
        while final in source:
            final = source[final]
        out = [
            replace(s, output=workload.output) if s.output == final else _reread(s, final, workload.output) for s in out
        ]
    return out


def _reread(stage: Stage, old: str, new: str) -> Stage:
    body = rewrite(
        stage.body, lambda e: Load(e.dtype, new, e.index) if isinstance(e, Load) and e.tensor == old else None
    )
    return replace(stage, body=body)


def flatten(idx: tuple[Expr, ...], t: TensorType) -> Expr:
    """One row-major index for a multi-dimensional one."""
    flat: Expr = const(0, "int64")
    for i, s in zip(idx, t.strides, strict=True):
        flat = flat + i * s
    return flat


def unflatten(flat: Expr, t: TensorType, extents: Mapping[str, int]) -> tuple[Expr, ...]:
    """A multi-dimensional index for a flat one, simplified where the ranges of the axes allow."""
    ranges = {a: (0, e - 1) for a, e in extents.items()}
    out: list[Expr] = []
    for k, (s, d) in enumerate(zip(t.strides, t.shape, strict=True)):
        e = flat // s if s > 1 else flat
        if k:
            e = e % d
        a = affine(e, ranges)
        out.append(a.expr() if a is not None else e)
    return tuple(out)


def inline(stages: list[Stage], names: list[str], workload: Workload) -> list[Stage]:
    """Substitute the bodies of the named injective stages into their readers, and drop them."""
    bodies: dict[str, Stage] = {}
    out: list[Stage] = []
    known = {s.output for s in stages}
    for name in names:
        check(name in known, f"inline {name}: expected a stage of {sorted(known)}")
        check(
            name != workload.output,
            f"inline {name}: it is the output of the workload; it has no reader to go into",
        )
    for stage in stages:
        memo: dict[Expr, Expr] = {}

        def rule(e: Expr, memo: dict[Expr, Expr] = memo) -> Expr | None:
            if not isinstance(e, Load) or e.tensor not in bodies:
                return None
            source = bodies[e.tensor]
            index = [rewrite(i, rule, memo) for i in e.index]
            values = {a: i for (a, _), i in zip(source.axes, index, strict=True)}
            return rewrite(source.body, lambda n: values.get(n.name) if isinstance(n, Var) else None)

        stage = replace(stage, body=rewrite(stage.body, rule, memo))
        if stage.output in names:
            check(stage.reducer is None, f"inline {stage.output}: expected a stage without a reduction")
            bodies[stage.output] = stage
        else:
            out.append(stage)
    return out


def give_leaders(stages: list[Stage], attached: set[str]) -> list[Stage]:
    """Split every reduction that is not computed inside another stage into its accumulator and an identity
    leader."""
    out: list[Stage] = []
    for s in stages:
        if s.reducer is None or s.ordered is not None or s.output in attached:
            out.append(s)
            continue
        summed, outside = _hoisted(s)
        out.append(replace(s, output=s.output + ACC, body=summed))
        axes = tuple((f"i{k}", e) for k, (_, e) in enumerate(s.axes))
        body: Expr = Load(s.body.dtype, s.output + ACC, tuple(var(a) for a, _ in axes))
        renamed = {a: var(n) for (a, _), (n, _) in zip(s.axes, axes, strict=True)}
        for factor in outside:
            body = body * substitute(factor, dict(renamed))
        out.append(Stage(s.output, axes, body, origin=s.origin))
    return out


def hand_on_factors(stages: list[Stage], attached: set[str]) -> list[Stage]:
    """Sums that are computed inside another stage without the factors that do not depend on the summed axes; who reads the sum
    multiplies by them."""
    handed: dict[str, tuple[Stage, list[Expr]]] = {}
    out: list[Stage] = []
    for s in stages:

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.tensor not in handed:
                return None
            source, factors = handed[e.tensor]
            values = {a: i for (a, _), i in zip(source.axes, e.index, strict=True)}
            return product([e, *(substitute(f, values) for f in factors)])

        s = replace(s, body=rewrite(s.body, rule))
        if s.output in attached:
            summed, outside = _hoisted(s)
            if outside:
                handed[s.output] = s, outside
                s = replace(s, body=summed)
        out.append(s)
    return out


def _hoisted(s: Stage) -> tuple[Expr, list[Expr]]:
    """A summed product without the factors that do not depend on the summed axes, and those factors: they multiply the sum once.
    ``sum(e[i, j] * r[i] * v[j])``  ->  ``sum(e[i, j] * v[j]) * r[i]``."""
    if s.reducer != "sum" or s.body.dtype not in FLOATS:
        return s.body, []
    reduced = {a for a, _ in s.reduce}
    factors = product_factors(s.body)
    outside = [f for f in factors if not variables(f) & reduced]
    inside = [f for f in factors if variables(f) & reduced]
    if not outside or not inside:
        return s.body, []
    return product(inside), outside
