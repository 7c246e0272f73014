"""Folding a multiply-add with constants into the weights of the contraction before it.

A batch normalisation after a convolution is ``y[c] * scale[c] + shift[c]``; so is a bias, a scale, or any
chain of them. Found on stages: the chain is composed numerically, the weights are scaled along the dimension
that the channel indexes, and one addition of ``shift`` is left (none where it is zero).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import FLOATS, numpy_dtype
from tilewright.graph.edits import eliminate_dead, rebuilt, rename_loads, retargeted, with_body
from tilewright.graph.evaluate import evaluate_expr
from tilewright.graph.expr import Expr, Load, Op, Var, binary, const, index, var
from tilewright.graph.graph import Array, Graph
from tilewright.graph.stage import Node, Stage, TensorType, View
from tilewright.graph.traverse import loads, substitute, variables


@dataclass(frozen=True, slots=True)
class _Linear:
    """``scale * source + shift``, both numbers or one for each index of axis number ``axis``."""

    source: str
    axis: int | None
    scale: Any
    shift: Any

    def after(self, first: _Linear) -> _Linear | None:
        """This applied to the result of ``first``; None if they vary along different axes."""
        if None not in (self.axis, first.axis) and self.axis != first.axis:
            return None
        axis = self.axis if self.axis is not None else first.axis
        return _Linear(first.source, axis, self.scale * first.scale, self.scale * first.shift + self.shift)


def fold_scaling(graph: Graph) -> Graph:
    """Fold chains of channel-wise multiply-adds into the constant weights of the contraction they follow."""
    constants = dict(graph.constants)
    readers = {t: len(c) for t, c in graph.consumers().items()}
    for o in graph.outputs:
        readers[o] += 1
    made: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    chains: dict[str, _Chain] = {}
    for old in graph.nodes:
        n = made[old.output] = retargeted(old, renamed)
        if not isinstance(n, Stage) or n.reduce or n.body.dtype not in FLOATS:
            continue
        chain = _chain(n, made, chains, constants, readers, graph.types)
        if chain is None:
            continue
        chains[n.output] = chain
        form, length = chain
        neutral = bool(np.all(form.scale == 1))
        if neutral and length == 1 and bool(np.any(form.shift != 0)):
            continue
        if not neutral and not _scale_weights(form, made, constants):
            continue
        if bool(np.all(form.shift == 0)):
            del made[n.output]
            renamed[n.output] = form.source
            readers[form.source] = readers[n.output]
        else:
            made[n.output] = _bias_stage(n, form, constants)
            chains[n.output] = replace(form, scale=np.ones_like(form.scale)), 1
    return eliminate_dead(rebuilt(graph, made.values(), constants, renamed))


_Chain = tuple[_Linear, int]
"""The multiply-add of a stage over the contraction at the start of its chain, and the number of stages composed."""


def _chain(
    s: Stage,
    made: Mapping[str, Node],
    chains: Mapping[str, _Chain],
    constants: Mapping[str, Array],
    readers: Mapping[str, int],
    types: Mapping[str, TensorType],
) -> _Chain | None:
    """The chain that ends in ``s``, if it has one; ``chains`` are those of the stages before it."""
    form = _linear(s, constants, types)
    if form is None or readers[form.source] != 1:
        return None
    p = made.get(form.source)
    if isinstance(p, View) or (isinstance(p, Stage) and p.reduce):
        return form, 1
    earlier = chains.get(form.source)
    if earlier is None:
        return None
    whole = form.after(earlier[0])
    return None if whole is None else (whole, earlier[1] + 1)


def _linear(s: Stage, constants: Mapping[str, Array], types: Mapping[str, TensorType]) -> _Linear | None:
    """``s`` as a multiply-add of one computed tensor read at the stage's own indices."""
    dynamic = [x for x in loads(s.body) if x.tensor not in constants]
    if len(dynamic) != 1 or dynamic[0].index != tuple(var(a) for a, _ in s.axes):
        return None
    target = dynamic[0]
    if types[target.tensor].shape != s.type.shape:
        return None  # a cut that starts at 0 reads at its own indices too
    parts = _parts(s.body, target)
    if parts is None:
        return None
    units = {a: index(0) for a, e in s.axes if e == 1}
    parts = substitute(parts[0], units), substitute(parts[1], units)
    used = sorted(variables(parts[0]) | variables(parts[1]))
    if len(used) > 1:
        return None
    env: dict[str, Array] = {a: np.arange(s.extents[a]) for a in used}
    values = {t: constants[t].astype(np.float64) for p in parts for t in {x.tensor for x in loads(p)}}
    with np.errstate(all="ignore"):
        scale, shift = (evaluate_expr(p, values, env, {}) for p in parts)
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    axis = [a for a, _ in s.axes].index(used[0]) if used else None
    return _Linear(target.tensor, axis, scale, shift)


