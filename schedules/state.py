"""What is known at one point of the recursion that opens loops, and where values live there.

The state is a value and every loop body gets one of its own: a body is often built twice (full tiles and the
rest), and what one copy learns must not leak into the other. Positions are affine forms from the start, so that
constants fold while the loops are opened and nothing has to be simplified afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.graph.affine import Affine, make
from tilewright.schedules.loops import Item
from tilewright.schedules.nest import Buffer, Node
from tilewright.schedules.phase import Phase

MAX_REGISTER_ELEMENTS = 4096
"""Elements of one register buffer: each is a value of its own in the code."""
ZERO = Affine((), 0)


@dataclass(frozen=True, slots=True)
class Dyn:
    """A width known only in the loop: ``min(cap, end - value so far)``."""

    cap: int
    end: Affine


Width = int | Dyn


def cap(width: Width) -> int:
    """The largest value of a width."""
    return width.cap if isinstance(width, Dyn) else width


@dataclass(frozen=True, slots=True)
class Local:
    """Where a tensor local to the phase lives: element ``sum(stride[a] * (value of a - base[a]))`` of
    ``buffer``."""

    buffer: Buffer
    strides: Mapping[str, int]
    base: Mapping[str, Affine]

    def index(self, values: Mapping[str, Affine]) -> Affine:
        """The element at ``values`` of the axes."""
        index = ZERO
        for a, base in self.base.items():
            index = index + (values[a] + base.scale(-1)).scale(self.strides[a])
        return index


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed factor: element ``sum(stride[axis, level] * loop value)`` of ``buffer``."""

    buffer: Buffer
    strides: Mapping[tuple[str, int], int]

    def index(self, state: State) -> Affine:
        """The element of this iteration."""
        index = ZERO
        for key, stride in self.strides.items():
            index = index + state.loops[key].scale(stride)
        return index


@dataclass(frozen=True, slots=True)
class State:
    """What is known at one point of the recursion."""

    base: Mapping[str, Affine]
    """The value of each axis so far."""
    width: Mapping[str, Width]
    """What is left of each axis."""
    loops: Mapping[tuple[str, int], Affine]
    ranges: Mapping[str, tuple[int, int]]
    locals: Mapping[str, Local]
    packed: Mapping[tuple[str, int], Packed]
    short: frozenset[str]
    """Axes with a loop in its short last iteration."""
    within: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Axes that were cut, and the first and the last value of the piece."""

    def step(self, item: Item, value: Affine, width: Width) -> State:
        """The state inside iteration ``value`` of a loop."""
        return replace(
            self,
            base={**self.base, item.axis: self.base[item.axis] + value.scale(item.size)},
            width={**self.width, item.axis: width},
            loops={**self.loops, (item.axis, item.level): value},
        )

    def last(self, item: Item, value: Affine, width: int) -> State:
        """The state inside the short last iteration of a loop."""
        return replace(self.step(item, value, width), short=self.short | {item.axis})

    def inside(self, item: Item, limit: int) -> State:
        """The state where the loop's variable counts up to ``limit``, before anything is said about its axis."""
        return replace(
            self,
            loops={**self.loops, (item.axis, item.level): make({item.name: 1}, 0)},
            ranges={**self.ranges, item.name: (0, limit - 1)},
        )

    def resolved(self, axis: str, width: int) -> State:
        """The state where the width of ``axis`` is known."""
        return replace(self, width={**self.width, axis: width})

    def piece(self, axis: str, first: int, end: int) -> State:
        """The state in which ``axis``, no loop of which is open yet, goes from ``first`` to before ``end``."""
        return replace(
            self,
            base={**self.base, axis: Affine((), first)},
            width={**self.width, axis: end - first},
            within={**self.within, axis: (first, end - 1)},
        )

    def with_local(self, name: str, local: Local) -> State:
        """The state where tensor ``name`` lives in ``local``."""
        return replace(self, locals={**self.locals, name: local})

    def with_packed(self, stage: str, factor: int, packed: Packed) -> State:
        """The state where a factor of ``stage`` is read from ``packed``."""
        return replace(self, packed={**self.packed, (stage, factor): packed})


Body = Callable[[State], Node]


def start(phase: Phase) -> State:
    """The state outside all loops."""
    extents = {a: e for s in phase.stages for a, e in s.axes + s.reduce}
    return State(dict.fromkeys(extents, ZERO), extents, {}, {}, {}, {}, frozenset())
