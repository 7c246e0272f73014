"""Moving views out of the way of fusion: a stage takes the shape of the view that reads it, or of the stage before the view."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.affine import affine, make
from tilewright.graph.edits import eliminate_dead, rebuilt
from tilewright.graph.expr import Expr, Load, Var, index, var
from tilewright.graph.graph import Graph
from tilewright.graph.stage import Node, Stage, TensorType, View
from tilewright.graph.traverse import loads, rewrite, substitute


def absorb_unit_views(graph: Graph) -> Graph:
    """Where a view only adds or drops dimensions of size 1 after a stage that nothing else reads, let the
    stage have that shape itself, so that what follows can fuse with it."""
    readers = {t: len(c) for t, c in graph.consumers().items()}
    made: dict[str, Node] = {}
    for n in graph.nodes:
        if isinstance(n, View) and readers[n.source] == 1 and n.source not in graph.outputs:
            source = made.get(n.source)
            if isinstance(source, Stage) and _reshapes_units(source, n):
                del made[n.source]
                made[n.output] = _with_shape(source, n)
                continue
        made[n.output] = n
    return rebuilt(graph, made.values(), graph.constants)


def _reshapes_units(s: Stage, v: View) -> bool:
    if s.ordered is not None:
        return False  # it lists its results along an axis by number
    names = {f"i{k}" for k in range(len(v.type.shape))}
    squeezed = [[d for d in shape if d != 1] for shape in (s.type.shape, v.type.shape)]
    return squeezed[0] == squeezed[1] and names.isdisjoint(a for a, _ in s.reduce)


def _with_shape(s: Stage, v: View) -> Stage:
    """``s`` with the shape of ``v``, which has the same sizes other than 1 in the same order."""
    new: list[tuple[str, int]] = []
    values: dict[str, Expr] = {a: index(0) for a, extent in s.axes if extent == 1}
    old = list(s.axes)
    for k, d in enumerate(v.type.shape):
        while old and old[0][1] == 1 and d != 1:
            old.pop(0)
        if old and old[0][1] == d:
            values[old.pop(0)[0]] = var(f"i{k}")
        new.append((f"i{k}", d))
    return Stage(v.output, tuple(new), substitute(s.body, values), s.reduce, s.reducer, s.origin)


def sink_views(graph: Graph) -> Graph:
    """Where a map reads a view of a stage that nothing else reads, let the map have the shape of the stage and view its result
    instead, so that the two can fuse: ``f(view(s))`` -> ``view(f(s))``. Other tensors that the map reads are viewed alike, or
    read at affine positions of the new axes; where neither is possible the map stays as it is."""
    readers = {t: len(c) for t, c in graph.consumers().items()}
    shapes = {t: k.shape for t, k in graph.types.items()}
    made: dict[str, Node] = {}
    for n in graph.nodes:
        made[n.output] = n
        if not isinstance(n, Stage) or n.reduce:
            continue
        for v in (made.get(t) for t in n.sources):
            stage = made.get(v.source) if isinstance(v, View) else None
            if not isinstance(v, View) or not isinstance(stage, Stage):
                continue
            if readers[v.output] != 1 or readers[v.source] != 1 or {v.output, v.source} & set(graph.outputs):
                continue
            moved = _in_shape_of(n, v, stage, shapes)
            if moved is None:
                continue
            views, sunk = moved
            new: list[Node] = [*views, sunk]
            made.update((m.output, m) for m in new)
            shapes.update((m.output, m.type.shape) for m in new)
            readers |= {m.output: 1 for m in new}
            made[n.output] = made.pop(n.output)  # keep the order: what the view reads comes first
            made[n.output] = View(n.output, sunk.output, n.type, n.origin)
            break
    return eliminate_dead(rebuilt(graph, made.values(), graph.constants))


def _in_shape_of(
    s: Stage, v: View, stage: Stage, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[View], Stage] | None:
    """``s``, which reads the view ``v`` of ``stage`` at its own indices, over axes of the shape of ``stage``; and the views that
    it needs of other tensors."""
    own = tuple(var(a) for a, _ in s.axes)
    if s.type.shape != v.type.shape or any(e.index != own for e in loads(s.body) if e.tensor == v.output):
        return None
    axes = tuple((f"i{k}", e) for k, e in enumerate(stage.type.shape))
    ranges = {a: (0, e - 1) for a, e in axes}
    plain = tuple(var(a) for a, _ in axes)
    flat = make({a: stride for (a, _), stride in zip(axes, stage.type.strides, strict=True)}, 0).expr()
    position: dict[str, Expr] = {}
    for (a, extent), stride in zip(s.axes, s.type.strides, strict=True):
        found = affine(flat // stride % extent, ranges)
        if found is not None:
            position[a] = found.expr()
    views: list[View] = []
    fits = True

    def rule(e: Expr) -> Expr | None:
        nonlocal fits
        if isinstance(e, Var):
            fits = fits and e.name in position
            return position.get(e.name, e)
        if not isinstance(e, Load):
            return None
        if e.tensor == v.output:
            return Load(e.dtype, stage.output, plain)
        if e.index == own and shapes[e.tensor] == s.type.shape and any(a not in position for a, _ in s.axes):
            name = f"{e.tensor}_as_{stage.output}"
            views.append(View(name, e.tensor, TensorType(stage.type.shape, e.dtype), s.origin))
            return Load(e.dtype, name, plain)
        at = [affine(i, ranges) if position else None for i in (rewrite(i, rule) for i in e.index)]
        fits = fits and all(i is not None for i in at)
        return Load(e.dtype, e.tensor, tuple(i.expr() for i in at if i is not None))

    body = rewrite(s.body, rule)
    taken = {*shapes, *(w.output for w in views)}
    name = f"{s.output}_flat"
    while name in taken:
        name += "_"
    if not fits or any(w.output in shapes for w in views):
        return None
    return views, Stage(name, axes, body, (), None, s.origin)
