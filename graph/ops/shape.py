"""Operators that only move elements: views, permutations, joins, cuts and padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr, all_of, const, index, select
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import (
    Operand,
    affine_or_table,
    axis_number,
    axis_numbers,
    broadcast_shape,
    read,
    replace_at,
)


def reshape(x: Tensor, shape: Sequence[int], zero_copies: bool = False) -> Tensor:
    """The same elements in another shape; one -1 is inferred, and with ``zero_copies`` a 0 keeps that
    dimension."""
    want = [int(d) for d in shape]
    if zero_copies:
        for k, d in enumerate(want):
            if d == 0 and k >= x.rank:
                raise GraphError(f"reshape to {want}: dimension {k} copies one that {x.shape} does not have")
        want = [x.shape[k] if d == 0 else d for k, d in enumerate(want)]
    if want.count(-1) > 1:
        raise GraphError(f"reshape: expected at most one -1; got {want}")
    size, rest = x.type.size, prod(d for d in want if d != -1)
    if -1 in want and rest > 0 and size % rest == 0:
        want[want.index(-1)] = size // rest
    if prod(want) != size or any(d < 1 for d in want):
        raise GraphError(f"reshape: expected a shape of {size} elements for {x.shape}; got {tuple(shape)}")
    return x.graph.view(x, want, "reshape")


def flatten(x: Tensor, axis: int = 1) -> Tensor:
    """A matrix: the dimensions before ``axis``, and the rest."""
    axis = axis + x.rank if axis < 0 else axis
    if not 0 <= axis <= x.rank:
        raise GraphError(f"flatten: expected an axis of 0..{x.rank}; got {axis}")
    return x.graph.view(x, (prod(x.shape[:axis]), prod(x.shape[axis:])), "flatten")


def squeeze(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Drop dimensions of size 1 (all of them if ``axes`` is None)."""
    gone = [k for k, d in enumerate(x.shape) if d == 1] if axes is None else axis_numbers(axes, x.rank, "squeeze")
    for k in gone:
        if x.shape[k] != 1:
            raise GraphError(f"squeeze: expected size 1 at axis {k}; got shape {x.shape}")
    return x.graph.view(x, [d for k, d in enumerate(x.shape) if k not in gone], "squeeze")


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Insert dimensions of size 1 at ``axes`` of the result."""
    new = axis_numbers(axes, x.rank + len(axes), "unsqueeze")
    rest = iter(x.shape)
    return x.graph.view(x, [1 if k in new else next(rest) for k in range(x.rank + len(new))], "unsqueeze")


def transpose(x: Tensor, order: Sequence[int] | None = None) -> Tensor:
    """Dimension ``k`` of the result is dimension ``order[k]`` of ``x`` (reversed if None). A view where
    only dimensions of size 1 move."""
    perm = tuple(reversed(range(x.rank))) if order is None else axis_numbers(order, x.rank, "transpose")
    if len(perm) != x.rank:
        raise GraphError(f"transpose: expected an order of {x.rank} dimensions; got {tuple(perm)}")
    shape = [x.shape[p] for p in perm]
    moving = [p for p in perm if x.shape[p] != 1]
    if moving == sorted(moving):
        return x.graph.view(x, shape, "transpose")
    back = [perm.index(k) for k in range(x.rank)]
    return x.graph.compute(shape, lambda *i: x.at([i[b] for b in back]), name="transpose")


FEW_PARTS = 16
"""Parts of a joined tensor that are told apart one after the other."""


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join along ``axis``: one stage that selects the part each index falls into."""
    if not tensors:
        raise GraphError("concat: expected at least one tensor")
    first = tensors[0]
    axis = axis_number(axis, first.rank, "concat")
    for t in tensors:
        if replace_at(t.shape, axis, 0) != replace_at(first.shape, axis, 0):
            raise GraphError(
                f"concat on axis {axis}: expected shapes equal elsewhere; got {[t.shape for t in tensors]}"
            )
    if len(tensors) == 1:
        return first

    starts = [0, *accumulate(t.shape[axis] for t in tensors)]

    def cell(*i: Expr) -> Expr:
        def among(first: int, last: int) -> Expr:
            """The element of one of the parts from ``first`` up to ``last``, found by halves (few: one after the other)."""
            if last - first == 1:
                return tensors[first].at(replace_at(i, axis, i[axis] - starts[first]))
            middle = first + 1 if last - first <= FEW_PARTS else (first + last) // 2
            return select(i[axis].lt(starts[middle]), among(first, middle), among(middle, last))

        return among(0, len(tensors))

    return first.graph.compute(
        replace_at(first.shape, axis, sum(t.shape[axis] for t in tensors)), cell, name="concat"
    )  # fmt: skip


