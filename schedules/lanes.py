"""How the elements of a vector loop become vectors.

Vectors have a power of two of lanes: LLVM carries a ``<24 x float>`` from block to block as scalars, but not two of 16 and 8. A short
rest of 7 elements would be vectors of 4, 2 and 1, three times the work of one. Where nobody sees the difference it is one vector of
8 lanes, of which the last is *idle*: it computes with whatever it finds, reads nothing of a parameter and writes nothing to memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import MATHS, Expr, Op
from tilewright.graph.traverse import loads, walk
from tilewright.schedules.nest import Alloc, If, Loop, Node, Pick, Prefix, Seq, Store

REST = 8
"""A rest of fewer elements may become one vector."""


def powers_of_two(width: int) -> list[int]:
    """A vector width as descending powers of two."""
    return [1 << k for k in range(width.bit_length() - 1, -1, -1) if width >> k & 1]


def with_idle_lanes(width: int) -> list[tuple[int, int]]:
    """The lanes of the vectors of ``width`` elements, and how many of them are used: all but in a rest of several short vectors."""
    rest = width % REST
    whole = [(k, k) for k in powers_of_two(width - rest)]
    if rest.bit_count() < 2:
        return [*whole, *((k, k) for k in powers_of_two(rest))]
    return [*whole, (1 << rest.bit_length(), rest)]


def room(width: int) -> int:
    """Elements that a row of ``width`` takes in registers, idle lanes with it."""
    return sum(lanes for lanes, _ in with_idle_lanes(width))


def may_idle(n: Loop, width: int, registers: Mapping[str, int]) -> bool:
    """Whether the vector loop ``n`` over ``width`` elements may have idle lanes: it computes floating-point numbers in ``registers``
    (and their sizes) whose rows have room for them, or mathematical functions, and walks all other tensors so that it can be left out
    there."""
    wide = room(width)
    if wide == width:
        return False
    stores = list(_stores(n.body))
    if not stores or any(s is None for s in stores):
        return False
    useful = False
    for s in stores:
        assert s is not None
        own = s.tensor in registers
        useful |= own or any(e.tensor in registers for e in loads(s.value)) or _maths(s.value)
        if (s.reducer is not None or s.stream) and not own:
            return False
        if not _steps(s.index, n.var, (1,)) or (own and not _in_rows(s.index, n.var, wide, registers[s.tensor])):
            return False
        for e in loads(s.value):
            if e.dtype not in FLOATS or not _steps(e.index[0], n.var, (0, 1) if e.tensor in registers else (0, 1, 2)):
                return False
            if e.tensor in registers and not _in_rows(e.index[0], n.var, wide, registers[e.tensor]):
                return False
        if any(isinstance(e, Op) and e.dtype not in (*FLOATS, "bool", "int64") for e in walk(s.value)):
            return False
    return useful


def _stores(n: Node) -> Iterator[Store | None]:
    """The stores in straight-line code; None for anything else that is there."""
    if isinstance(n, Store):
        yield n
    elif isinstance(n, Seq):
        for child in n.nodes:
            yield from _stores(child)
    elif isinstance(n, Alloc) or (isinstance(n, Loop) and n.kind == "unroll"):
        yield from _stores(n.body)
    elif isinstance(n, If | Loop | Prefix | Pick):
        yield None


def _maths(e: Expr) -> bool:
    return any(isinstance(x, Op) and x.kind in MATHS for x in walk(e))


def _steps(index: Expr, lane: str, strides: Collection[int]) -> bool:
    """Whether an access moves by one of ``strides`` from lane to lane."""
    a = affine(index)
    return a is not None and a.coefficient(lane) in strides


def _in_rows(index: Expr, lane: str, wide: int, size: int) -> bool:
    """Whether an access to a buffer of ``size`` elements begins at a multiple of ``wide``, or is the same in all lanes."""
    a = affine(index)
    assert a is not None
    if a.coefficient(lane) == 0:
        return True
    return size % wide == 0 and a.const % wide == 0 and all(c % wide == 0 for v, c in a.terms if v != lane)
