"""Write steps of scans.

Where the running result differs from lane to lane, a step is two ordinary instructions. Along a vector, lanes are scanned by adding
the vector moved by one lane, by two, by four: as many steps as the number of lanes has bits (Hillis and Steele, "Data parallel
algorithms", CACM 29, 1986). The running result only meets the last lane, so that the next vector waits for one operation.
"""

from __future__ import annotations

from tilewright.graph.dtypes import FLOATS
from tilewright.graph.stage import identity
from tilewright.schedules import write_addresses as addresses
from tilewright.schedules.across import REDUCER_OPS
from tilewright.schedules.emit import Value, splat_literal
from tilewright.schedules.nest import Prefix
from tilewright.schedules.scalar import operate
from tilewright.schedules.write_scope import Scope
from tilewright.schedules.write_stores import write
from tilewright.schedules.write_values import value


def prefix(scope: Scope, n: Prefix) -> None:
    """Write one step."""
    fn, lanes = scope.fn, scope.lanes
    where = scope.affine(n.place)
    assert where is not None
    pointer, constant, apart = addresses.address(scope, n.carry, where)
    dtype = scope.pointers[n.carry][1]
    new = fn.splat(value(scope, n.value), lanes)
    if lanes > 1 and apart not in (0, 1):
        raise AssertionError(f"running results {apart} apart in the lanes of a vector")
    along = lanes > 1 and apart == 0
    place = addresses.offset(scope, pointer, constant, dtype)
    old = addresses.read(scope, dtype, place, 1 if along else lanes)
    if not along:
        after = _both(scope, n, old, new)
        write(scope, place, after, dtype)
        out = old if n.exclusive else after
    else:
        scanned = _scanned(scope, n, new)
        last = fn.op(f"extractelement {scanned.typed}, i64 {lanes - 1}", dtype)
        write(scope, place, _both(scope, n, old, last), dtype)
        if n.exclusive:
            scanned = _moved(scope, n, scanned, 1)
        out = _both(scope, n, fn.splat(old, lanes), scanned)
    scope.stored(n.carry)
    _write_out(scope, n, out)


def _both(scope: Scope, n: Prefix, a: Value, b: Value) -> Value:
    return operate(scope.fn, REDUCER_OPS[n.reducer], [a, b], b.dtype, scope.helpers)


def _scanned(scope: Scope, n: Prefix, v: Value) -> Value:
    step = 1
    while step < v.lanes:
        v = _both(scope, n, _moved(scope, n, v, step), v)
        step *= 2
    return v


def _moved(scope: Scope, n: Prefix, v: Value, by: int) -> Value:
    """The lanes of ``v`` moved up, with values that change nothing in the lowest."""
    nothing = identity(n.reducer, v.dtype).value
    if n.reducer == "sum" and v.dtype in FLOATS:
        nothing = -0.0  # which unlike 0.0 leaves -0.0 as it is
    fill = Value(splat_literal(nothing, v.dtype, v.lanes), v.dtype, v.lanes)
    return scope.fn.shuffle(fill, v, [k if k < by else v.lanes + k - by for k in range(v.lanes)])


def _write_out(scope: Scope, n: Prefix, v: Value) -> None:
    """Store the results: neighbours in either order as one vector, others one by one."""
    where = scope.affine(n.index)
    assert where is not None
    pointer, constant, stride = addresses.address(scope, n.tensor, where)
    dtype = scope.pointers[n.tensor][1]
    lanes = v.lanes
    if lanes == 1 or stride == 1:
        write(scope, addresses.offset(scope, pointer, constant, dtype), v, dtype)
    elif stride == -1:
        turned = scope.fn.shuffle(v, None, list(range(lanes - 1, -1, -1)))
        write(scope, addresses.offset(scope, pointer, constant - lanes + 1, dtype), turned, dtype)
    else:
        for k in range(lanes):
            one = scope.fn.op(f"extractelement {v.typed}, i64 {k}", dtype)
            write(scope, addresses.offset(scope, pointer, constant + k * stride, dtype), one, dtype)
    scope.stored(n.tensor)