def split(x: Tensor, sizes: Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut along ``axis`` into parts of the given sizes."""
    axis = axis_number(axis, x.rank, "split")
    if sum(sizes) != x.shape[axis]:
        raise GraphError(f"split: expected sizes that add up to {x.shape[axis]}; got {list(sizes)}")
    out, start = [], 0
    for n in sizes:
        out.append(crop(x, {axis: (start, n, 1)}))
        start += n
    return out


def crop(x: Tensor, cuts: dict[int, tuple[int, int, int]]) -> Tensor:
    """Keep ``count`` elements from ``start`` in steps of ``step`` along each axis of ``cuts`` (start,
    count, step)."""
    cuts = {a: c for a, c in cuts.items() if c != (0, x.shape[a], 1)}
    if not cuts:
        return x
    shape = [cuts[k][1] if k in cuts else d for k, d in enumerate(x.shape)]
    return x.graph.compute(
        shape,
        lambda *i: x.at([e * cuts[k][2] + cuts[k][0] if k in cuts else e for k, e in enumerate(i)]),
        name="slice",
    )


def slice_ranges(
    shape: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> dict[int, range]:
    """The positions that Python slicing along ``axes`` keeps; negative ones count from the end, steps may
    be negative."""
    over = axis_numbers(range(len(starts)) if axes is None else axes, len(shape), "slice")
    by = [1] * len(starts) if steps is None else [int(s) for s in steps]
    if not len(starts) == len(ends) == len(over) == len(by):
        raise GraphError(f"slice: expected as many starts, ends, axes and steps; got {starts}, {ends}, {axes}, {steps}")
    if 0 in by:
        raise GraphError("slice: expected steps other than 0")
    kept = {}
    for a, start, end, step in zip(over, starts, ends, by, strict=True):
        # for a negative step an end before the first element means "down to it", which Python writes as None
        stop = None if step < 0 and int(end) < -shape[a] else int(end)
        kept[a] = range(shape[a])[int(start) : stop : step]
    return kept


def slice_(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    """Python slicing along ``axes`` (see :func:`slice_ranges`)."""
    kept = slice_ranges(x.shape, starts, ends, axes, steps)
    for a, r in kept.items():
        if not r:
            raise GraphError(f"slice: the result is empty along axis {a} of shape {x.shape}")
    return crop(x, {a: (r[0], len(r), r.step) for a, r in kept.items()})


def pad(
    x: Tensor,
    before: Sequence[int],
    after: Sequence[int],
    value: Operand = 0,
    mode: str = "constant",
) -> Tensor:
    """Grow (or crop, where negative) each dimension. ``mode`` is constant, edge, reflect or wrap. The
    constant mode is a select on the bounds that can be left; the others choose the index, in long runs where
    they can."""
    shape = [b + d + a for b, d, a in zip(before, x.shape, after, strict=True)]
    if not any(before) and not any(after):
        return x
    if mode != "constant":
        return _pad_by_places(x, before, shape, mode)

    def cell(*i: Expr) -> Expr:
        inside: list[Expr] = []
        for e, b, d, a in zip(i, before, x.shape, after, strict=True):
            inside += [e.ge(b)] if b > 0 else []
            inside += [e.lt(b + d)] if a > 0 else []
        outside = read(value, (), ()) if isinstance(value, Tensor) else const(value, x.dtype)
        return select(all_of(inside), x.at([e - b for e, b in zip(i, before, strict=True)]), outside)

    return x.graph.compute(shape, cell, name="pad")


def _pad_by_places(x: Tensor, before: Sequence[int], shape: Sequence[int], mode: str) -> Tensor:
    maps = {}
    for k, (b, d, n) in enumerate(zip(before, x.shape, shape, strict=True)):
        if n == d and b == 0:
            continue
        positions = [p - b for p in range(n)]
        if mode == "edge":
            positions = [min(max(p, 0), d - 1) for p in positions]
        elif mode == "wrap":
            positions = [p % d for p in positions]
        elif mode == "reflect":
            period = max(1, 2 * (d - 1))
            positions = [min(p % period, period - p % period) if d > 1 else 0 for p in positions]
        else:
            raise GraphError(f"pad: expected a mode of constant, edge, reflect or wrap; got {mode!r}")
        maps[k] = affine_or_table(x.graph, np.array(positions), "pad_index")
    return x.graph.compute(
        shape, lambda *i: x.at([maps[k](e) if k in maps else e for k, e in enumerate(i)]), name="pad"
    )


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x`` broadcast against ``shape`` (a 1 in ``shape`` keeps the size of ``x``)."""
    full = broadcast_shape(x.shape, [int(d) for d in shape])
    if full == x.shape:
        return x
    return x.graph.compute(full, lambda *i: read(x, i, full), name="expand")


def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """``x`` repeated along each dimension: a broadcast over new axes, then a view."""
    if len(repeats) != x.rank:
        raise GraphError(f"tile: expected {x.rank} repeats; got {list(repeats)}")
    pairs = [(int(r), d) for r, d in zip(repeats, x.shape, strict=True)]
    repeated = [k for k, (r, d) in enumerate(pairs) if r != 1 and d != 1]
    shape: list[int] = []
    place: list[int] = []  # which axis of the stage indexes dimension k
    for k, (r, d) in enumerate(pairs):
        shape += [r, d] if k in repeated else [r * d]
        place.append(len(shape) - 1)
    y = x.graph.compute(
        shape,
        lambda *i: x.at([index(0) if d == 1 else i[place[k]] for k, d in enumerate(x.shape)]),
        name="tile",
    )
    return x.graph.view(y, [r * d for r, d in pairs])


def _image(x: Tensor, block: int, what: str) -> tuple[int, ...]:
    if x.rank != 4 or block < 1:
        raise GraphError(f"{what}: expected (n, c, h, w) and a block of at least 1; got {x.shape} and {block}")
    return x.shape


def depth_to_space(x: Tensor, block: int, column_first: bool = False) -> Tensor:
    """Move channels of (n, c, h, w) into ``block`` x ``block`` patches; ``column_first`` is ONNX's CRD
    order."""
    n, c, h, w = _image(x, block, "depth_to_space")
    if c % (block * block):
        raise GraphError(f"depth_to_space: expected channels divisible by {block * block}; got {c}")
    out = c // (block * block)
    if column_first:
        y = transpose(x.graph.view(x, (n, out, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        y = transpose(x.graph.view(x, (n, block, block, out, h, w)), (0, 3, 4, 1, 5, 2))
    return x.graph.view(y, (n, out, h * block, w * block))


def space_to_depth(x: Tensor, block: int, column_first: bool = False) -> Tensor:
    """Move ``block`` x ``block`` patches of (n, c, h, w) into channels; ``column_first`` is ONNX's CRD
    order."""
    n, c, h, w = _image(x, block, "space_to_depth")
    if h % block or w % block:
        raise GraphError(f"space_to_depth: expected height and width divisible by {block}; got {h} x {w}")
    parts = x.graph.view(x, (n, c, h // block, block, w // block, block))
    y = transpose(parts, (0, 1, 3, 5, 2, 4) if column_first else (0, 3, 5, 1, 2, 4))
    return x.graph.view(y, (n, c * block * block, h // block, w // block))
