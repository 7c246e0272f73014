"""Write indices that are looked at: one comparison, and a branch that is not taken.

An index outside becomes 0, so that nothing outside a tensor is read, and is noted for the caller: the first of a call in the first
words of the scratch, as the number of the kernel (from 1), the index and what it should have been below.
"""

from __future__ import annotations

from tilewright.graph.expr import Const, Op
from tilewright.schedules.emit import Value, splat_literal
from tilewright.schedules.write_addresses import whole_guard
from tilewright.schedules.write_scope import Scope

NOTE_BYTES = 64
"""What the scratch of a call begins with."""


def bounded(scope: Scope, e: Op, v: Value) -> Value:
    """``v``, the value of the first argument of ``e``, where it is from 0 up to the second."""
    fn, lanes = scope.fn, v.lanes
    assert isinstance(e.args[1], Const)
    limit = int(e.args[1].value)
    inside = fn.op(f"icmp ult {v.typed}, {splat_literal(limit, 'int64', lanes)}", "bool", lanes)
    bad = fn.op(f"xor {inside.typed}, {splat_literal(True, 'bool', lanes)}", "bool", lanes)
    guard = whole_guard(scope)
    if guard is not None:  # what is not read may lie anywhere
        width = max(lanes, guard.lanes)
        bad = fn.op(f"and {fn.splat(bad, width).typed}, {fn.splat(guard, width).name}", "bool", width)
    wide = fn.splat(v, bad.lanes)
    mask = "i1" if bad.lanes == 1 else f"i{bad.lanes}"
    bits = bad.name if bad.lanes == 1 else fn.op(f"bitcast {bad.typed} to {mask}", "int64").name
    any_bad = fn.op(f"icmp ne {mask} {bits}, 0", "bool")
    outside, on = fn.new_label("outside"), fn.new_label("inside")
    fn.branch_if(any_bad, outside, on)
    fn.label(outside)
    first = wide.name
    if bad.lanes > 1:
        fn.declare(f"declare {mask} @llvm.cttz.{mask}({mask}, i1 immarg)")
        lane = fn.op(f"call {mask} @llvm.cttz.{mask}({mask} {bits}, i1 true)", "int64").name
        first = fn.op(f"extractelement {wide.typed}, {mask} {lane}", "int64").name
    _note(scope, first, limit, on)
    fn.label(on)
    return fn.op(f"select {inside.typed}, {v.typed}, {v.type} {splat_literal(0, 'int64', lanes)}", "int64", lanes)


def _note(scope: Scope, index: str, limit: int, after: str) -> None:
    fn = scope.fn
    place, number = scope.notes
    got = fn.op(f"cmpxchg ptr {place}, i64 0, i64 {number + 1} monotonic monotonic, align 8", "int64").name
    won = fn.op(f"extractvalue {{ i64, i1 }} {got}, 1", "bool")
    keep = fn.new_label("noted")
    fn.branch_if(won, keep, after)
    fn.label(keep)
    for k, what in ((1, index), (2, str(limit))):
        at = fn.op(f"getelementptr inbounds i64, ptr {place}, i64 {k}", "int64").name
        fn.do(f"store i64 {what}, ptr {at}, align 8")
    fn.branch(after)
