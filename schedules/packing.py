"""Pack a factor of a summed product: copy it into a buffer in the order in which the loops inside read it.

A layout over loops, not over a region of the tensor, needs no analysis of regions, is right for windows and strides
alike, and says exactly in which order the inner loop reads. A constant factor is packed once, when the program is
prepared; another before all loops, by all threads, or into the thread's own scratch at a loop of the consumer or, around
it, of the leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.graph.affine import affine
from tilewright.graph.expr import Expr
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.factors import product_factors
from tilewright.schedules.loops import Item, StageLoops
from tilewright.schedules.nest import Alloc, Buffer, Node, Note, seq
from tilewright.schedules.opening import open_loop, resolve
from tilewright.schedules.phase import PStage
from tilewright.schedules.placement import Placement
from tilewright.schedules.state import Body, Dyn, Packed, State, cap
from tilewright.schedules.statements import Statements
from tilewright.schedules.steps import Pack, check

ROOT = "root"
MAX_VECTOR = 64
"""The longest innermost loop of a copy that becomes one vector."""
SHORT = 8
"""Steps of a loop of a copy that may be outside of what reads on: they read places next to each other too."""


class Packing:
    """Packs the factors of one phase, and collects what that adds to the program outside the phase's loops."""

    def __init__(self, placement: Placement, statements: Statements, constants: set[str]) -> None:
        self.placement = placement
        self.statements = statements
        self.constants = constants
        self.prepare: list[Node] = []
        self.before: list[Node] = []
        self.packed: list[Buffer] = []
        self.shared: list[Buffer] = []

    def at_root(self, stage: PStage, loops: StageLoops, pack: Pack, state: State) -> State:
        """Pack before all loops; the state in which the factor is packed."""
        factor, items, packed = self._plan(stage, loops, pack, state)
        constant = packed.buffer.scope == "packed"
        if not constant and len(items) > 1:
            items = [replace(items[0], kind="parallel"), *items[1:]]
        node = self._copy(stage, factor, items, packed, state)
        (self.prepare if constant else self.before).extend([Note(f"pack {stage.name} factor {pack.factor}"), node])
        (self.packed if constant else self.shared).append(packed.buffer)
        return state.with_packed(stage.name, pack.factor, packed)

    def at_leader(self, stage: PStage, position: int, state: State, rest: Body) -> Node:
        """Pack what ``stage``, a producer computed further in, packs at the leader's loop number ``position``, then ``rest``."""
        outside = self.placement.leader.items[:position]
        if position > self.placement.position[stage.name]:
            return rest(state)
        loops = self.placement.loops_of(stage)
        here = [p for p in loops.packs if p.loop == outside[-1].name]
        for p in here:
            check(
                position >= self.placement.parallel_end,
                f"{p}: expected a place inside all parallel loops or before all loops",
            )
        own = {i.name for i in loops.items}
        between = self.placement.leader.items[position : self.placement.position[stage.name]]
        axes = set(stage.extents)
        items = (*(i for i in between if i.axis in axes and i.name not in own), *loops.items)
        return self.at_loop(stage, replace(loops, items=items), here, state, rest)

    def at_loop(self, stage: PStage, loops: StageLoops, packs: Sequence[Pack], state: State, rest: Body) -> Node:
        """Pack ``packs`` at this point, one after the other, and then ``rest``."""
        if not packs:
            return rest(state)
        factor, items, packed = self._plan(stage, loops, packs[0], state)
        node = self._copy(stage, factor, items, packed, state)
        inner = state.with_packed(stage.name, packs[0].factor, packed)
        return Alloc(packed.buffer, seq([node, self.at_loop(stage, loops, packs[1:], inner, rest)]))

    def _plan(self, stage: PStage, loops: StageLoops, pack: Pack, state: State) -> tuple[Expr, list[Item], Packed]:
        """The factor, the loops of the copy and the buffer."""
        factors = product_factors(stage.body)
        check(
            stage.reducer == "sum" and pack.factor < len(factors) and len(factors) > 1,
            f"{pack}: expected a sum of products with a factor {pack.factor}",
        )
        factor = factors[pack.factor]
        used = variables(factor)
        reads = {load.tensor for load in loads(factor)}
        sizes = self.placement.sizes_of(stage)
        inside = sorted(t for t in reads & self.placement.phase.local if t not in state.locals)
        check(not inside, f"{pack}: expected a factor that exists before the loops; it reads {inside}")
        if pack.loop == ROOT:
            wanted = [f"{a}.{k}" for a in stage.extents if a in used for k in range(len(sizes[a]) + 1)]
        else:
            wanted = [i.name for i in loops.items if i.axis in used and (i.axis, i.level) not in state.loops]
        items = _layout(pack, wanted, sizes)
        strides, size = _strides(pack, items, sizes, state)
        scope = "thread"
        if pack.loop == ROOT:
            scope = "packed" if reads <= self.constants else "shared"
        return factor, items, Packed(Buffer(f"{stage.name}.pack{pack.factor}", size, factor.dtype, scope), strides)

    def _copy(self, stage: PStage, factor: Expr, items: list[Item], packed: Packed, state: State) -> Node:
        """The loops that fill the buffer."""
        last = items[-1]
        outer = _outer(last, items)
        if outer is not None and outer.size <= MAX_VECTOR:
            items = [*items[:-1], replace(last, kind="vector")]
            if len(items) > 1 and packed.buffer.scope != "packed" and _turned(items, factor):
                items[-2] = replace(items[-2], kind="unroll")
        items = _walk(items, factor)
        loops = StageLoops(stage.name, tuple(items), frozenset(), (), False)

        def fill(position: int, st: State) -> Node:
            if position == len(items):
                value = self.statements.value(stage, factor, replace(st, packed={}))
                return self.statements.store(packed.buffer.name, packed.index(st), value)
            axis = items[position].axis
            if isinstance(st.width[axis], Dyn) and all(i.static for i in items[position:] if i.axis == axis):
                return resolve(axis, st, lambda s: fill(position, s))
            return open_loop(items[position], loops, st, lambda s: fill(position + 1, s))

        return fill(0, state)


