"""Phases: the workload rewritten so that it can be tiled.

Decisions of a schedule are taken here, before any loop exists: which convolutions are computed by another
algorithm (:mod:`~tilewright.schedules.winograd`), which stages are inlined, which are computed inside another
stage's loops, and therefore which become loop programs of their own (phases, run one after the other). In a phase

- axes that walk in step through all its stages have one name (the *leader's* axis names), axes of extent 1
  are gone;
- every load of a tensor from outside the phase has one flat index (tensors are contiguous, so views cost
  nothing), and loads of a tensor local to the phase are indexed by its axes;
- neighbouring axes are collapsed into one wherever every load allows it: an element-wise chain over (1, 64,
  56, 56) becomes one loop of 200704.

A reduction never leads: it is given an identity stage ``t`` reading ``t_acc``, so that "accumulate in
registers, then apply the epilogue at the tile" is the same structure as "epilogue fused".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.graph.affine import Ranges, affine, make
from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import Expr, Load, Var, const, loads, rewrite, show, substitute, var, variables
from tilewright.graph.stage import Axes, Stage, TensorType
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product
from tilewright.schedules.factors import product_factors as product_factors
from tilewright.schedules.falling import falling
from tilewright.schedules.steps import At, Inline, Schedule, Winograd, check
from tilewright.schedules.winograd import expand

ACC = "_acc"


@dataclass(frozen=True, slots=True)
class PStage:
    """One stage of a phase: :class:`~tilewright.graph.stage.Stage` with unified axes and flat external
    loads."""

    name: str
    axes: Axes
    reduce: Axes
    reducer: str | None
    body: Expr

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every axis."""
        return dict(self.axes + self.reduce)


@dataclass(frozen=True, slots=True)
class Phase:
    """Stages computed in one loop program: producers in order, the leader last. ``attached`` maps each
    producer to the stage and the loop it is computed in."""

    stages: tuple[PStage, ...]
    attached: tuple[tuple[str, str, str], ...]

    @property
    def leader(self) -> PStage:
        """The stage whose loops the others are computed in; it writes the phase's output."""
        return self.stages[-1]

    @property
    def local(self) -> set[str]:
        """Tensors that exist only inside the phase."""
        return {s.name for s in self.stages[:-1]}

    def stage(self, name: str) -> PStage:
        """The stage that defines ``name``."""
        found = next((s for s in self.stages if s.name == name), None)
        check(found is not None, f"expected a stage of {[s.name for s in self.stages]}; got {name!r}")
        assert found is not None
        return found


def phases(workload: Workload, schedule: Schedule) -> list[Phase]:
    """Split a workload into phases, in execution order. Raises ScheduleError where a decision is not
    legal."""
    stages = resolve_views(workload)
    for step in schedule.steps:
        if isinstance(step, Winograd):
            stages = expand(stages, step)
    inlined = [s.stage for s in schedule.steps if isinstance(s, Inline)]
    stages = falling(inline(stages, inlined, workload))
    ats = [s for s in schedule.steps if isinstance(s, At)]
    stages = _hand_on_factors(stages, {s.stage for s in ats})
    stages = _give_leaders(stages, {s.stage for s in ats})
    names = [s.output for s in stages]
    for at in ats:
        check(at.stage in names and at.leader in names, f"{at}: expected stages of {names}")
    leader_of = {s.stage: s.leader for s in ats}
    for s in stages:  # an accumulator always belongs to its leader
        if s.output.endswith(ACC) and s.output not in leader_of:
            leader_of[s.output] = s.output.removesuffix(ACC)
    loops = {s.stage: (s.leader, s.loop) for s in ats}

    def root(name: str) -> str:
        seen = {name}
        while name in leader_of:
            name = leader_of[name]
            check(name not in seen, f"stage {name} is computed inside itself")
            seen.add(name)
        return name

    groups: dict[str, list[Stage]] = {}
    for s in stages:
        groups.setdefault(root(s.output), []).append(s)
    types = dict(workload.types)
    types.update((s.output, s.type) for s in stages)
    out = []
    for leader, members in sorted(groups.items(), key=lambda g: names.index(g[0])):
        check(
            members[-1].output == leader,
            f"stage {leader} is used before the stages computed inside it are complete",
        )
        inside = {m.output for m in members[:-1]}
        for s in stages:
            if root(s.output) != leader:
                leaked = inside & set(s.sources)
                check(not leaked, f"stage {s.output} reads {sorted(leaked)}, which exist only inside {leader}")
        attached = tuple((m.output, *loops.get(m.output, (leader_of[m.output], "tile"))) for m in members[:-1])
        out.append(_collapse(_unify(members, attached, types)))
    return out


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


