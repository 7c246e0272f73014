"""Write reads of elements two apart (strided windows): vectors of neighbours, of which every second lane is taken."""

from __future__ import annotations

from tilewright.graph.dtypes import SIZES
from tilewright.schedules.emit import Value
from tilewright.schedules.write_addresses import MASKED_BYTES, masked_vector, offset, read, select
from tilewright.schedules.write_scope import Scope

SHARED = 64
"""Elements in which vectors that are read two at a time begin from one selected address: what follows them is zeros too."""
WIDE_BYTES = 32
"""Vectors that are shuffled together where every second element is read."""


def in_pairs(scope: Scope, dtype: str) -> bool:
    """Whether elements two apart are read as vectors of neighbours: under a guard only where those can be masked."""
    if scope.lanes == 1 or dtype == "bool":
        return False
    masked = scope.guard is not None and scope.guard.lanes > 1
    return not masked or (SIZES[dtype] >= 4 and scope.lanes * SIZES[dtype] >= MASKED_BYTES)


def every_second(scope: Scope, tensor: str, dtype: str, pointer: str, constant: int) -> Value:
    """Elements two apart: vectors of neighbours, of which every second lane is taken.

    A vector that the elements between were taken from is used again: a window that is walked two at a time reads all its elements.
    Nothing is read before the first or behind the last element, where a parameter may end. With ``scope.swapped`` the lanes are
    left as shuffles inside segments leave them, in the order :func:`swapped`.
    """
    lanes = scope.lanes
    width = min(lanes, WIDE_BYTES // SIZES[dtype])
    roomy = scope.guard is None and tensor not in scope.parameters and tensor not in scope.registers
    parts = []
    for first in range(0, lanes, width):
        start = constant + 2 * first
        places = (start - start % 2, start) if roomy else (start, start - 1)
        low, skip = _neighbours_at(scope, tensor, dtype, pointer, places, width, first, start)
        places = (start + width - 1, start + width)
        if roomy:
            places = (start - start % 2 + width, start + width)
        elif (first + width < lanes or scope.more) and (scope.guard is None or scope.guard.lanes == 1):
            places = (start + width, start + width - 1)  # the next lane reads what is behind
        high, behind = _neighbours_at(scope, tensor, dtype, pointer, places, width, first, start)
        half = width // 2
        mask = [2 * k + skip if k < half else width + 2 * (k - half) + behind for k in range(width)]
        if scope.swapped:
            mask = [mask[k] for k in swapped(width)]
        parts.append(scope.fn.shuffle(low, high, mask))
    while len(parts) > 1:
        parts = [scope.fn.shuffle(a, b, list(range(2 * a.lanes))) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def swapped(lanes: int) -> list[int]:
    """The lanes of a vector of two segments with its middle quarters swapped: what interleaving inside segments leaves of vectors
    of which every second lane is taken. Twice is as it was."""
    quarter = lanes // 4
    return [q * quarter + k for q in (0, 2, 1, 3) for k in range(quarter)]


def _neighbours_at(
    scope: Scope,
    tensor: str,
    dtype: str,
    pointer: str,
    places: tuple[int, int],
    lanes: int,
    first: int,
    start: int,
) -> tuple[Value, int]:
    """A vector of neighbours that begins at one of ``places``, and where in it what was asked for begins: the second place if that
    was read before, else the first. A guard says of each second element from ``start`` on, the first of which is lane ``first``,
    whether it may be read; what lies between may be if both around it may."""
    guard = scope.guard
    origin = (
        start - 2 * first if guard is not None and guard.lanes > 1 else None
    )  # what the lanes of the guard are about
    keys = [(tensor, pointer, place, lanes, guard, scope.row, origin) for place in places]
    wanted = [place - start for place in places]
    for key, place in zip(keys, wanted, strict=True):
        found = scope.loaded.get(key)
        if found is not None:
            return found, place % 2
    whole = guard if guard is None or guard.lanes == 1 else scope.row
    near = 0 if whole is None else (start - 1) // SHARED * SHARED
    if whole is not None:
        pointer = select(scope, whole, offset(scope, pointer, near, dtype))
    at = offset(scope, pointer, places[0] - near, dtype)
    if guard is None or guard.lanes == 1:
        out = read(scope, dtype, at, lanes)
    else:
        around = [[(wanted[0] + k + up) // 2 + first for k in range(lanes)] for up in (0, 1)]
        low, high = (scope.fn.shuffle(guard, None, lane) for lane in around)
        mask = scope.fn.op(f"and {low.typed}, {high.name}", "bool", lanes)  # what lies between two that are read
        out = masked_vector(scope, dtype, at, mask)
    if tensor not in scope.registers:
        scope.loaded[keys[0]] = out
    return out, wanted[0] % 2
