"""Write fetches: straight-line code asks for each cache line once."""

from __future__ import annotations

from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr
from tilewright.schedules.nest import LINE_BYTES, Fetch
from tilewright.schedules.write_addresses import address, element, offset
from tilewright.schedules.write_scope import Key, Scope
from tilewright.schedules.write_values import value

NEAREST = 3
"""Fetch into all caches."""


def fetch(scope: Scope, n: Fetch) -> None:
    """Write one fetch."""
    a = scope.affine(n.index)
    assert a is not None
    size = SIZES[n.dtype]
    pointer, constant, stride = address(scope, n.tensor, a)
    if n.beyond is not None:
        pointer = _beyond(scope, n, pointer, n.beyond)
    lanes = scope.lanes if stride else 1
    for lane in range(lanes):
        line = (constant + lane * stride) * size // LINE_BYTES
        key: Key = (n.tensor, pointer, line)
        if key not in scope.fetched:
            scope.fetched.add(key)
            _ask(scope, offset(scope, pointer, constant + lane * stride, n.dtype))


def _beyond(scope: Scope, n: Fetch, pointer: str, beyond: Expr) -> str:
    """``pointer`` moved by ``beyond``: neighbouring fetches share it."""
    key: Key = (n.tensor, pointer, beyond)
    found = scope.addresses[-1].get(key)
    if found is None:
        found = scope.addresses[-1][key] = element(scope, pointer, value(scope, beyond).name, n.dtype)
    return found


def _ask(scope: Scope, place: str) -> None:
    scope.fn.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    scope.fn.do(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 {NEAREST}, i32 1)")
