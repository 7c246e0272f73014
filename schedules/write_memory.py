"""Write addresses and loads.

An address is a pointer for the part that changes from loop to loop, shared by all accesses that differ in a constant
only, and a constant offset, which costs nothing. A guarded load selects its *pointer*: where the guard fails it reads
from a block of zeros, so nothing outside a tensor is ever touched and no branch is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.affine import Affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Load
from tilewright.schedules.emit import Value, memory_type, splat_literal, suffix, vector_type
from tilewright.schedules.write_scope import Key, Scope
from tilewright.schedules.write_transposed import pieces, transpose

ZEROS = "@tw_zeros"
MASKED_BYTES = 16
"""The shortest vector that processors load under a mask."""
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
    value = _load_at(scope, e.dtype, *address(scope, e.tensor, a))
    if remembered:
        scope.loaded[key] = value
    return value


def _key(scope: Scope, e: Load, a: Affine, at: Mapping[str, int]) -> Key:
    """What a load is remembered as, where some variables have other values."""
    lane = (*scope.lane, scope.first) if scope.lane is not None else None
    return (e.tensor, a, scope.guard, scope.row, *(at.get(v, scope.vars.get(v, lane)) for v, _ in a.terms))


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


def _load_at(scope: Scope, dtype: str, pointer: str, constant: int, stride: int) -> Value:
    guard, lanes = scope.guard, scope.lanes
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
    if stride == 2 and guard is None:
        return _every_second(scope, dtype, pointer, constant, lanes)
    pointers = [_guarded(scope, offset(scope, pointer, constant + k * stride, dtype)) for k in range(lanes)]
    return collect(scope, dtype, pointers)


def _every_second(scope: Scope, dtype: str, pointer: str, constant: int, lanes: int) -> Value:
    """Two contiguous loads and a shuffle; the second starts one early so as not to read past the last element."""
    low = read(scope, dtype, offset(scope, pointer, constant, dtype), lanes)
    high = read(scope, dtype, offset(scope, pointer, constant + lanes - 1, dtype), lanes)
    mask = [2 * k if 2 * k < lanes else lanes + 2 * k - (lanes - 1) for k in range(lanes)]
    return scope.fn.shuffle(low, high, mask)


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
        memory = vector_type(memory_type(dtype), lanes)
        name = f"@llvm.masked.load.{suffix(dtype, lanes)}.p0"
        place = offset(scope, pointer, constant, dtype)
        if scope.row is not None:
            place = _select(scope, scope.row, place)
        scope.fn.declare(f"declare {memory} {name}(ptr, i32 immarg, {guard.type}, {memory})")
        return scope.fn.op(
            f"call {memory} {name}(ptr {place}, i32 {SIZES[dtype]}, {guard.typed}, {memory} zeroinitializer)",
            dtype,
            lanes,
        )
    pointers = []
    for k in range(lanes):
        bit = _lane(scope, guard, k)
        pointers.append(_select(scope, bit, offset(scope, pointer, constant + k * stride, dtype)))
    return collect(scope, dtype, pointers)


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
