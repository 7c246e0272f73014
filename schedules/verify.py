"""The verifier of loop programs: a table of rules, each checked at every node.

A broken rule is a bug in building the program, never a user's mistake; the tests verify every program they build.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.graph.affine import affine, interval
from tilewright.graph.expr import Const, Expr, const
from tilewright.graph.traverse import loads, show, substitute, variables
from tilewright.schedules.nest import Alloc, Fetch, If, Loop, Node, Pick, Prefix, Program, Seq, Store, lines, walk


class VerifyError(AssertionError):
    """A loop program that breaks a rule of the language: a bug in ``apply``, never a user's mistake."""


@dataclass(slots=True)
class _Scope:
    ranges: dict[str, tuple[int, int]]
    kinds: dict[str, str]
    buffers: dict[str, int]


def _rule_static(node: Node, s: _Scope) -> str | None:
    if isinstance(node, Loop) and node.kind in ("vector", "unroll") and not isinstance(node.extent, Const):
        return f"{node.kind} loop {node.var}: expected a constant extent; got {show(node.extent)}"
    return None


def _rule_one_vector(node: Node, s: _Scope) -> str | None:
    if isinstance(node, Loop) and node.kind == "vector" and "vector" in s.kinds.values():
        return f"vector loop {node.var} inside another vector loop"
    return None


def _rule_parallel_outside(node: Node, s: _Scope) -> str | None:
    if isinstance(node, Loop) and node.kind == "parallel" and set(s.kinds.values()) - {"parallel"}:
        return f"parallel loop {node.var} inside a loop that is not parallel"
    return None


def _rule_fresh_variable(node: Node, s: _Scope) -> str | None:
    if isinstance(node, Loop) and node.var in s.ranges:
        return f"loop variable {node.var} is bound twice"
    return None


def _rule_bound(node: Node, s: _Scope) -> str | None:
    exprs: list[Expr] = []
    if isinstance(node, Store):
        exprs = [node.index, node.value]
    elif isinstance(node, Fetch):
        exprs = [node.index, *([node.beyond] if node.beyond is not None else [])]
    elif isinstance(node, Prefix):
        exprs = [node.index, node.value, node.place]
    elif isinstance(node, Pick):
        own: dict[str, Expr] = {node.var: const(0, "int64"), node.lane: const(0, "int64")}
        exprs = [node.index, substitute(node.value, own)]
    elif isinstance(node, Loop):
        exprs = [node.extent]
    elif isinstance(node, If):
        exprs = [node.condition]
    for e in exprs:
        free = variables(e) - set(s.ranges)
        if free:
            return f"{lines(node)[0].strip()}: variables {sorted(free)} are not bound by a loop"
    return None


def _rule_known_tensor(node: Node, s: _Scope) -> str | None:
    if isinstance(node, Store | Fetch | Prefix | Pick):
        read = [] if isinstance(node, Fetch) else [load.tensor for load in loads(node.value)]
        beside = [node.carry] if isinstance(node, Prefix) else [node.heap] if isinstance(node, Pick) else []
        for name in [node.tensor, *beside, *read]:
            if name not in s.buffers:
                return f"{lines(node)[0].strip()}: {name} is not allocated here"
    return None


def _rule_in_bounds(node: Node, s: _Scope) -> str | None:
    """A store never leaves its buffer (loads under a select may: the select guards them)."""
    places: list[tuple[str, Expr, int]] = []
    if isinstance(node, Store | Prefix | Pick):
        places = [(node.tensor, node.index, node.count - 1 if isinstance(node, Pick) else 0)]
    if isinstance(node, Prefix):
        places.append((node.carry, node.place, 0))
    for tensor, index, more in places:
        if tensor not in s.buffers:
            continue
        a = affine(index, s.ranges)
        if a is None:
            return f"{lines(node)[0].strip()}: expected an affine store index"
        low, high = interval(a, s.ranges)
        if (low < 0 or high + more >= s.buffers[tensor]) and not _clipped(s, a.terms):
            size = s.buffers[tensor]
            return f"{lines(node)[0].strip()}: index in [{low}, {high + more}] leaves a buffer of {size}"
    return None


def _clipped(s: _Scope, terms: tuple[tuple[str, int], ...]) -> bool:
    """Whether some variable of the index belongs to a loop whose extent shrinks at the edge (its range is
    then too wide)."""
    return any(v + "!" in s.kinds for v, _ in terms)


RULES: tuple[Callable[[Node, _Scope], str | None], ...] = (
    _rule_static,
    _rule_one_vector,
    _rule_parallel_outside,
    _rule_fresh_variable,
    _rule_bound,
    _rule_known_tensor,
    _rule_in_bounds,
)


def verify(program: Program) -> None:
    """Check every rule at every node; raise :class:`VerifyError` with the first broken one."""
    sizes = {p.name: p.size for p in (*program.inputs, program.output)}
    sizes.update((b.name, b.size) for b in (*program.packed, *program.shared))
    _verify(program.prepare, _Scope({}, {}, dict(sizes)))
    _verify(program.body, _Scope({}, {}, dict(sizes)))
    later = {b.name for b in (*program.packed, *program.shared)}
    for node in (*walk(program.prepare), *walk(program.body)):
        if isinstance(node, Store | Prefix | Pick):
            early = {load.tensor for load in loads(node.value)} & later
            if early:
                raise VerifyError(f"{lines(node)[0].strip()}: {sorted(early)} is read before it is written")
            later.discard(node.tensor)


def _verify(node: Node, s: _Scope) -> None:
    for rule in RULES:
        broken = rule(node, s)
        if broken is not None:
            raise VerifyError(broken)
    if isinstance(node, Seq):
        for n in node.nodes:
            _verify(n, s)
    elif isinstance(node, Loop):
        kinds = {**s.kinds, node.var: node.kind}
        if not isinstance(node.extent, Const):
            kinds[node.var + "!"] = "parallel"
        _verify(node.body, _Scope({**s.ranges, node.var: (0, node.limit - 1)}, kinds, s.buffers))
    elif isinstance(node, Alloc):
        _verify(node.body, _Scope(s.ranges, s.kinds, {**s.buffers, node.buffer.name: node.buffer.size}))
    elif isinstance(node, If):
        # the condition narrows the ranges of its variables; the rules only know that it does
        narrowed = _Scope(s.ranges, {**s.kinds, **{v + "!": "parallel" for v in variables(node.condition)}}, s.buffers)
        _verify(node.then, narrowed)
        if node.otherwise is not None:
            _verify(node.otherwise, narrowed)
