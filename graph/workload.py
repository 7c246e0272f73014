"""Workloads: a fused group of stages in canonical form, and its hash, which is the key of tuning records.

Names and node order of the model do not matter; shapes, data types, expressions and which inputs are constant do. The same
canonicalisation serves extraction (tuning) and application (compiling), so what was tuned is found again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.graph.dtypes import SIZES, GraphError
from tilewright.graph.expr import MATHS, Const, Expr, Load, Op, Var
from tilewright.graph.ordered import Ordered, Scan, Select
from tilewright.graph.stage import Axes, Node, Stage, TensorType, View
from tilewright.graph.traverse import children, loads, postorder, rewrite, walk

Json = Any
FORMAT = 1


@dataclass(frozen=True)
class Workload:
    """``inputs`` are ``(name, type, is_constant)`` in canonical order; ``nodes`` define tensors in order; ``output`` is the one
    tensor the group hands on. Tensors are named ``x0…`` (inputs) and ``t0…`` (computed), axes ``i0…`` and ``r0…``."""

    inputs: tuple[tuple[str, TensorType, bool], ...]
    nodes: tuple[Node, ...]
    output: str

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """Type of every tensor."""
        out = {n: t for n, t, _ in self.inputs}
        out.update((n.output, n.type) for n in self.nodes)
        return out

    @cached_property
    def stages(self) -> dict[str, Stage]:
        """The stages by the tensor they define (views left out)."""
        return {n.output: n for n in self.nodes if isinstance(n, Stage)}

    @cached_property
    def text(self) -> str:
        """Canonical JSON: equal workloads have equal text."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """Record key: 16 hex digits of the SHA-256 of :attr:`text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def family(self) -> str:
        """Hash of the workload with every size abstracted: the same structure at another shape has the same family."""
        flat = json.dumps(_abstract(to_json(self)), separators=(",", ":"))
        return hashlib.sha256(flat.encode()).hexdigest()[:16]

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of the unscheduled meaning (multiply and add count as two, a function as one)."""
        total = 0
        for s in self.stages.values():
            per_point = sum(
                1
                for e in walk(s.body)
                if isinstance(e, Op) and e.dtype in ("float32", "float64") and e.kind not in ("select", "cast")
            )
            total += s.points * (per_point + (1 if s.reducer else 0))
        return total

    @cached_property
    def min_bytes(self) -> int:
        """Bytes that must move: the output once, and every input once or, of a large one of which few elements are read (a gather),
        no more than are."""
        views = {n.output: n.source for n in self.nodes if isinstance(n, View)}
        asked: dict[str, int] = {}
        for s in self.stages.values():
            for e in loads(s.body):
                name = e.tensor
                while name in views:
                    name = views[name]
                asked[name] = asked.get(name, 0) + s.points * SIZES[e.dtype]
        read = sum(min(t.nbytes, asked.get(name, t.nbytes)) for name, t, _ in self.inputs)
        return read + self.types[self.output].nbytes

    def describe(self) -> str:
        """One line for people: the heaviest stage, its extents and how many stages are fused."""
        main = max(self.stages.values(), key=lambda s: s.points)
        space = "×".join(str(e) for _, e in main.axes) or "1"
        red = "×".join(str(e) for _, e in main.reduce)
        kind = f"{_word(main.reducer)} {space} over {red}" if red else f"map {space}"
        rest = len(self.stages) - 1
        return kind + (f" +{rest}" if rest else "")

    def uses_maths(self) -> bool:
        """Whether any stage calls a mathematical function."""
        return any(isinstance(e, Op) and e.kind in MATHS for s in self.stages.values() for e in walk(s.body))


def _word(reducer: str | Ordered | None) -> str:
    """A reducer in a word or two."""
    if isinstance(reducer, Scan):
        return f"scan {reducer.reducer}"
    return f"{'largest' if reducer.largest else 'smallest'}" if isinstance(reducer, Select) else str(reducer)


def canonical(
    nodes: Sequence[Node], output: str, types: Mapping[str, TensorType], constants: Iterable[str]
) -> tuple[Workload, dict[str, str]]:
    """The canonical workload of a group, and the map from canonical tensor names to the names given.

    ``nodes`` are the group's nodes in any order, ``output`` the tensor it hands on. Raises GraphError if the nodes do not
    define ``output``.
    """
    producers = {n.output: n for n in nodes}
    if output not in producers:
        raise GraphError(f"workload: expected {output!r} to be defined by the group; it defines {sorted(producers)}")
    constant = set(constants)
    order: list[Node] = []
    inputs: list[str] = []
    seen: set[str] = set()

    def visit(tensor: str) -> None:
        if tensor in seen:
            return
        seen.add(tensor)
        node = producers.get(tensor)
        if node is None:
            inputs.append(tensor)
            return
        for s in node.sources:
            visit(s)
        order.append(node)

    visit(output)
    names = {t: f"x{k}" for k, t in enumerate(inputs)}
    names.update((n.output, f"t{k}") for k, n in enumerate(order))
    workload = Workload(
        tuple((names[t], types[t], t in constant) for t in inputs),
        tuple(_rename(n, names) for n in order),
        names[output],
    )
    return workload, {v: k for k, v in names.items()}


def _rename(node: Node, names: Mapping[str, str]) -> Node:
    if isinstance(node, View):
        return View(names[node.output], names[node.source], node.type, node.origin)
    axes = {a: f"i{k}" for k, (a, _) in enumerate(node.axes)}
    axes.update((a, f"r{k}") for k, (a, _) in enumerate(node.reduce))
    return Stage(
        names[node.output],
        _renamed_axes(node.axes, axes),
        rename_expr(node.body, names, axes),
        _renamed_axes(node.reduce, axes),
        node.reducer,
        node.origin,
    )


def _renamed_axes(axes: Axes, names: Mapping[str, str]) -> Axes:
    return tuple((names[a], e) for a, e in axes)


def rename_expr(e: Expr, tensors: Mapping[str, str], axes: Mapping[str, str]) -> Expr:
    """``e`` with tensors and variables renamed (names that are not in the maps stay)."""
    memo: dict[Expr, Expr] = {}

    def rule(n: Expr) -> Expr | None:
        if isinstance(n, Var):
            return Var(n.dtype, axes.get(n.name, n.name))
        if isinstance(n, Load):
            index = tuple(rewrite(i, rule, memo) for i in n.index)
            return Load(n.dtype, tensors.get(n.tensor, n.tensor), index)
        return None

    return rewrite(e, rule, memo)


# ---------------------------------------------------------------- JSON


def to_json(w: Workload) -> Json:
    """Plain data (:mod:`tilewright.graph.read_workload` has the inverse). Expressions are written once each, in a table, so shared
    sub-expressions stay shared."""
    nodes: list[Json] = []
    for n in w.nodes:
        if isinstance(n, View):
            nodes.append({"view": n.output, "of": n.source, "shape": list(n.type.shape)})
            continue
        table: list[Json] = []
        seen: dict[Expr, int] = {}
        for e in postorder(n.body):
            seen[e] = len(table)
            table.append(_encode(e, seen))
        entry: Json = {"stage": n.output, "axes": [e for _, e in n.axes]}
        if n.reduce:
            entry["reduce"] = [e for _, e in n.reduce]
            entry["reducer"] = _encode_reducer(n.reducer)
        entry["body"] = table
        nodes.append(entry)
    inputs = [[n, list(t.shape), t.dtype, "constant" if c else "input"] for n, t, c in w.inputs]
    return {"format": FORMAT, "inputs": inputs, "nodes": nodes, "output": w.output}


def _encode_reducer(reducer: str | Ordered | None) -> Json:
    if isinstance(reducer, Scan):
        return ["scan", reducer.reducer, reducer.axis, reducer.exclusive, reducer.reverse]
    return ["select", reducer.largest] if isinstance(reducer, Select) else reducer


def decode_reducer(data: Json) -> str | Ordered:
    """A reducer from its JSON. Raises GraphError for anything else."""
    if isinstance(data, str):
        return data
    if not isinstance(data, list):
        raise GraphError(f"workload: expected a reducer; got {data!r}")
    kind, rest = data[:1], data[1:]
    if kind == ["scan"] and [type(x) for x in rest] == [str, int, bool, bool]:
        return Scan(*rest)
    if kind == ["select"] and [type(x) for x in rest] == [bool]:
        return Select(*rest)
    raise GraphError(f"workload: expected a reducer; got {data!r}")


def _encode(e: Expr, seen: Mapping[Expr, int]) -> Json:
    """The row of an expression, whose sub-expressions have the rows ``seen``."""
    args = [seen[c] for c in children(e)]
    if isinstance(e, Const):
        value: Json = e.value
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            value = repr(value)
        return ["const", e.dtype, value]
    if isinstance(e, Var):
        return ["axis", e.name]
    if isinstance(e, Load):
        return ["load", e.dtype, e.tensor, args]
    assert isinstance(e, Op)
    return [e.kind, e.dtype, args]


def _abstract(data: Json) -> Json:
    """Replace every integer (a size, an offset, a stride) by a placeholder."""
    if isinstance(data, dict):
        return {k: _abstract(v) for k, v in data.items()}
    if isinstance(data, list):
        if data[:1] == ["const"] or data[:1] == ["load"] or (data and isinstance(data[0], str)):
            return [v if isinstance(v, str) else _abstract(v) for v in data]
        return [_abstract(v) for v in data]
    return 0 if isinstance(data, int) and not isinstance(data, bool) else data


def bytes_of(t: TensorType) -> int:
    """Storage bytes of a tensor type (one place for the size table)."""
    return t.size * SIZES[t.dtype]