def _give_leaders(stages: list[Stage], attached: set[str]) -> list[Stage]:
    """Split every reduction that is not computed inside another stage into its accumulator and an identity
    leader."""
    out: list[Stage] = []
    for s in stages:
        if s.reducer is None or s.output in attached:
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


def _hand_on_factors(stages: list[Stage], attached: set[str]) -> list[Stage]:
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


def _unify(members: list[Stage], attached: tuple[tuple[str, str, str], ...], types: Mapping[str, TensorType]) -> Phase:
    """Give axes that walk in step one name, flatten external loads, drop axes of extent 1."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def find(x: tuple[str, str]) -> tuple[str, str]:
        while parent.get(x, x) != x:
            x = parent[x]
        return x

    local = {m.output: m for m in members[:-1]}
    for reader in members:
        for load in loads(reader.body):
            producer = local.get(load.tensor)
            if producer is None:
                continue
            for i, (axis, extent) in zip(load.index, producer.axes, strict=True):
                if isinstance(i, Var):
                    check(
                        reader.extents[i.name] == extent,
                        f"at {producer.output}: {reader.output} reads axis {axis} of extent {extent} "
                        "with another extent",
                    )
                    parent[find((producer.output, axis))] = find((reader.output, i.name))
                elif extent > 1:
                    # a window over the producer: this dimension is not walked in step, the reader needs all of it
                    check(
                        affine(i) is not None,
                        f"at {producer.output}: expected {reader.output} to read it at affine positions; got {show(i)}; "
                        "keep it a phase",
                    )
    names: dict[tuple[str, str], str] = {}
    for stage in reversed(members):
        for axis, _ in stage.axes + stage.reduce:
            key = find((stage.output, axis))
            if key not in names:
                fresh = axis
                n = 0
                while fresh in names.values():
                    n += 1
                    fresh = f"{axis[0]}{len(names) + n}"
                names[key] = fresh
    out: list[PStage] = []
    for stage in members:
        rename = {axis: names[find((stage.output, axis))] for axis, _ in stage.axes + stage.reduce}
        check(
            len(set(rename.values())) == len(rename),
            f"at {stage.output}: two of its axes would walk as one; keep it a phase",
        )
        ones = {a for a, e in stage.axes + stage.reduce if e == 1}
        values: dict[str, Expr] = {a: const(0, "int64") if a in ones else var(n) for a, n in rename.items()}
        body = _flat_loads(stage.body, values, local, types, {rename[a]: e for a, e in stage.extents.items()})
        out.append(
            PStage(
                stage.output,
                tuple((rename[a], e) for a, e in stage.axes if e > 1),
                tuple((rename[a], e) for a, e in stage.reduce if e > 1),
                stage.reducer if any(e > 1 for _, e in stage.reduce) else None,
                body,
            )
        )
    return Phase(tuple(out), attached)


def _flat_loads(
    body: Expr,
    values: Mapping[str, Expr],
    local: Mapping[str, Stage],
    types: Mapping[str, TensorType],
    extents: Mapping[str, int],
) -> Expr:
    ranges: Ranges = {a: (0, e - 1) for a, e in extents.items()}
    memo: dict[Expr, Expr] = {}

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return values[e.name]
        if not isinstance(e, Load):
            return None
        index = tuple(rewrite(i, rule, memo) for i in e.index)
        if e.tensor in local:
            kept = tuple(i for i, (_, n) in zip(index, local[e.tensor].axes, strict=True) if n > 1)
            return Load(e.dtype, e.tensor, kept)
        flat = flatten(index, types[e.tensor])
        simple = affine(flat, ranges)
        return Load(e.dtype, e.tensor, (simple.expr() if simple is not None else flat,))

    return rewrite(body, rule, memo)


# ---------------------------------------------------------------- collapsing


def _collapse(phase: Phase) -> Phase:
    """Merge neighbouring axes as long as a pair can be merged in every stage."""
    changed = True
    while changed:
        changed = False
        for pair in _neighbours(phase):
            merged = _merge(phase, *pair)
            if merged is not None:
                phase, changed = merged, True
                break
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
        flat = affine(e.index[0])
        if flat is None or flat.coefficient(a) != extent_b * flat.coefficient(b):
            failed = True
            return e
        terms = {v: c for v, c in flat.terms if v not in (a, b)}
        terms[name] = flat.coefficient(b)
        return Load(e.dtype, e.tensor, (make(terms, flat.const).expr(),))

    new = rewrite(body, rule, memo)
    return None if failed else new
