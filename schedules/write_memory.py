"""Write loads: what is remembered, what is moved as a tile, and what is read lane by lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tilewright.graph.affine import Affine
from tilewright.graph.expr import Load
from tilewright.graph.traverse import variables
from tilewright.schedules.emit import Value
from tilewright.schedules.write_addresses import (
    address,
    collect,
    element,
    gathered,
    guarded,
    lane_of,
    masked,
    offset,
    read,
    whole_guard,
)
from tilewright.schedules.write_extremes import with_flag
from tilewright.schedules.write_pairs import every_second, in_pairs
from tilewright.schedules.write_scope import Key, Scope
from tilewright.schedules.write_transposed import pieces, transpose


def load(scope: Scope, e: Load, a: Affine) -> Value:
    """The elements at index ``a``, remembered until they may have changed."""
    remembered = e.tensor not in scope.registers
    key = _key(scope, e, a, {})
    if remembered:
        found = scope.loaded.get(key)
        if found is not None:
            return found
        unrolled = _neighbours(scope, a)
        if unrolled is not None:
            _load_tile(scope, e, a, unrolled)
            return scope.loaded[key]
    with _used_lanes(scope, e.tensor, a):
        value = _load_at(scope, e.tensor, e.dtype, *address(scope, e.tensor, a))
        if e.tensor in scope.flags:
            flags = scope.flags[e.tensor]
            value = with_flag(scope, value, _load_at(scope, flags, e.dtype, *address(scope, flags, a)))
    if remembered:
        scope.loaded[key] = value
    return value


def _key(scope: Scope, e: Load, a: Affine, at: Mapping[str, int]) -> Key:
    """What a load is remembered as, where some variables have other values."""
    lane = (*scope.lane, scope.first, scope.used) if scope.lane is not None else None
    return (
        e.tensor,
        a,
        scope.guard,
        scope.row,
        scope.swapped,
        *(at.get(v, scope.vars.get(v, lane)) for v, _ in a.terms),
    )


@contextmanager
def _used_lanes(scope: Scope, tensor: str, a: Affine) -> Iterator[None]:
    """Where an idle lane would read a parameter (buffers have room behind them), it reads nothing."""
    if (
        scope.lane is None
        or scope.used == scope.lanes
        or tensor not in scope.parameters
        or not a.coefficient(scope.lane[0])
    ):
        yield
        return
    guard, row, lanes = scope.guard, scope.row, scope.lanes
    used = Value(f"<{', '.join(f'i1 {str(k < scope.used).lower()}' for k in range(lanes))}>", "bool", lanes)
    if guard is None:
        scope.guard = used
    elif guard.lanes == 1:
        scope.guard, scope.row = used, guard
    else:
        scope.guard = scope.fn.op(f"and {guard.typed}, {used.name}", "bool", lanes)
    yield
    scope.guard, scope.row = guard, row


def _neighbours(scope: Scope, a: Affine) -> str | None:
    """The loop whose iterations read neighbours of a load that jumps from lane to lane, if there is one."""
    if scope.lane is None or scope.guard is not None or a.coefficient(scope.lane[0]) in (-1, 0, 1, 2):
        return None
    moving = {v for name, _ in a.terms if name in scope.parts for v in variables(scope.parts[name])}
    return next((v for v, c in a.terms if c == 1 and scope.unrolled.get(v, 1) > 1 and v not in moving), None)


def _load_tile(scope: Scope, e: Load, a: Affine, unrolled: str) -> None:
    """Remember a load for all iterations of an unrolled loop: contiguous vectors, transposed."""
    pointer, constant, stride = address(scope, e.tensor, a)
    now = scope.vars[unrolled]
    assert isinstance(now, int)
    for first, length in pieces(scope.unrolled[unrolled], e.dtype):
        start = constant - now + first
        rows = [
            read(scope, e.dtype, offset(scope, pointer, start + k * stride, e.dtype), length)
            for k in range(scope.lanes)
        ]
        columns = transpose(scope.fn, rows) if length > 1 else [gathered(scope, rows)]
        for k, v in enumerate(columns):
            scope.loaded[_key(scope, e, a, {unrolled: first + k})] = v


def gather(scope: Scope, e: Load, index: Value) -> Value:
    """A load whose index is no affine form: in a vector loop lane by lane."""
    pointer, dtype = scope.pointers[e.tensor]
    scope.guard, scope.row = whole_guard(scope), None
    lanes = max(index.lanes, scope.guard.lanes if scope.guard is not None else 1)
    pointers: list[str] = []
    for k in range(lanes):
        p = element(scope, pointer, lane_of(scope, index, k).name, dtype)
        pointers.append(guarded(scope, p, k))
    return read(scope, dtype, pointers[0], 1) if lanes == 1 else collect(scope, dtype, pointers)


def chosen(scope: Scope, condition: Value, places: list[tuple[str, Affine]], dtype: str) -> Value | None:
    """The elements at the first of two places where a condition of all lanes holds, else those at the second; None where the two
    are walked differently from lane to lane."""
    (yes, constant, stride), (no, other, apart) = (address(scope, tensor, a) for tensor, a in places)
    if stride != apart or stride not in (0, 1) or scope.used < scope.lanes:
        return None
    no = offset(scope, no, other - constant, dtype)

    def pick() -> Value:
        return scope.fn.op(f"select {condition.typed}, ptr {yes}, ptr {no}", "int64")

    base = scope.once(("chosen", condition.name, yes, no), pick).name
    return read(scope, dtype, offset(scope, base, constant, dtype), scope.lanes if stride else 1)


def _load_at(scope: Scope, tensor: str, dtype: str, pointer: str, constant: int, stride: int) -> Value:
    guard, lanes = scope.guard, scope.lanes
    if stride == 2 and in_pairs(scope, dtype):
        return every_second(scope, tensor, dtype, pointer, constant)
    if guard is not None and guard.lanes > 1:
        if stride != 1 or dtype == "bool":
            scope.guard, scope.row = whole_guard(scope), None
            guard = scope.guard
            assert guard is not None
        return masked(scope, dtype, pointer, constant, stride, guard)
    if stride == 0 or lanes == 1:
        return read(scope, dtype, guarded(scope, offset(scope, pointer, constant, dtype)), 1)
    if stride == 1:
        return read(scope, dtype, guarded(scope, offset(scope, pointer, constant, dtype)), lanes)
    if stride == -1:
        low = guarded(scope, offset(scope, pointer, constant - lanes + 1, dtype))
        return scope.fn.shuffle(read(scope, dtype, low, lanes), None, list(range(lanes - 1, -1, -1)))
    pointers = [guarded(scope, offset(scope, pointer, constant + k * stride, dtype)) for k in range(lanes)]
    return collect(scope, dtype, pointers)
