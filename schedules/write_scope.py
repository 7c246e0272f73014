"""What is known at the place in a function where the next instruction is written.

Loads and addresses are remembered here because LLVM is not asked to find them again: its passes that would (GVN) are
left out. What is remembered is forgotten at the end of the block that made it, and where a store may change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.graph.affine import Affine, Parted, affine, parted
from tilewright.graph.expr import Expr
from tilewright.schedules.emit import Function, Value
from tilewright.schedules.write_transposed import Held

Key = tuple[object, ...]


@dataclass
class Scope:
    """The state of writing one function. ``parameters`` are the tensors it is given and their types, ``written``
    those of them that a kernel writes; maths functions needed are added to ``helpers``."""

    fn: Function
    parameters: Mapping[str, str]
    written: frozenset[str]
    helpers: set[tuple[str, int, str]]
    notes: tuple[str, int] = ("null", 0)
    """Where indices outside are noted (:mod:`tilewright.schedules.write_bounds`), and the number of the kernel."""
    pointers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Address and type of every tensor."""
    registers: set[str] = field(default_factory=set)
    """Tensors that become SSA values, which LLVM remembers itself."""
    flags: dict[str, str] = field(default_factory=dict)
    """Registers with running maxima that have flags, and the name of those (:mod:`tilewright.schedules.write_extremes`)."""
    vars: dict[str, int | str] = field(default_factory=dict)
    """Loop variables: a constant or an SSA name."""
    lane: tuple[str, int] | None = None
    """Variable and lanes of the vector loop around."""
    first: int = 0
    """The first lane of the piece of a vector loop being written."""
    used: int = 1
    """How many lanes of that piece are elements; the rest are idle."""
    more: bool = False
    """Whether another piece follows."""
    unrolled: dict[str, int] = field(default_factory=dict)
    """Loops around that are repeated, with their extents, as far as every iteration comes to the place where the
    next instruction is written."""
    held: list[Held] = field(default_factory=list)
    """Stores that wait for the end of such a loop."""
    guard: Value | None = None
    """Where this does not hold, nothing may be read."""
    row: Value | None = None
    """A condition of all lanes together beside a ``guard`` that differs from lane to lane."""
    swapped: bool = False
    """Whether the lanes of vectors are in the order :func:`~tilewright.schedules.write_pairs.swapped`."""
    addresses: list[dict[Key, str]] = field(default_factory=lambda: [{}])
    conditions: list[dict[Key, Value]] = field(default_factory=lambda: [{}])
    """Conditions of all lanes together (loads under the same one are the same loads), and parts of indices."""
    loaded: dict[Key, Value] = field(default_factory=dict)
    fetched: set[Key] = field(default_factory=set)
    """Cache lines that were asked for."""
    computed: dict[Expr, Value] = field(default_factory=dict)
    """Values that do not change in the loops around, computed before them."""
    forms: dict[Expr, Affine | None] = field(default_factory=dict)
    parted: dict[Expr, Parted] = field(default_factory=dict)
    parts: dict[str, Expr] = field(default_factory=dict)
    """What the parts of the index being written stand for."""

    @property
    def lanes(self) -> int:
        """How many lanes the vector loop around has (1 outside of one)."""
        return self.lane[1] if self.lane is not None else 1

    def affine(self, e: Expr) -> Affine | None:
        """The affine form of ``e``, if it has one."""
        if e not in self.forms:
            self.forms[e] = affine(e)
        return self.forms[e]

    def in_parts(self, e: Expr) -> Parted:
        """``e`` as an affine form and parts that have none."""
        if e not in self.parted:
            self.parted[e] = parted(e)
        return self.parted[e]

    def split(self, a: Affine) -> tuple[list[tuple[str, int]], int, int]:
        """An affine form here: SSA names with coefficients, a constant, and the stride over lanes."""
        constant, stride = a.const, 0
        dynamic: list[tuple[str, int]] = []
        for v, c in a.terms:
            if self.lane is not None and v == self.lane[0]:
                stride = c
                constant += c * self.first
                continue
            value = self.vars[v]
            if isinstance(value, int):
                constant += c * value
            else:
                dynamic.append((value, c))
        return dynamic, constant, stride

    def once(self, key: Key, make: Callable[[], Value]) -> Value:
        """What ``key`` names, written by ``make`` unless it is known from here or from a block around."""
        for level in reversed(self.conditions):
            if key in level:
                return level[key]
        made = self.conditions[-1][key] = make()
        return made

    def sum(self, dynamic: list[tuple[str, int]]) -> str:
        """The sum of coefficients times SSA names."""
        total = ""
        for value, c in dynamic:
            part = value if c == 1 else self.fn.op(f"mul nsw i64 {value}, {c}", "int64").name
            total = part if not total else self.fn.op(f"add nsw i64 {total}, {part}", "int64").name
        return total

    @contextmanager
    def block(self) -> Iterator[None]:
        """A block of its own: addresses made inside are not seen outside, loads neither way."""
        outer, unrolled, fetched = self.loaded, self.unrolled, self.fetched
        self.addresses.append({})
        self.conditions.append({})
        self.loaded, self.unrolled, self.fetched = {}, {}, set()
        yield
        self.addresses.pop()
        self.conditions.pop()
        self.unrolled, self.fetched = unrolled, fetched
        self.loaded = {k: v for k, v in outer.items() if k[0] not in self.written and k[0] in self.parameters}

    @contextmanager
    def known(self, values: Mapping[Expr, Value]) -> Iterator[None]:
        """A loop in which these expressions have these values."""
        outer = self.computed
        self.computed = {**outer, **values}
        yield
        self.computed = outer

    def stored(self, tensor: str) -> None:
        """Forget what was loaded from ``tensor``."""
        if tensor not in self.registers:
            for key in [k for k in self.loaded if k[0] == tensor]:
                del self.loaded[key]

    def forget(self, tensor: str) -> None:
        """Forget all about a tensor that is no more."""
        self.loaded = {k: v for k, v in self.loaded.items() if k[0] != tensor}
        for level in self.addresses:
            for key in [k for k in level if k[0] == tensor]:
                del level[key]
