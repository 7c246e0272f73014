"""Open one loop: how a tile size and the width of an axis become loops and static rests.

Opening a loop of tile size ``s`` over a width ``w`` makes ``w // s`` full tiles and, where ``s`` does not divide
``w``, a second body of the static width ``w % s``: a static width is what lets registers have constant addresses.
A block loop that still has loops of the same axis inside does not double its body, which would double the code
with each level of blocking; the inner extents become ``min(...)`` instead, and only the innermost tiles come in
two sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.affine import Affine, affine, interval, make
from tilewright.graph.expr import Expr, binary, const
from tilewright.schedules.loops import Item, StageLoops
from tilewright.schedules.nest import If, Loop, Node, Seq, seq
from tilewright.schedules.state import ZERO, Body, Dyn, State, Width
from tilewright.schedules.steps import check

MAX_LANES = 256


def open_loop(item: Item, loops: StageLoops, state: State, body: Body) -> Node:
    """``body`` for all of loop ``item``, which belongs to ``loops``."""
    width = state.width[item.axis]
    partition = not loops.dynamic_inside(item.axis, item.level)
    if item.static and (isinstance(width, Dyn) or width % item.size):
        check(
            partition,
            f"{item.kind} {loops.stage} {item.name}: expected a tile size that divides {item.axis}, "
            "because a loop of the axis stays a loop inside it",
        )
        if isinstance(width, Dyn):
            return resolve(item.axis, state, lambda s: open_loop(item, loops, s, body))
    if isinstance(width, int):
        return _open_static(item, width, partition, state, body)
    return _open_dynamic(item, width, partition, loops.stage, state, body)


def open_all(items: Sequence[Item], loops: StageLoops, state: State, body: Body) -> Node:
    """``body`` inside the loops ``items``, outermost first."""
    if not items:
        return body(state)
    return open_loop(items[0], loops, state, lambda s: open_all(items[1:], loops, s, body))


def resolve(axis: str, state: State, body: Body) -> Node:
    """Make a dynamic width static: one body for the full width, one for the last."""
    width = state.width[axis]
    assert isinstance(width, Dyn)
    left = width.end + state.base[axis].scale(-1)
    check(
        all(c % width.cap == 0 for _, c in left.terms),
        f"axis {axis}: expected tile sizes that nest; got {width.cap} in {left.expr()}",
    )
    rest = left.const % width.cap
    low, high = interval(left, state.ranges)
    full = state.resolved(axis, width.cap)
    if not rest or low >= width.cap:
        return body(full)
    last = replace(state.resolved(axis, rest), short=state.short | {axis})
    if high < width.cap:
        return body(last)
    return If(binary("le", const(width.cap, "int64"), left.expr()), body(full), body(last))


def _open_static(item: Item, width: int, partition: bool, state: State, body: Body) -> Node:
    full, rest = divmod(width, item.size)
    if item.kind == "parallel" or (rest and not partition):
        inner: Width = Dyn(item.size, state.base[item.axis] + Affine((), width)) if rest else item.size
        count = -(-width // item.size)
        return _loop(item, const(count, "int64"), count, state, inner, body)
    nodes: list[Node] = []
    if full:
        nodes.append(_loop(item, const(full, "int64"), full, state, item.size, body))
    if rest:
        nodes.append(body(state.last(item, Affine((), full), rest)))
    return seq(nodes)


def _open_dynamic(item: Item, width: Dyn, partition: bool, stage: str, state: State, body: Body) -> Node:
    left = width.end + state.base[item.axis].scale(-1)
    check(
        item.kind != "parallel",
        f"parallel {stage}: expected tile sizes of axis {item.axis} that divide it, because "
        f"{item.name} is parallel inside another loop of the axis",
    )
    check(
        width.cap % item.size == 0 and all(c % item.size == 0 for _, c in left.terms),
        f"stage {stage}: expected tile sizes of axis {item.axis} that nest; got {item.size} in {width.cap}",
    )
    rest = left.const % item.size
    limit = width.cap // item.size
    floor = make({v: c // item.size for v, c in left.terms}, left.const // item.size)
    if rest and not partition:
        return _up_to(item, floor + Affine((), 1), limit, state, Dyn(item.size, width.end), body)
    main = _up_to(item, floor, limit, state, item.size, body)
    if not rest:
        return main
    low, high = interval(left, state.ranges)
    if low >= width.cap:
        return main
    tail = body(state.last(item, floor, rest))
    return seq([main, tail if high < width.cap else If(binary("lt", left.expr(), width.cap), tail)])


def _up_to(item: Item, count: Affine, limit: int, state: State, width: Width, body: Body) -> Node:
    """A loop of ``min(count, limit)`` iterations, where the count depends on the loops outside."""
    low, high = interval(count, state.ranges)
    if high <= 0:
        return Seq(())
    extent = const(min(low, limit), "int64") if low >= limit or low == high else count.expr()
    if low < limit < high:
        extent = binary("min", extent, limit)
    return _loop(item, extent, min(limit, high), state, width, body)


def _loop(item: Item, extent: Expr, limit: int, state: State, width: Width, body: Body) -> Node:
    if limit == 1 and item.kind != "parallel" and affine(extent) == Affine((), 1):
        return body(state.step(item, ZERO, width))
    check(
        item.kind != "vector" or limit <= MAX_LANES,
        f"vectorize {item.name}: expected at most {MAX_LANES} lanes; got {limit}",
    )
    inner = state.inside(item, limit).step(item, make({item.name: 1}, 0), width)
    return Loop(item.name, extent, item.kind, body(inner), limit)
