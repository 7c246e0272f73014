"""Write stores.

A product that is summed becomes one fused multiply-add; a store whose place is the same in all lanes reduces the lanes
first; neighbours along an unrolled loop are transposed in registers
(:mod:`~tilewright.schedules.write_transposed`); a streaming store goes past the caches, but only where its address is
known to be aligned, because processors have such stores for aligned addresses only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.graph.affine import Affine
from tilewright.graph.dtypes import FLOATS, SIZES
from tilewright.graph.expr import Const, Expr, Load, Op
from tilewright.graph.traverse import loads, variables
from tilewright.schedules import write_addresses as addresses
from tilewright.schedules.across import REDUCER_OPS, across
from tilewright.schedules.emit import FAST, Value, vector_type
from tilewright.schedules.nest import Store
from tilewright.schedules.scalar import operate
from tilewright.schedules.write_extremes import extreme, flagged, no_flag
from tilewright.schedules.write_pairs import WIDE_BYTES, swapped
from tilewright.schedules.write_scope import Scope
from tilewright.schedules.write_transposed import Held, Place, transpose
from tilewright.schedules.write_values import value

ALIGN = 64
STREAM_BYTES = 16
"""Least length of a streaming store: the short vectors of a rest would each move a whole line to memory and back."""


def store(scope: Scope, n: Store) -> None:
    """Write one store."""
    a = scope.affine(n.index)
    assert a is not None
    lanes = scope.lanes
    pointer, constant, stride = addresses.address(scope, n.tensor, a)
    dtype = scope.pointers[n.tensor][1]
    place = addresses.offset(scope, pointer, constant, dtype)
    if scope.lane is not None and stride == 0:
        write(scope, place, _across(scope, n), dtype)
    elif scope.lane is None or stride == 1:
        flag: str | None = None
        if n.tensor in scope.flags:
            flag = addresses.offset(scope, addresses.address(scope, scope.flags[n.tensor], a)[0], constant, dtype)
        if flag is not None and n.reducer is None:
            write(scope, flag, no_flag(dtype, lanes), dtype)
        v = _updated(scope, n, lambda: addresses.read(scope, dtype, place, lanes), flag if lanes > 1 else None)
        length = _aligned(scope, a, v.lanes) if n.stream else v.lanes
        if n.stream and v.lanes > length and length * SIZES[dtype] >= STREAM_BYTES:
            for first in range(0, v.lanes, length):  # rows that begin within a vector's length of each other
                piece = scope.fn.shuffle(v, None, list(range(first, first + length)))
                write(scope, addresses.offset(scope, pointer, constant + first, dtype), piece, dtype, True)
        elif scope.lane is not None and scope.used < lanes and n.tensor not in scope.registers:
            _write_used(scope, pointer, constant, v, dtype)
        else:
            write(scope, place, v, dtype, n.stream and v.lanes == length > 1)
    elif (waiting := next(((h, s) for h in scope.held if (s := h.steps(n)) is not None), None)) is not None:
        held, steps = waiting
        k = sum(step * int(scope.vars[v]) for v, step in steps.items())
        grain = math.gcd(*(c for _, c in scope.split(a)[0]))
        origin = Place(n.tensor, pointer, constant - k, stride, lanes, grain, n.stream)
        held.values.setdefault(origin, {})[k] = scope.fn.splat(value(scope, n.value), lanes)
    else:
        places = [addresses.offset(scope, pointer, constant + k * stride, dtype) for k in range(lanes)]
        if n.tensor in scope.flags and n.reducer is None:
            start = addresses.address(scope, scope.flags[n.tensor], a)[0]
            for k in range(lanes):
                write(scope, addresses.offset(scope, start, constant + k * stride, dtype), no_flag(dtype, 1), dtype)
        v = _updated(scope, n, lambda: addresses.collect(scope, dtype, places))
        for k, p in enumerate(places):
            write(scope, p, scope.fn.op(f"extractelement {v.typed}, i64 {k}", v.dtype), dtype)
    scope.stored(n.tensor)


def release(scope: Scope, waiting: Held) -> None:
    """Write the stores that waited: each lane's neighbours as one vector, or a few."""
    for place, first, rows in waiting.tiles():
        dtype = scope.pointers[place.tensor][1]
        stream = place.stream and place.aligned(first, len(rows))
        for lane, v in enumerate(transpose(scope.fn, rows)):
            at = addresses.offset(scope, place.pointer, place.constant + first + lane * place.stride, dtype)
            write(scope, at, v, dtype, stream)
        scope.stored(place.tensor)


def _across(scope: Scope, n: Store) -> Value:
    """The new value where the place does not depend on the lane: reduce the lanes, then update."""
    assert n.reducer is not None
    a = scope.affine(n.index)
    assert a is not None
    v = scope.fn.splat(value(scope, n.value), scope.lanes)
    pointer, constant, _ = addresses.address(scope, n.tensor, a)
    dtype = scope.pointers[n.tensor][1]
    old = addresses.read(scope, dtype, addresses.offset(scope, pointer, constant, dtype), 1)
    reduced = across(scope.fn, n.reducer, v)
    return operate(scope.fn, REDUCER_OPS[n.reducer], [old, reduced], dtype, scope.helpers)