def _parts(e: Expr, target: Load) -> tuple[Expr, Expr] | None:
    """``(scale, shift)`` expressions with ``e == scale * target + shift``, neither reading ``target``."""
    if e == target:
        return const(1, e.dtype), const(0, e.dtype)
    if target not in loads(e):
        return const(0, e.dtype), e
    if not isinstance(e, Op) or e.kind not in ("add", "sub", "mul", "div", "neg"):
        return None
    if e.kind == "neg":
        inner = _parts(e.args[0], target)
        return None if inner is None else (-inner[0], -inner[1])
    a, b = _parts(e.args[0], target), _parts(e.args[1], target)
    if a is None or b is None:
        return None
    if e.kind in ("add", "sub"):
        return binary(e.kind, a[0], b[0]), binary(e.kind, a[1], b[1])
    if target in loads(e.args[1]):
        if e.kind == "div" or target in loads(e.args[0]):
            return None
        a, b = b, a
    return binary(e.kind, a[0], b[1]), binary(e.kind, a[1], b[1])


def _scale_weights(form: _Linear, made: dict[str, Node], constants: dict[str, Array]) -> bool:
    """Multiply the weights of the contraction that makes ``form.source``; False if they do not allow it."""
    node = made[form.source]
    view = node if isinstance(node, View) else None
    stage = made.get(view.source) if view is not None else node
    if not isinstance(stage, Stage) or stage.reducer != "sum" or not _only_reader(view, stage, made):
        return False
    body = stage.body
    if not isinstance(body, Op) or body.kind != "mul" or not all(isinstance(a, Load) for a in body.args):
        return False
    weights = [a for a in body.args if isinstance(a, Load) and a.tensor in constants]
    if len(weights) != 1:
        return False
    w = weights[0]
    array: Any = constants[w.tensor]
    scale = form.scale
    if form.axis is not None and np.ndim(scale) > 0:
        channel = _channel_index(form.axis, stage, view)
        if channel is None:
            return False
        ranges = {a: (0, e - 1) for a, e in stage.axes}
        places = [k for k, i in enumerate(w.index) if affine(i, ranges) == affine(channel, ranges)]
        if len(places) != 1 or array.shape[places[0]] != np.size(scale):
            return False
        scale = np.reshape(scale, [-1 if k == places[0] else 1 for k in range(array.ndim)])
    name = f"{w.tensor}_scaled"
    while name in constants or name in made:
        name += "_"
    constants[name] = (array * scale).astype(array.dtype)
    made[stage.output] = with_body(stage, rename_loads(body, {w.tensor: name}))
    return True


def _only_reader(view: View | None, stage: Stage, made: Mapping[str, Node]) -> bool:
    return view is None or sum(stage.output in n.sources for n in made.values()) == 1


def _channel_index(axis: int, stage: Stage, view: View | None) -> Expr | None:
    """What the channel of the (viewed) result is in terms of the axes of ``stage``."""
    names = [a for a, _ in stage.axes]
    if view is None:
        return Var("int64", names[axis])
    old, new = stage.type.shape, view.type.shape
    if old[:axis] != new[:axis] or axis >= len(old):
        return None
    if old[axis] == new[axis]:
        return var(names[axis])
    if axis + 1 < len(old) and old[axis] * old[axis + 1] == new[axis]:
        return var(names[axis]) * old[axis + 1] + var(names[axis + 1])
    return None


def _bias_stage(s: Stage, form: _Linear, constants: dict[str, Array]) -> Stage:
    """``source + shift``."""
    load = Load(s.body.dtype, form.source, tuple(var(a) for a, _ in s.axes))
    if np.ndim(form.shift) == 0:
        return with_body(s, load + float(form.shift))
    assert form.axis is not None
    shape = [1] * (len(s.axes) - form.axis)
    shape[0] = s.axes[form.axis][1]
    name = f"{s.output}_shift"
    constants[name] = np.asarray(form.shift, dtype=numpy_dtype(s.body.dtype)).reshape(shape)
    at = (var(s.axes[form.axis][0]), *([index(0)] * (len(shape) - 1)))
    return with_body(s, load + Load(s.body.dtype, name, at))
