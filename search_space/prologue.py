"""What every rule decides first: which stages are inlined, which stage anchors the loops, which become phases of their own.

The rules look at stages (reuse, reductions, injective chains), never at operator names.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import MATHS, Load, Op, Var
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import loads, variables, walk
from tilewright.graph.workload import Workload
from tilewright.schedules.factors import product_factors
from tilewright.schedules.rewrites import resolve_views
from tilewright.schedules.steps import Inline, Step
from tilewright.schedules.target import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """``inlined`` stages disappear; ``roots`` (in order) are phases of their own before the anchor; ``reductions`` are the
    reductions that stay, in order; ``leader`` is the stage that writes the output (None if the last reduction does)."""

    inlined: tuple[str, ...]
    roots: tuple[str, ...]
    reductions: tuple[str, ...]
    leader: str | None

    def steps(self) -> list[Step]:
        """The ``inline`` steps."""
        return [Inline(s) for s in self.inlined]


def worth_threads(workload: Workload, target: Target) -> bool:
    """Whether a parallel region (about two microseconds) can pay: below some ten thousand operations or bytes it never does."""
    return target.threads > 1 and (workload.flops > 50_000 or workload.min_bytes > 64_000)


def readers(workload: Workload) -> dict[str, list[Stage]]:
    """For each tensor, the stages that read it (through views)."""
    out: dict[str, list[Stage]] = {n: [] for n in workload.types}
    for s in resolve_views(workload):
        for source in s.sources:
            out[source].append(s)
    return out


def is_padding(stage: Stage) -> bool:
    """A copy with a border: a select between loads and a constant."""
    return stage.reducer is None and isinstance(stage.body, Op) and stage.body.kind == "select"


def is_contraction(stage: Stage) -> bool:
    """A sum of products with reuse: some factor does not depend on some spatial axis."""
    if stage.reducer != "sum":
        return False
    factors = [f for f in product_factors(stage.body) if loads(f)]
    used = [variables(f) for f in factors]
    return len(factors) > 1 and any(a not in u for a, e in stage.axes if e > 1 for u in used)


def is_move(stage: Stage) -> bool:
    """A transpose or another pure movement: one load by plain axes, so a reader can as well load it itself."""
    return stage.reducer is None and isinstance(stage.body, Load) and all(isinstance(i, Var) for i in stage.body.index)


def takes_work(stage: Stage) -> bool:
    """A reduction, or a map that computes functions or quotients."""
    hard = (isinstance(e, Op) and (e.kind in MATHS or e.kind in ("pow", "div")) for e in walk(stage.body))
    return stage.reducer is not None or any(hard)


def is_cheap(stage: Stage) -> bool:
    """Few operations and no maths: recomputing it costs less than storing it."""
    nodes = list(walk(stage.body))
    if takes_work(stage) or any(isinstance(e, Op) and e.kind == "select" for e in nodes):
        return False
    return sum(isinstance(e, Op) and e.dtype in FLOATS for e in nodes) <= 2


def plan(workload: Workload, inline_padding: bool = False) -> Plan:
    """The usual decisions: after the last reduction everything goes into the leader; before the first, cheap stages are inlined
    and padding becomes a copy (or a predicate, with ``inline_padding``); between reductions, stages that walk in step are
    inlined where cheap or read once."""
    stages = resolve_views(workload)
    read = {s.output: [r for r in stages if s.output in r.sources] for s in stages}
    # a reduction over axes of extent 1 is a map: it has no loop to reduce over
    reductions = [s.output for s in stages if s.reducer is not None and any(e > 1 for _, e in s.reduce)]
    inlined: list[str] = []
    roots: list[str] = []
    after: set[str] = set()
    for s in stages:
        if any(src in after or src in reductions for src in s.sources):
            after.add(s.output)
    for s in stages:
        if s.reducer is not None or s.output == workload.output:
            continue
        into_reduction = any(r.reducer is not None for r in read[s.output])
        if not into_reduction and (s.output in after or not reductions):
            # part of an epilogue or of an injective chain: goes into its readers unless that repeats real work
            if len(read[s.output]) <= 1 or is_cheap(s) or _same_walk(s, read[s.output]):
                inlined.append(s.output)
            else:
                roots.append(s.output)
        elif is_padding(s):
            (inlined if inline_padding else roots).append(s.output)
        elif is_cheap(s) or (s.output in after and _same_walk(s, read[s.output])):
            inlined.append(s.output)
        else:
            roots.append(s.output)
    final = next(s for s in stages if s.output == workload.output)
    leader = final.output if final.reducer is None else None
    return Plan(tuple(inlined), tuple(roots), tuple(reductions), leader)


def _same_walk(s: Stage, into: list[Stage]) -> bool:
    """Whether every reader reads ``s`` once at each of its points, by plain axes."""
    for r in into:
        for load in loads(r.body):
            if load.tensor == s.output and not all(isinstance(i, Var) for i in load.index):
                return False
    return True


def reads_in_step(reader: Stage, tensor: str) -> bool:
    """Whether ``reader`` walks ``tensor`` by its own axes or by constants."""
    return all(
        all(isinstance(i, Var) or not list(_variables(i)) for i in e.index)
        for e in loads(reader.body)
        if isinstance(e, Load) and e.tensor == tensor
    )


def _variables(e: object) -> list[str]:
    return [n.name for n in walk(e) if isinstance(n, Var)]  # type: ignore[arg-type]
