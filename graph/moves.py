"""Stages that only move elements in order: which of them are views, slices, and tensors joined along an axis."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.affine import Affine, affine, make
from tilewright.graph.expr import Const, Expr, Load, Op, Var
from tilewright.graph.stage import Stage, TensorType, View


def as_view(s: Stage, types: Mapping[str, TensorType]) -> View | None:
    """The view that equals ``s``, where it only copies all elements in order."""
    if s.reduce or not isinstance(s.body, Load):
        return None
    source = types[s.body.tensor]
    if source.size != s.type.size or source.dtype != s.body.dtype or _first(s, s.body, source) != 0:
        return None
    return View(s.output, s.body.tensor, s.type, s.origin)


def slice_offset(s: Stage, types: Mapping[str, TensorType]) -> int | None:
    """The first element, where ``s`` copies a contiguous range of its source in order; None where it does anything else."""
    if s.reduce or not isinstance(s.body, Load) or not s.type.size:
        return None
    return _first(s, s.body, types[s.body.tensor])


def _first(s: Stage, load: Load, source: TensorType) -> int | None:
    """The flat index of the first element that ``load`` reads, where it walks its source as ``s`` walks its output."""
    ranges = {a: (0, e - 1) for a, e in s.axes}
    flat = Affine((), 0)
    for i, stride in zip(load.index, source.strides, strict=True):
        form = affine(i, ranges)
        if form is None:
            return None
        flat = flat + form.scale(stride)
    moving = {a for a, e in s.axes if e > 1}
    want = make({a: stride for (a, _), stride in zip(s.axes, s.type.strides, strict=True) if a in moving}, flat.const)
    return flat.const if make({v: c for v, c in flat.terms if v in moving}, flat.const) == want else None


def joined_parts(s: Stage, types: Mapping[str, TensorType]) -> list[tuple[str, int]] | None:
    """``(tensor, first element)`` of each part, where ``s`` joins whole tensors into contiguous ranges in order; None where
    it does anything else."""
    if s.reduce:
        return None
    cut = _below(s.body.args[0]) if isinstance(s.body, Op) and s.body.kind == "select" else None
    if cut is None:
        return None
    axis = cut[0]
    out: list[tuple[str, int]] = []
    waiting: list[tuple[Expr, int, int]] = [(s.body, 0, s.extents[axis])]
    while waiting:
        body, start, stop = waiting.pop()
        if isinstance(body, Op) and body.kind == "select":
            condition, below, above = body.args
            cut = _below(condition)
            if cut is None or cut[0] != axis or not start < cut[1] < stop:
                return None
            waiting += [(above, cut[1], stop), (below, start, cut[1])]
            continue
        if not _whole(body, s, axis, start, stop, types):
            return None
        assert isinstance(body, Load)
        out.append((body.tensor, start))
    names = [a for a, _ in s.axes]
    if any(e != 1 for _, e in s.axes[: names.index(axis)]):
        return None
    stride = s.type.strides[names.index(axis)]
    return [(t, first * stride) for t, first in out]


def _below(condition: Expr) -> tuple[str, int] | None:
    """``(axis, n)`` for the condition ``axis < n``."""
    if isinstance(condition, Op) and condition.kind == "lt":
        a, b = condition.args
        if isinstance(a, Var) and isinstance(b, Const):
            return a.name, int(b.value)
    return None


def _whole(e: Expr, s: Stage, axis: str, start: int, stop: int, types: Mapping[str, TensorType]) -> bool:
    """Whether ``e`` loads the whole of a tensor that takes ``start..stop`` of ``axis`` and all of every other axis."""
    if not isinstance(e, Load) or len(e.index) != len(s.axes) or start >= stop:
        return False
    for i, extent, (a, n) in zip(e.index, types[e.tensor].shape, s.axes, strict=True):
        form = affine(i)
        first = start if a == axis else 0
        plain = form == Affine(((a, 1),), -first) or (form == Affine((), 0) and extent == 1)
        if not plain or extent != (stop - start if a == axis else n):
            return False
    return True