def _layout(pack: Pack, wanted: list[str], sizes: Mapping[str, tuple[int, ...]]) -> list[Item]:
    """The loops of the copy, in the order the step gives; they must be those that are ``wanted``."""
    check(bool(wanted), f"{pack}: expected a factor that the loops inside walk")
    check(sorted(wanted) == sorted(pack.layout), f"{pack}: expected the loops {sorted(wanted)}, each once")
    items: list[Item] = []
    for name in pack.layout:
        axis, level = name.rsplit(".", 1)
        k = int(level)
        check(
            all(o.level < k for o in items if o.axis == axis),
            f"{pack}: expected the loops of axis {axis} from outer to inner",
        )
        items.append(Item(axis, k, sizes[axis][k] if k < len(sizes[axis]) else 1, "serial"))
    return items


def _turned(items: list[Item], factor: Expr) -> bool:
    """Whether the loop around the innermost reads the neighbours and is short: then tiles are transposed in registers."""
    near, last = items[-2:]
    outer = _outer(near, items)
    flat = [affine(load.index[0]) for load in loads(factor)]
    strides = [None if a is None else (a.coefficient(near.axis), a.coefficient(last.axis)) for a in flat]
    return outer is not None and 1 < outer.size <= SHORT and all(s is not None and s[0] == 1 != s[1] for s in strides)


def _walk(items: list[Item], factor: Expr) -> list[Item]:
    """The order in which a copy is walked. Where the innermost loop reads neighbours, the next loop of its axis goes on from their end:
    it comes just outside, or outside short loops in between, so that lines and pages are read whole."""
    last = items[-1]
    onward = _outer(last, items)
    flat = [affine(load.index[0]) for load in loads(factor)]
    if (
        onward is None
        or onward.kind == "parallel"
        or not flat
        or any(a is None or a.coefficient(last.axis) != 1 for a in flat)
    ):
        return items
    at = len(items) - 1
    while (outer := _outer(items[at - 1], items)) is not None and items[at - 1] is not onward and outer.size <= SHORT:
        at -= 1
    moved = [i for i in items[:at] if i is not onward]
    return [*moved, onward, *items[at:]] if onward in items[:at] else items


def _outer(item: Item, items: list[Item]) -> Item | None:
    """The next loop of the same axis outside ``item``."""
    return max((o for o in items if o.axis == item.axis and o.level < item.level), key=lambda o: o.level, default=None)


def _strides(
    pack: Pack, items: list[Item], sizes: Mapping[str, tuple[int, ...]], state: State
) -> tuple[dict[tuple[str, int], int], int]:
    """The stride of each loop, whole tiles throughout, and the size of the buffer."""
    strides: dict[tuple[str, int], int] = {}
    size = 1
    for i in reversed(items):
        strides[i.axis, i.level] = size
        outer = _outer(i, items)
        if outer is not None:
            width = outer.size
        else:
            width = cap(state.width[i.axis])
            if i.level and pack.loop != ROOT:
                width = min(sizes[i.axis][i.level - 1], -(-width // i.size) * i.size)
        size *= -(-width // i.size)
    return strides, size
