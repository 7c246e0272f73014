"""Phases: the workload rewritten so that it can be tiled.

Decisions of a schedule are taken here, before any loop exists: which convolutions are computed by another
algorithm (:mod:`~tilewright.schedules.winograd`), which are reduced in parts
(:mod:`~tilewright.schedules.rfactor`), which stages are inlined, which axes of the output are walked as
two (:mod:`~tilewright.schedules.divide`), which stages are computed in blocks (:mod:`~tilewright.schedules.blocks`),
which are computed inside another stage's loops, and therefore which
become loop programs of their own (phases, run one after the other). In a phase

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilewright.graph.affine import Ranges, affine, parted
from tilewright.graph.expr import Expr, Load, Var, const, var
from tilewright.graph.stage import Stage, TensorType
from tilewright.graph.traverse import loads, rewrite, show
from tilewright.graph.workload import Workload
from tilewright.schedules.blocks import split_off
from tilewright.schedules.collapse import collapse
from tilewright.schedules.divide import divide
from tilewright.schedules.falling import falling
from tilewright.schedules.ordered import listed
from tilewright.schedules.phase import ACC, Phase, PStage
from tilewright.schedules.rewrites import flatten, give_leaders, hand_on_factors, inline, resolve_views
from tilewright.schedules.rfactor import factor_out
from tilewright.schedules.steps import At, Block, Divide, Inline, RFactor, Schedule, Step, Winograd, check
from tilewright.schedules.winograd import expand


def phases(workload: Workload, schedule: Schedule) -> list[Phase]:
    """Split a workload into phases, in execution order. Raises ScheduleError where a decision is not
    legal."""
    steps = tuple(s for s in schedule.steps if isinstance(s, (Winograd, RFactor, Inline, Divide, Block, At)))
    structure = tuple((s.stage, s.leader) if isinstance(s, At) else s for s in steps)
    loops = {s.stage: s.loop for s in steps if isinstance(s, At)}
    return [
        replace(p, attached=tuple((stage, leader, loops.get(stage, loop)) for stage, leader, loop in p.attached))
        for p in _phases(_Decisions(workload.hash, structure, workload, steps))
    ]


@dataclass(frozen=True, slots=True)
class _Decisions:
    """What phases depend on. The loop that a stage is computed in is not compared: candidates and sketches that differ in loops only
    have the same phases."""

    workload_hash: str
    structure: tuple[Winograd | RFactor | Inline | Divide | Block | tuple[str, str], ...]
    workload: Workload = field(compare=False)
    steps: tuple[Step, ...] = field(compare=False)


@lru_cache(maxsize=512)
def _phases(of: _Decisions) -> tuple[Phase, ...]:
    """The phases, each stage computed inside the ``tile`` of its leader."""
    workload = of.workload
    stages = resolve_views(workload)
    for step in of.steps:
        if isinstance(step, Winograd):
            stages = expand(stages, step)
    for step in of.steps:
        if isinstance(step, RFactor):
            stages = factor_out(stages, step, workload.output)
    inlined = [s.stage for s in of.steps if isinstance(s, Inline)]
    stages = falling(inline(stages, inlined, workload))
    for step in of.steps:
        if isinstance(step, Divide):
            stages = divide(stages, step, workload.output)
    for step in of.steps:
        if isinstance(step, Block):
            stages = split_off(stages, step)
    ats = [s for s in of.steps if isinstance(s, At)]
    stages = hand_on_factors(stages, {s.stage for s in ats})
    stages = give_leaders(stages, {s.stage for s in ats})
    names = [s.output for s in stages]
    for at in ats:
        check(at.stage in names and at.leader in names, f"{at}: expected stages of {names}")
    leader_of = {s.stage: s.leader for s in ats}
    ordered = {s.output for s in stages if s.ordered is not None}
    for at in ats:
        check(
            not {at.stage, at.leader} & ordered,
            f"{at}: {sorted({at.stage, at.leader} & ordered)} lists its results in order; it is a phase of its own",
        )
    for s in stages:  # an accumulator always belongs to its leader
        if s.output.endswith(ACC) and s.output not in leader_of:
            leader_of[s.output] = s.output.removesuffix(ACC)

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
        attached = tuple((m.output, leader_of[m.output], "tile") for m in members[:-1])
        phase = _unify(members, attached, types)
        out.append(listed(phase, members[0]) if leader in ordered else collapse(phase))
    return tuple(out)


Axis = tuple[str, str]
"""A stage and one of its axes."""


def _unify(members: list[Stage], attached: tuple[tuple[str, str, str], ...], types: Mapping[str, TensorType]) -> Phase:
    """Give axes that walk in step one name, flatten external loads, drop axes of extent 1."""
    local = {m.output: m for m in members[:-1]}
    names = _names(members, _in_step(members, local))
    out: list[PStage] = []
    for stage in members:
        rename = {axis: names[stage.output, axis] for axis, _ in stage.axes + stage.reduce}
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
                stage.reducer if isinstance(stage.reducer, str) and any(e > 1 for _, e in stage.reduce) else None,
                body,
            )
        )
    return Phase(tuple(out), attached)


def _in_step(members: list[Stage], local: Mapping[str, Stage]) -> Callable[[Axis], Axis]:
    """One of the axes that walk in step with a given one, the same for all of them."""
    parent: dict[Axis, Axis] = {}

    def find(x: Axis) -> Axis:
        while parent.get(x, x) != x:
            x = parent[x]
        return x

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
    return find


def _names(members: list[Stage], find: Callable[[Axis], Axis]) -> dict[Axis, str]:
    """A name for every axis, the leader's own where it has a part; axes in step have the same."""
    chosen: dict[Axis, str] = {}
    out: dict[Axis, str] = {}
    for stage in reversed(members):
        for axis, _ in stage.axes + stage.reduce:
            key = find((stage.output, axis))
            if key not in chosen:
                fresh = axis
                n = 0
                while fresh in chosen.values():
                    n += 1
                    fresh = f"{axis[0]}{len(chosen) + n}"
                chosen[key] = fresh
            out[stage.output, axis] = chosen[key]
    return out


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
        return Load(e.dtype, e.tensor, (parted(flat, ranges).expr(),))

    return rewrite(body, rule, memo)