def _updated(scope: Scope, n: Store, old: Callable[[], Value], flag: str | None = None) -> Value:
    """The new value of a store, in every lane. ``flag`` is the place of the flags of a running maximum, updated too."""
    fn, lanes = scope.fn, scope.lanes
    if n.reducer is None:
        return fn.splat(value(scope, n.value), lanes)
    if not _every_second(scope, n):
        return _reduced(scope, n, old(), flag)
    # the order of the lanes is put right before and after, which LLVM makes one change before and after a chain of updates
    scope.swapped = True
    new = _reduced(scope, n, _swapped(scope, old()), flag)
    scope.swapped = False
    return _swapped(scope, new)


def _reduced(scope: Scope, n: Store, old: Value, flag: str | None) -> Value:
    """What a reduction makes of the old value."""
    fn, lanes, v = scope.fn, scope.lanes, n.value
    assert n.reducer is not None
    if n.reducer == "sum" and isinstance(v, Op) and v.kind == "mul" and v.dtype in FLOATS:
        factors = [fn.splat(value(scope, f), lanes) for f in v.args]
        return fn.intrinsic("fmuladd", [*factors, old], v.dtype, lanes, FAST)
    new = fn.splat(value(scope, v), lanes)
    if flag is None:
        return operate(fn, REDUCER_OPS[n.reducer], [old, new], v.dtype, scope.helpers)
    order = (lambda x: _swapped(scope, x)) if scope.swapped else (lambda x: x)
    write(scope, flag, order(flagged(scope, new, order(addresses.read(scope, v.dtype, flag, lanes)))), v.dtype)
    return extreme(scope, n.reducer, new, old)


def _every_second(scope: Scope, n: Store) -> bool:
    """Whether all that differs from lane to lane in a reduction are elements two apart, read in whole vectors."""
    if scope.lane is None or n.tensor not in scope.registers:
        return False
    lane, found = scope.lane[0], set(loads(n.value))
    if any(SIZES[e.dtype] * scope.lanes % WIDE_BYTES or scope.affine(e.index[0]) is None for e in found):
        return False
    apart = {e for e in found if lane in variables(e)}
    return bool(apart) and all(_apart(scope, e) == 2 for e in apart) and _through_loads(n.value, lane)


def _apart(scope: Scope, e: Load) -> int:
    a = scope.affine(e.index[0])
    assert a is not None
    assert scope.lane is not None
    return a.coefficient(scope.lane[0])


def _through_loads(e: Expr, lane: str) -> bool:
    """Whether ``e`` depends on the lane only by what it loads, or by where a load of elements two apart is zero instead."""
    if isinstance(e, Load) or lane not in variables(e):
        return True
    if isinstance(e, Op) and e.kind == "select" and lane in variables(e.args[0]):
        condition, then, otherwise = e.args
        guarded = isinstance(then, Load) and lane in variables(then) and not list(loads(condition))
        return guarded and isinstance(otherwise, Const) and otherwise.value == 0
    return isinstance(e, Op) and all(_through_loads(x, lane) for x in e.args)


def _swapped(scope: Scope, v: Value) -> Value:
    """A value with the middle quarters of its vectors swapped."""
    width = WIDE_BYTES // SIZES[v.dtype]
    order = [first + k for first in range(0, v.lanes, width) for k in swapped(width)]
    return scope.fn.shuffle(v, None, order)


def _aligned(scope: Scope, a: Affine, most: int) -> int:
    """The largest power of two, at most ``most``, of which the elements at index ``a`` begin at a multiple wherever loops stand."""
    steps = [c for name, c in a.terms if scope.lane is None or name != scope.lane[0]]
    grain = math.gcd(a.const + scope.first, *steps)
    return min(most, grain & -grain) if grain else most


def _write_used(scope: Scope, pointer: str, constant: int, v: Value, dtype: str) -> None:
    """The lanes that are elements, as two vectors, which overlap where that takes one less."""
    half = 1 << scope.used.bit_length() - 1
    rest = scope.used - half
    for first, length in ((0, half), (half, rest) if rest.bit_count() == 1 else (rest, half)):
        part = scope.fn.shuffle(v, None, list(range(first, first + length)))
        write(scope, addresses.offset(scope, pointer, constant + first, dtype), part, dtype)


def write(scope: Scope, place: str, v: Value, dtype: str, stream: bool = False) -> None:
    """Write a value to an address."""
    if dtype == "bool":
        v = scope.fn.op(f"zext {v.typed} to {vector_type('i8', v.lanes)}", "int8", v.lanes)
    align, hint = SIZES[dtype], ""
    nbytes = v.lanes * SIZES[dtype]
    if stream and nbytes >= STREAM_BYTES:
        align = min(ALIGN, nbytes & -nbytes)  # a multiple of 144 bytes is a multiple of 16 only
        hint = ", !nontemporal !0"
    scope.fn.do(f"store {v.typed}, ptr {place}, align {align}{hint}")
