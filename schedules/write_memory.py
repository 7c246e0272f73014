"""Write addresses and loads.

An address is a pointer for the part that changes from loop to loop, shared by all accesses that differ in a constant
only, and a constant offset, which costs nothing. A guarded load selects its *pointer*: where the guard fails it reads
from a block of zeros, so nothing outside a tensor is ever touched and no branch is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tilewright.graph.affine import Affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Load
from tilewright.schedules.emit import Value, memory_type, splat_literal, suffix, vector_type
from tilewright.schedules.write_extremes import with_flag
from tilewright.schedules.write_scope import Key, Scope
from tilewright.schedules.write_transposed import pieces, transpose

ZEROS = "@tw_zeros"
MASKED_BYTES = 16
"""The shortest vector that processors load under a mask."""
SHARED = 64
"""Elements in which vectors that are read two at a time begin from one selected address: what follows them is zeros too."""
WIDE_BYTES = 32
"""Vectors that are shuffled together where every second element is read."""
ZERO_BYTES = 2048
"""What a guarded load reads instead: 256 lanes of 8 bytes (:data:`tilewright.schedules.opening.MAX_LANES`)."""


def address(scope: Scope, tensor: str, a: Affine) -> tuple[str, int, int]:
    """Pointer without the constant part, the constant (in elements), and the stride over lanes."""
    dynamic, constant, stride = scope.split(a)
    pointer, dtype = scope.pointers[tensor]
    if not dynamic:
        return pointer, constant, stride
    key: Key = (tensor, *sorted(dynamic))
    for level in reversed(scope.addresses):
        found = level.get(key)
        if found is not None:
            return found, constant, stride
    found = element(scope, pointer, scope.sum(dynamic), dtype)
    scope.addresses[-1][key] = found
    return found, constant, stride


def element(scope: Scope, pointer: str, index: str, dtype: str) -> str:
    """Address of element ``index`` (an SSA name) after ``pointer``."""
    return scope.fn.op(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {index}", "int64").name


def offset(scope: Scope, pointer: str, constant: int, dtype: str) -> str:
    """Address of element ``constant`` after ``pointer``."""
    return element(scope, pointer, str(constant), dtype) if constant else pointer


def read(scope: Scope, dtype: str, pointer: str, lanes: int) -> Value:
    """``lanes`` contiguous elements."""
    memory = vector_type(memory_type(dtype), lanes)
    v = scope.fn.op(f"load {memory}, ptr {pointer}, align {SIZES[dtype]}", dtype, lanes)
    if dtype != "bool":
        return v
    return scope.fn.op(f"icmp ne {memory} {v.name}, {splat_literal(0, 'int8', lanes)}", "bool", lanes)


def collect(scope: Scope, dtype: str, pointers: list[str]) -> Value:
    """One element from each address."""
    return _gathered(scope, [read(scope, dtype, p, 1) for p in pointers])


def load(scope: Scope, e: Load, a: Affine) -> Value:
    """The elements at index ``a``, remembered until they may have changed."""
    remembered = e.tensor not in scope.registers
    key = _key(scope, e, a, {})
    if remembered:
        found = scope.loaded.get(key)
        if found is not None:
            return found
        unrolled = _neighbours(scope, a)
        if unrolled is not None:
            _load_tile(scope, e, a, unrolled)
            return scope.loaded[key]
    with _used_lanes(scope, e.tensor, a):
        value = _load_at(scope, e.tensor, e.dtype, *address(scope, e.tensor, a))
        if e.tensor in scope.flags:
            flags = scope.flags[e.tensor]
            value = with_flag(scope, value, _load_at(scope, flags, e.dtype, *address(scope, flags, a)))
    if remembered:
        scope.loaded[key] = value
    return value


def _key(scope: Scope, e: Load, a: Affine, at: Mapping[str, int]) -> Key:
    """What a load is remembered as, where some variables have other values."""
    lane = (*scope.lane, scope.first, scope.used) if scope.lane is not None else None
    return (
        e.tensor,
        a,
        scope.guard,
        scope.row,
        scope.swapped,
        *(at.get(v, scope.vars.get(v, lane)) for v, _ in a.terms),
    )


@contextmanager
def _used_lanes(scope: Scope, tensor: str, a: Affine) -> Iterator[None]:
    """Where an idle lane would read a parameter (buffers have room behind them), it reads nothing."""
    if (
        scope.lane is None
        or scope.used == scope.lanes
        or tensor not in scope.parameters
        or not a.coefficient(scope.lane[0])
    ):
        yield
        return
    guard, row, lanes = scope.guard, scope.row, scope.lanes
    used = Value(f"<{', '.join(f'i1 {str(k < scope.used).lower()}' for k in range(lanes))}>", "bool", lanes)
    if guard is None:
        scope.guard = used
    elif guard.lanes == 1:
        scope.guard, scope.row = used, guard
    else:
        scope.guard = scope.fn.op(f"and {guard.typed}, {used.name}", "bool", lanes)
    yield
    scope.guard, scope.row = guard, row


def _neighbours(scope: Scope, a: Affine) -> str | None:
    """The loop whose iterations read neighbours of a load that jumps from lane to lane, if there is one."""
    if scope.lane is None or scope.guard is not None or a.coefficient(scope.lane[0]) in (-1, 0, 1, 2):
        return None
    return next((v for v, c in a.terms if c == 1 and scope.unrolled.get(v, 1) > 1), None)


def _load_tile(scope: Scope, e: Load, a: Affine, unrolled: str) -> None:
    """Remember a load for all iterations of an unrolled loop: contiguous vectors, transposed."""
    pointer, constant, stride = address(scope, e.tensor, a)
    now = scope.vars[unrolled]
    assert isinstance(now, int)
    for first, length in pieces(scope.unrolled[unrolled], e.dtype):
        start = constant - now + first
        rows = [
            read(scope, e.dtype, offset(scope, pointer, start + k * stride, e.dtype), length)
            for k in range(scope.lanes)
        ]
        columns = transpose(scope.fn, rows) if length > 1 else [_gathered(scope, rows)]
        for k, v in enumerate(columns):
            scope.loaded[_key(scope, e, a, {unrolled: first + k})] = v


def _gathered(scope: Scope, values: list[Value]) -> Value:
    """Scalars as one vector."""
    out = Value("poison", values[0].dtype, len(values))
    for k, v in enumerate(values):
        out = scope.fn.op(f"insertelement {out.typed}, {v.typed}, i64 {k}", v.dtype, len(values))
    return out


def gather(scope: Scope, e: Load, index: Value) -> Value:
    """A load whose index is no affine form: in a vector loop lane by lane."""
    pointer, dtype = scope.pointers[e.tensor]
    scope.guard, scope.row = _whole_guard(scope), None
    lanes = max(index.lanes, scope.guard.lanes if scope.guard is not None else 1)
    pointers: list[str] = []
    for k in range(lanes):
        p = element(scope, pointer, _lane(scope, index, k).name, dtype)
        pointers.append(_guarded(scope, p, k))
    return read(scope, dtype, pointers[0], 1) if lanes == 1 else collect(scope, dtype, pointers)


def _load_at(scope: Scope, tensor: str, dtype: str, pointer: str, constant: int, stride: int) -> Value:
    guard, lanes = scope.guard, scope.lanes
    if stride == 2 and _in_pairs(scope, dtype):
        return every_second(scope, tensor, dtype, pointer, constant)
    if guard is not None and guard.lanes > 1:
        if stride != 1 or dtype == "bool":
            scope.guard, scope.row = _whole_guard(scope), None
            guard = scope.guard
            assert guard is not None
        return _masked(scope, dtype, pointer, constant, stride, guard)
    if stride == 0 or lanes == 1:
        return read(scope, dtype, _guarded(scope, offset(scope, pointer, constant, dtype)), 1)
    if stride == 1:
        return read(scope, dtype, _guarded(scope, offset(scope, pointer, constant, dtype)), lanes)
    if stride == -1:
        low = _guarded(scope, offset(scope, pointer, constant - lanes + 1, dtype))
        return scope.fn.shuffle(read(scope, dtype, low, lanes), None, list(range(lanes - 1, -1, -1)))
    pointers = [_guarded(scope, offset(scope, pointer, constant + k * stride, dtype)) for k in range(lanes)]
    return collect(scope, dtype, pointers)


def _in_pairs(scope: Scope, dtype: str) -> bool:
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
        pointer = _select(scope, whole, offset(scope, pointer, near, dtype))
    at = offset(scope, pointer, places[0] - near, dtype)
    if guard is None or guard.lanes == 1:
        out = read(scope, dtype, at, lanes)
    else:
        around = [[(wanted[0] + k + up) // 2 + first for k in range(lanes)] for up in (0, 1)]
        low, high = (scope.fn.shuffle(guard, None, lane) for lane in around)
        mask = scope.fn.op(f"and {low.typed}, {high.name}", "bool", lanes)  # what lies between two that are read
        out = _masked_vector(scope, dtype, at, mask)
    if tensor not in scope.registers:
        scope.loaded[keys[0]] = out
    return out, wanted[0] % 2


def _masked(scope: Scope, dtype: str, pointer: str, constant: int, stride: int, guard: Value) -> Value:
    """Loads under a guard that differs from lane to lane."""
    lanes = guard.lanes
    if stride == 1 and dtype != "bool":
        least = MASKED_BYTES // SIZES[dtype]
        if SIZES[dtype] >= 4 and lanes < least:  # narrower ones become branches
            wide = scope.fn.shuffle(
                guard, Value(splat_literal(False, "bool", lanes), "bool", lanes), [min(k, lanes) for k in range(least)]
            )
            return scope.fn.shuffle(_masked(scope, dtype, pointer, constant, stride, wide), None, list(range(lanes)))
        place = offset(scope, pointer, constant, dtype)
        return _masked_vector(scope, dtype, place if scope.row is None else _select(scope, scope.row, place), guard)
    pointers = []
    for k in range(lanes):
        bit = _lane(scope, guard, k)
        pointers.append(_select(scope, bit, offset(scope, pointer, constant + k * stride, dtype)))
    return collect(scope, dtype, pointers)


def _masked_vector(scope: Scope, dtype: str, place: str, guard: Value) -> Value:
    """A vector of neighbours, each of which is read where its lane of ``guard`` is true."""
    memory = vector_type(memory_type(dtype), guard.lanes)
    name = f"@llvm.masked.load.{suffix(dtype, guard.lanes)}.p0"
    scope.fn.declare(f"declare {memory} {name}(ptr, i32 immarg, {guard.type}, {memory})")
    return scope.fn.op(
        f"call {memory} {name}(ptr {place}, i32 {SIZES[dtype]}, {guard.typed}, {memory} zeroinitializer)",
        dtype,
        guard.lanes,
    )


def _whole_guard(scope: Scope) -> Value | None:
    """The guard with the condition of all lanes in it."""
    if scope.row is None or scope.guard is None:
        return scope.guard
    row = scope.fn.splat(scope.row, scope.guard.lanes)
    return scope.fn.op(f"and {scope.guard.typed}, {row.name}", "bool", scope.guard.lanes)


def _guarded(scope: Scope, pointer: str, lane: int = 0) -> str:
    """``pointer``, or that of zeros where the guard of ``lane`` fails."""
    return pointer if scope.guard is None else _select(scope, _lane(scope, scope.guard, lane), pointer)


def _select(scope: Scope, bit: Value, pointer: str) -> str:
    return scope.fn.op(f"select {bit.typed}, ptr {pointer}, ptr {ZEROS}", "int64").name


def _lane(scope: Scope, v: Value, k: int) -> Value:
    return v if v.lanes == 1 else scope.fn.op(f"extractelement {v.typed}, i64 {k}", v.dtype)
