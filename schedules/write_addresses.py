"""Write addresses, and reads at an address.

An address is a pointer for the part that changes from loop to loop, shared by all accesses that differ in a constant
only, and a constant offset, which costs nothing. A guarded load selects its *pointer*: where the guard fails it reads
from a block of zeros, so nothing outside a tensor is ever touched and no branch is needed.
"""

from __future__ import annotations

from tilewright.graph.affine import Affine
from tilewright.graph.dtypes import SIZES
from tilewright.schedules.emit import Value, memory_type, splat_literal, suffix, vector_type
from tilewright.schedules.write_scope import Key, Scope

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
    return gathered(scope, [read(scope, dtype, p, 1) for p in pointers])


def gathered(scope: Scope, values: list[Value]) -> Value:
    """Scalars as one vector."""
    out = Value("poison", values[0].dtype, len(values))
    for k, v in enumerate(values):
        out = scope.fn.op(f"insertelement {out.typed}, {v.typed}, i64 {k}", v.dtype, len(values))
    return out


def masked(scope: Scope, dtype: str, pointer: str, constant: int, stride: int, guard: Value) -> Value:
    """Loads under a guard that differs from lane to lane."""
    lanes = guard.lanes
    if stride == 1 and dtype != "bool":
        least = MASKED_BYTES // SIZES[dtype]
        if SIZES[dtype] >= 4 and lanes < least:  # narrower ones become branches
            wide = scope.fn.shuffle(
                guard, Value(splat_literal(False, "bool", lanes), "bool", lanes), [min(k, lanes) for k in range(least)]
            )
            return scope.fn.shuffle(masked(scope, dtype, pointer, constant, stride, wide), None, list(range(lanes)))
        place = offset(scope, pointer, constant, dtype)
        return masked_vector(scope, dtype, place if scope.row is None else select(scope, scope.row, place), guard)
    pointers = []
    for k in range(lanes):
        bit = lane_of(scope, guard, k)
        pointers.append(select(scope, bit, offset(scope, pointer, constant + k * stride, dtype)))
    return collect(scope, dtype, pointers)


def masked_vector(scope: Scope, dtype: str, place: str, guard: Value) -> Value:
    """A vector of neighbours, each of which is read where its lane of ``guard`` is true."""
    memory = vector_type(memory_type(dtype), guard.lanes)
    name = f"@llvm.masked.load.{suffix(dtype, guard.lanes)}.p0"
    scope.fn.declare(f"declare {memory} {name}(ptr, i32 immarg, {guard.type}, {memory})")
    return scope.fn.op(
        f"call {memory} {name}(ptr {place}, i32 {SIZES[dtype]}, {guard.typed}, {memory} zeroinitializer)",
        dtype,
        guard.lanes,
    )


def whole_guard(scope: Scope) -> Value | None:
    """The guard with the condition of all lanes in it."""
    if scope.row is None or scope.guard is None:
        return scope.guard
    row = scope.fn.splat(scope.row, scope.guard.lanes)
    return scope.fn.op(f"and {scope.guard.typed}, {row.name}", "bool", scope.guard.lanes)


def guarded(scope: Scope, pointer: str, lane: int = 0) -> str:
    """``pointer``, or that of zeros where the guard of ``lane`` fails."""
    return pointer if scope.guard is None else select(scope, lane_of(scope, scope.guard, lane), pointer)


def select(scope: Scope, bit: Value, pointer: str) -> str:
    return scope.fn.op(f"select {bit.typed}, ptr {pointer}, ptr {ZEROS}", "int64").name


def lane_of(scope: Scope, v: Value, k: int) -> Value:
    return v if v.lanes == 1 else scope.fn.op(f"extractelement {v.typed}, i64 {k}", v.dtype)
