"""What the operators share: operands, broadcasting, axis numbers and stages whose reduction axes may
vanish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Const, Expr, Load, const, index, select
from tilewright.graph.graph import Array, Graph, Tensor

#: What an element-wise operator accepts: a tensor, or a number that takes the tensor's data type.
Operand = Tensor | bool | int | float


def scalar_value(t: Tensor) -> Const | None:
    """The literal of a constant tensor of one element, else None. Such operands never become loads."""
    value = t.value
    if value is None or value.size != 1:
        return None
    return const(value.reshape(()).item(), t.dtype)


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape by NumPy's rules."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for s in shapes:
        for k, d in enumerate(s, rank - len(s)):
            if d != 1 and out[k] not in (1, d):
                raise GraphError(f"broadcast: expected shapes that agree or are 1; got {[tuple(s) for s in shapes]}")
            out[k] = d if d != 1 else out[k]
    return tuple(out)


def read(t: Tensor, indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """``t`` at the point ``indices`` of a tensor of ``shape`` that ``t`` broadcasts to."""
    literal = scalar_value(t)
    if literal is not None:
        return literal
    if t.shape == tuple(shape):
        return t.at(indices)
    skip = len(shape) - t.rank
    return t.at([index(0) if d == 1 else indices[k] for k, d in enumerate(t.shape, skip)])


def balanced(combine: Callable[[Expr, Expr], Expr], parts: Sequence[Expr]) -> Expr:
    """All of ``parts`` combined, neighbours first: as deep as the logarithm of their number."""
    level = list(parts)
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def elementwise(name: str, body: Callable[..., Expr], *operands: Operand) -> Tensor:
    """One stage that applies ``body`` to the broadcast operands; numbers take the first tensor's data
    type."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    if not tensors:
        raise GraphError(f"{name}: expected at least one tensor; got {operands}")
    shape = broadcast_shape(*(t.shape for t in tensors))

    def cell(*i: Expr) -> Expr:
        return body(*(read(o, i, shape) if isinstance(o, Tensor) else const(o, tensors[0].dtype) for o in operands))

    return tensors[0].graph.compute(shape, cell, name=name)


def reduction(
    graph: Graph,
    shape: Sequence[int],
    extents: Sequence[int],
    reducer: str,
    body: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr],
    name: str,
) -> Tensor:
    """A stage over ``shape`` that reduces over ``extents``. Reduction axes of extent 1 are dropped (their
    index is 0), and with none left the stage has no reducer. ``body`` gets the spatial and the reduction
    indices."""
    kept = [e for e in extents if e != 1]

    def cell(*i: Expr) -> Expr:
        rest = iter(i[len(shape) :])
        return body(i[: len(shape)], tuple(index(0) if e == 1 else next(rest) for e in extents))

    return graph.compute(shape, cell, kept, reducer if kept else None, name)


def axis_number(axis: int, rank: int, what: str) -> int:
    """``axis`` counted from the front; negative axes count from the back."""
    if not rank:
        raise GraphError(f"{what}: expected a tensor with dimensions; got a scalar and axis {axis}")
    if not -rank <= axis < rank:
        raise GraphError(f"{what}: expected an axis of -{rank}..{rank - 1}; got {axis}")
    return axis % rank


def axis_numbers(axes: Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Several distinct axes, counted from the front."""
    out = tuple(axis_number(int(a), rank, what) for a in axes)
    if len(set(out)) != len(out):
        raise GraphError(f"{what}: expected distinct axes; got {tuple(axes)}")
    return out


def replace_at(items: Sequence[Any], position: int, value: Any) -> list[Any]:
    """A copy of ``items`` with one entry replaced."""
    return [value if k == position else x for k, x in enumerate(items)]


def table(graph: Graph, values: object, name: str = "table") -> Tensor:
    """A small int64 constant that is indexed at run time."""
    return graph.constant(np.asarray(values, dtype=np.int64), name)


def affine_or_table(graph: Graph, values: Array, name: str = "table") -> Callable[[Expr], Expr]:
    """The map ``i -> values[i]`` as an index expression: affine or a quotient where the numbers are, a choice of a few affine ones
    where they are in long runs (the reflected border of an image), else a table."""
    v: Any = values.astype(np.int64)
    i = np.arange(len(v))
    start, step = int(v[0]), int(v[1] - v[0]) if len(v) > 1 else 0
    if np.array_equal(v, start + step * i):
        return lambda e: e * step + start
    run = int(np.argmax(v != v[0]))
    if run > 1 and np.array_equal(v, start + i // run):
        return lambda e: e // run + start
    runs = _runs(v)
    if len(runs) <= MOST_RUNS and len(v) >= LONG * len(runs):
        return lambda e: _chosen(e, runs)
    t = table(graph, v, name)
    return lambda e: Load("int64", t.name, (e,))


MOST_RUNS, LONG = 3, 4
"""Runs of which a table becomes a choice, and how long they must be in the mean."""


def _runs(v: Any) -> list[tuple[int, int, int]]:
    """The arithmetic progressions that ``v`` consists of, each as where it begins, its step, and the value it would have at 0."""
    out: list[tuple[int, int, int]] = []
    first = 0
    while first < len(v) and len(out) <= MOST_RUNS:
        step = int(v[first + 1] - v[first]) if first + 1 < len(v) else 0
        off: Any = np.flatnonzero(v[first:] != v[first] + step * np.arange(len(v) - first))
        out.append((first, step, int(v[first]) - step * first))
        first += int(off[0]) if len(off) else len(v)
    return out


def _chosen(e: Expr, runs: Sequence[tuple[int, int, int]]) -> Expr:
    (_, step, start), *rest = runs
    here = e * step + start
    return select(e.lt(rest[0][0]), here, _chosen(e, rest)) if rest else here
