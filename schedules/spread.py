"""Separate accumulators for the iterations of a reduction's vector loop and spread loops.

One accumulator is one chain of dependent operations; as many chains as the loops have iterations keep the units busy,
and lanes that are added only at the end need no reduction across a vector at each step. Only full iterations go
there: a short last one would leave some of them without their term, so it updates the result itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.graph.affine import Affine
from tilewright.graph.expr import Expr, const
from tilewright.schedules.loops import Item, StageLoops
from tilewright.schedules.nest import Buffer, Loop, Node, seq
from tilewright.schedules.phase import PStage
from tilewright.schedules.state import MAX_REGISTER_ELEMENTS, Body, Local, State
from tilewright.schedules.statements import Statements, read
from tilewright.schedules.steps import check

Each = Callable[[Body], Node]
"""Makes the loops over the elements of the result around a body."""


def separate_loops(
    stage: PStage, loops: StageLoops, items: tuple[Item, ...], sizes: Mapping[str, tuple[int, ...]]
) -> dict[Item, int]:
    """The loops of a reduction that have separate accumulators, and how many iterations of each are full."""
    spatial = {a for a, _ in stage.axes}
    counts: dict[Item, int] = {}
    for i in items:
        if i.axis not in spatial and (i.kind == "vector" or i.name in loops.spread):
            extent = stage.extents[i.axis]
            counts[i] = (min(sizes[i.axis][i.level - 1], extent) if i.level else extent) // i.size
    return {} if 0 in counts.values() else counts  # 0: no iteration is ever full


def separate(stage: PStage, counts: dict[Item, int], result: Local) -> Separate:
    """The separate accumulators of each element of ``result``."""
    lanes: dict[Item, int] = {}
    size = 1
    for i in reversed(counts):
        lanes[i] = size
        size *= counts[i]
    total = size * result.buffer.size
    check(total <= MAX_REGISTER_ELEMENTS, f"spread {stage.name}: expected fewer accumulators; got {total}")
    buffer = Buffer(f"{stage.name}.wide", total, result.buffer.dtype, "register")
    return Separate(counts, lanes, Local(buffer, {a: s * size for a, s in result.strides.items()}, result.base))


@dataclass(frozen=True, slots=True)
class Separate:
    """Accumulators in ``local``: ``counts`` of each loop, ``lanes`` elements apart."""

    counts: dict[Item, int]
    lanes: dict[Item, int]
    local: Local

    def index(self, state: State, values: Mapping[Item, int] | None = None) -> Affine:
        """The accumulator of iteration ``values`` of the loops, of the current iteration where they do not say."""
        index = self.local.index(state.base)
        for i, stride in self.lanes.items():
            at = state.loops[i.axis, i.level] if values is None or i not in values else Affine((), values[i])
            index = index + at.scale(stride)
        return index

    def fill(self, each: Each, value: Expr, statements: Statements) -> Node:
        """``value`` into every accumulator."""

        def lanes(items: list[Item], st: State) -> Node:
            if not items:
                return statements.store(self.local.buffer.name, self.index(st), value)
            return self._loop(items[0], st, lambda s: lanes(items[1:], s))

        return each(lambda s: lanes(list(self.counts), s))

    def fold(self, each: Each, target: Local, reducer: str, statements: Statements) -> Node:
        """Combine the accumulators: the spread ones pairwise into the first, then the lanes into ``target``."""
        vector = [i for i in self.counts if i.kind == "vector"]
        total = prod(c for i, c in self.counts.items() if i.kind != "vector")

        def combine(st: State) -> Node:
            nodes: list[Node] = []
            gap = 1
            while gap < total:
                for k in range(0, total - gap, 2 * gap):
                    value = read(self.local, self.index(st, self._iteration(k + gap)))
                    into = self.index(st, self._iteration(k))
                    nodes.append(statements.store(self.local.buffer.name, into, value, reducer))
                gap *= 2
            value = read(self.local, self.index(st, self._iteration(0)))
            nodes.append(statements.put(target, st, value, reducer))
            return seq(nodes)

        def lanes(st: State) -> Node:
            return self._loop(vector[0], st, combine) if vector else combine(st)

        return each(lanes)

    def _iteration(self, flat: int) -> dict[Item, int]:
        """The iteration of every spread loop, of their fused iteration ``flat``."""
        out: dict[Item, int] = {}
        for i in reversed(self.counts):
            if i.kind != "vector":
                flat, out[i] = divmod(flat, self.counts[i])
        return out

    def _loop(self, item: Item, state: State, body: Body) -> Node:
        count = self.counts[item]
        return Loop(item.name, const(count, "int64"), item.kind, body(state.inside(item, count)), count)
