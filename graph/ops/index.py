"""Operators that read at positions held in a tensor, or whose values follow from positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Const, Expr, Load, cast, const, index, maximum, minimum, select
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.ops.core import affine_or_table, axis_number, read, replace_at, table


def positions(indices: Tensor, size: int, what: str) -> Tensor:
    """Index tensor as int64 in ``[0, size)``: a constant is checked and made non-negative now, else
    negative ones wrap at run time (see :func:`wrapped`)."""
    value: Any = indices.value
    if value is None:
        return indices
    value = value.astype(np.int64)
    if value.min() < -size or value.max() >= size:
        raise GraphError(f"{what}: expected indices of -{size}..{size - 1}; got {value.min()}..{value.max()}")
    return table(indices.graph, np.where(value < 0, value + size, value), "index")


def wrapped(e: Expr, size: int, constant: bool) -> Expr:
    """An index as int64, counted from the end where negative."""
    e = cast(e, "int64")
    return e if constant or isinstance(e, Const) else select(e.lt(0), e + size, e)


def gather(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """``x`` with dimension ``axis`` replaced by the shape of ``indices``."""
    axis = axis_number(axis, x.rank, "gather")
    size = x.shape[axis]
    ids = positions(indices, size, "gather")
    constant = ids.value is not None
    shape = (*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :])
    if constant and ids.rank == 1:
        assert ids.value is not None
        at = affine_or_table(x.graph, ids.value, "index")
        return x.graph.compute(shape, lambda *i: x.at(replace_at(i, axis, at(i[axis]))), name="gather")

    def cell(*i: Expr) -> Expr:
        inner = i[axis : axis + ids.rank]
        return x.at([*i[:axis], wrapped(read(ids, inner, ids.shape), size, constant), *i[axis + ids.rank :]])

    return x.graph.compute(shape, cell, name="gather")


def gather_elements(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """``out[i] = x[i with axis replaced by indices[i]]``."""
    axis = axis_number(axis, x.rank, "gather_elements")
    if indices.rank != x.rank:
        raise GraphError(f"gather_elements: expected indices of rank {x.rank}; got {indices.shape}")
    ids = positions(indices, x.shape[axis], "gather_elements")
    constant = ids.value is not None
    return x.graph.compute(
        ids.shape,
        lambda *i: x.at(replace_at(i, axis, wrapped(ids.at(i), x.shape[axis], constant))),
        name="gather_elements",
    )


def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0) -> Tensor:
    """Read slices of ``x`` at the index tuples in the last dimension of ``indices``."""
    depth = indices.shape[-1]
    if batch_dims + depth > x.rank or x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise GraphError(
            f"gather_nd: expected index tuples that fit {x.shape}; got {indices.shape}, {batch_dims} batch"
        )
    outer = indices.shape[:-1]

    def cell(*i: Expr) -> Expr:
        lead = i[: len(outer)]
        place = [
            wrapped(Load(indices.dtype, indices.name, (*lead, index(k))), x.shape[batch_dims + k], constant=False)
            for k in range(depth)
        ]
        return x.at([*i[:batch_dims], *place, *i[len(outer) :]])

    return x.graph.compute((*outer, *x.shape[batch_dims + depth :]), cell, name="gather_nd")


_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": maximum,
    "min": minimum,
}


def scatter_constant(x: Tensor, updates: Tensor, target: Any, reduction: str = "none") -> Tensor:
    """``x`` with element ``target[k]`` (a flat position) combined with element ``k`` of ``updates``. The
    positions are known now, so the result selects through tables of where each element comes from: one
    table, or as many as the most updates of one element (without a reduction the last one wins). Where
    whole rows are replaced, the tables are of rows."""
    if reduction not in _COMBINE:
        raise GraphError(f"scatter: expected a reduction of {', '.join(_COMBINE)}; got {reduction!r}")
    places = np.asarray(target, dtype=np.int64).reshape(-1)
    lead = _rows_replaced(x.shape, places)
    inner = math.prod(x.shape[lead:])
    sources = [
        table(x.graph, source.reshape(x.shape[:lead]), "scatter_source")
        for source in _layers(places[::inner] // inner, x.type.size // inner, reduction == "none")
    ]
    rows = x.graph.view(updates, (len(places) // inner, *x.shape[lead:]))

    def cell(*i: Expr) -> Expr:
        value: Expr = x.at(i)
        for s in sources:
            source = s.at(i[:lead])
            new = rows.at([maximum(source, 0), *i[lead:]])
            value = select(source.ge(0), _COMBINE[reduction](value, new), value)
        return value

    return x.graph.compute(x.shape, cell, name="scatter")


def _rows_replaced(shape: Sequence[int], places: Any) -> int:
    """How many leading dimensions of ``shape`` say which rows the flat ``places`` are: all, if they are single elements."""
    for lead in range(1, len(shape)):
        inner = math.prod(shape[lead:])
        if len(places) % inner == 0:
            rows = places.reshape(-1, inner)
            if not (rows[:, 0] % inner).any() and np.array_equal(rows, rows[:, :1] + np.arange(inner)):
                return lead
    return len(shape)


def _layers(places: Any, size: int, last_wins: bool) -> list[Any]:
    """Tables that say for each of ``size`` rows which update it takes (-1: none): one, or as many as one row takes."""
    if last_wins:
        source = np.full(size, -1, np.int64)
        last = {place: k for k, place in enumerate(places.tolist())}
        source[list(last)] = list(last.values())
        return [source]
    layers: list[Any] = []
    depth = np.zeros(size, np.int64)
    for k, place in enumerate(places.tolist()):
        layer = int(depth[place])
        depth[place] += 1
        if layer == len(layers):
            layers.append(np.full(size, -1, np.int64))
        layers[layer][place] = k
    return layers


def one_hot(indices: Tensor, depth: int, off: Tensor, on: Tensor, axis: int = -1) -> Tensor:
    """``on`` where the new dimension ``axis`` equals the index (negative ones count from the end), else
    ``off``."""
    axis = axis_number(axis, indices.rank + 1, "one_hot")
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])

    def cell(*i: Expr) -> Expr:
        at = wrapped(indices.at([*i[:axis], *i[axis + 1 :]]), depth, constant=False)
        return select(at.eq(i[axis]), read(on, (), ()), read(off, (), ()))

    return indices.graph.compute(shape, cell, name="one_hot")


def trilu(x: Tensor, upper: bool = True, k: int = 0) -> Tensor:
    """The upper (or lower) triangle of the last two dimensions, the rest 0."""
    if x.rank < 2:
        raise GraphError(f"trilu: expected a tensor of rank 2 or more; got {x.shape}")

    def cell(*i: Expr) -> Expr:
        row, column = i[-2], i[-1]
        keep = (row + k).le(column) if upper else column.le(row + k)
        return select(keep, x.at(i), const(0, x.dtype))

    return x.graph.compute(x.shape, cell, name="trilu")


def eye(graph: Graph, rows: int, columns: int, k: int = 0, dtype: str = "float32") -> Tensor:
    """1 on diagonal ``k``, else 0."""
    return graph.compute((rows, columns), lambda r, c: cast((r + k).eq(c), dtype), name="eye")
