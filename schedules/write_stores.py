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
from tilewright.graph.expr import Op
from tilewright.schedules import write_memory as memory
from tilewright.schedules.across import REDUCER_OPS, across
from tilewright.schedules.emit import FAST, Value, vector_type
from tilewright.schedules.nest import Store
from tilewright.schedules.scalar import operate
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
    pointer, constant, stride = memory.address(scope, n.tensor, a)
    dtype = scope.pointers[n.tensor][1]
    place = memory.offset(scope, pointer, constant, dtype)
    if scope.lane is not None and stride == 0:
        _write(scope, place, _across(scope, n), dtype)
    elif scope.lane is None or stride == 1:
        v = _updated(scope, n, lambda: memory.read(scope, dtype, place, lanes))
        length = _aligned(scope, a, v.lanes) if n.stream else v.lanes
        if n.stream and v.lanes > length and length * SIZES[dtype] >= STREAM_BYTES:
            for first in range(0, v.lanes, length):  # rows that begin within a vector's length of each other
                piece = scope.fn.shuffle(v, None, list(range(first, first + length)))
                _write(scope, memory.offset(scope, pointer, constant + first, dtype), piece, dtype, True)
        else:
            _write(scope, place, v, dtype, n.stream and v.lanes == length > 1)
    elif (waiting := next(((h, s) for h in scope.held if (s := h.steps(n)) is not None), None)) is not None:
        held, steps = waiting
        k = sum(step * int(scope.vars[v]) for v, step in steps.items())
        grain = math.gcd(*(c for _, c in scope.split(a)[0]))
        origin = Place(n.tensor, pointer, constant - k, stride, lanes, grain, n.stream)
        held.values.setdefault(origin, {})[k] = scope.fn.splat(value(scope, n.value), lanes)
    else:
        places = [memory.offset(scope, pointer, constant + k * stride, dtype) for k in range(lanes)]
        v = _updated(scope, n, lambda: memory.collect(scope, dtype, places))
        for k, p in enumerate(places):
            _write(scope, p, scope.fn.op(f"extractelement {v.typed}, i64 {k}", v.dtype), dtype)
    scope.stored(n.tensor)


def release(scope: Scope, waiting: Held) -> None:
    """Write the stores that waited: each lane's neighbours as one vector, or a few."""
    for place, first, rows in waiting.tiles():
        dtype = scope.pointers[place.tensor][1]
        stream = place.stream and place.aligned(first, len(rows))
        for lane, v in enumerate(transpose(scope.fn, rows)):
            at = memory.offset(scope, place.pointer, place.constant + first + lane * place.stride, dtype)
            _write(scope, at, v, dtype, stream)
        scope.stored(place.tensor)


def _across(scope: Scope, n: Store) -> Value:
    """The new value where the place does not depend on the lane: reduce the lanes, then update."""
    assert n.reducer is not None
    a = scope.affine(n.index)
    assert a is not None
    v = scope.fn.splat(value(scope, n.value), scope.lanes)
    pointer, constant, _ = memory.address(scope, n.tensor, a)
    dtype = scope.pointers[n.tensor][1]
    old = memory.read(scope, dtype, memory.offset(scope, pointer, constant, dtype), 1)
    reduced = across(scope.fn, n.reducer, v)
    return operate(scope.fn, REDUCER_OPS[n.reducer], [old, reduced], dtype, scope.helpers)


def _updated(scope: Scope, n: Store, old: Callable[[], Value]) -> Value:
    """The new value of a store, in every lane."""
    fn, lanes, v = scope.fn, scope.lanes, n.value
    if n.reducer is None:
        return fn.splat(value(scope, v), lanes)
    if n.reducer == "sum" and isinstance(v, Op) and v.kind == "mul" and v.dtype in FLOATS:
        factors = [fn.splat(value(scope, f), lanes) for f in v.args]
        return fn.intrinsic("fmuladd", [*factors, old()], v.dtype, lanes, FAST)
    new = fn.splat(value(scope, v), lanes)
    return operate(fn, REDUCER_OPS[n.reducer], [old(), new], v.dtype, scope.helpers)


def _aligned(scope: Scope, a: Affine, most: int) -> int:
    """The largest power of two, at most ``most``, of which the elements at index ``a`` begin at a multiple wherever loops stand."""
    steps = [c for name, c in a.terms if scope.lane is None or name != scope.lane[0]]
    grain = math.gcd(a.const + scope.first, *steps)
    return min(most, grain & -grain) if grain else most


def _write(scope: Scope, place: str, v: Value, dtype: str, stream: bool = False) -> None:
    if dtype == "bool":
        v = scope.fn.op(f"zext {v.typed} to {vector_type('i8', v.lanes)}", "int8", v.lanes)
    align, hint = SIZES[dtype], ""
    nbytes = v.lanes * SIZES[dtype]
    if stream and nbytes >= STREAM_BYTES:
        align = min(ALIGN, nbytes & -nbytes)  # a multiple of 144 bytes is a multiple of 16 only
        hint = ", !nontemporal !0"
    scope.fn.do(f"store {v.typed}, ptr {place}, align {align}{hint}")
