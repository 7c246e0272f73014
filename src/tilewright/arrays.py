"""The arrays that callers bring: what a model takes, and a refusal by name for everything else.

Machine code reads and writes where it is told to. So whatever could make it touch other memory than the caller means (another
shape, type or byte order, gaps between elements, memory that may not be written, an output that lies over something else) is
refused here, before an address is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.compiled import Array, ModelError, Port
from tilewright.graph.dtypes import numpy_dtype

_dtype = functools.cache(numpy_dtype)
_REFUSED_EXPORT = (BufferError, RuntimeError, TypeError, ValueError, AttributeError)
"""What libraries raise for a tensor that they do not export: one of another device, of a type that NumPy lacks, or one that needs
gradients."""


def as_input(port: Port, value: object) -> Array:
    """``value`` (a NumPy array or scalar, or anything that exports DLPack from the CPU) as an aligned contiguous array of exactly
    the port's shape and data type; copied only if it is not contiguous or not aligned. Raises ModelError."""
    if type(value) is not np.ndarray:
        value = _plain(port, value)
    if value.shape != port.shape or value.dtype != _dtype(port.dtype):
        raise ModelError(
            f"input {port.name!r}: expected {port.dtype} of shape {port.shape}; got {value.dtype} of shape {value.shape}"
        )
    # (np.ascontiguousarray would make a scalar one-dimensional)
    return value if _readable(value) else np.array(value, order="C")


def check_bound(inputs: Sequence[tuple[Port, object]], outputs: Sequence[tuple[Port, object]]) -> None:
    """Refuse, with ModelError, arrays that machine code cannot work on as they are: inputs and outputs have to be contiguous arrays
    of the right shapes and types, outputs writable, at a multiple of 64 bytes, and apart from all others."""
    spans: list[tuple[int, int, bool, str]] = []
    for is_output, given in ((False, inputs), (True, outputs)):
        for port, a in given:
            where = f"{'output' if is_output else 'input'} {port.name!r}"
            _check_one(where, port, a, is_output)
            assert isinstance(a, np.ndarray)
            spans.append((a.ctypes.data, a.ctypes.data + a.nbytes, is_output, where))
    _check_apart(sorted(spans))


def _plain(port: Port, value: object) -> Array:
    """An array of NumPy's own class over the same memory."""
    where = f"input {port.name!r}"
    if isinstance(value, np.ma.MaskedArray):
        raise ModelError(
            f"{where}: expected an array without a mask, which would be ignored; pass value.filled(…) or value.data"
        )
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        raise ModelError(f"{where}: expected a NumPy array or a DLPack tensor; got {type(value).__name__}")
    try:
        return np.from_dlpack(value)
    except _REFUSED_EXPORT as error:
        raise ModelError(
            f"{where}: expected a DLPack tensor in the memory of the CPU, of a data type that NumPy has and without gradients; "
            f"{type(value).__name__} does not export one ({error})"
        ) from error


def _readable(a: Array) -> bool:
    flags = a.flags
    return flags.c_contiguous and flags.aligned


def _check_one(where: str, port: Port, a: object, is_output: bool) -> None:
    if not isinstance(a, np.ndarray) or isinstance(a, np.ma.MaskedArray):
        raise ModelError(f"{where}: expected a NumPy array; got {type(a).__name__}")
    if a.shape != port.shape or a.dtype != _dtype(port.dtype) or not _readable(a):
        kind = "" if _readable(a) else ", not contiguous" if a.flags.aligned else ", not aligned"
        raise ModelError(
            f"{where}: expected a contiguous {port.dtype} array of shape {port.shape}; got {a.dtype} of shape {a.shape}{kind}"
        )
    if not is_output:
        return
    if not a.flags.writeable:
        raise ModelError(f"{where}: expected an array that may be written; got a read-only one")
    if a.ctypes.data % 64:
        raise ModelError(f"{where}: expected memory at a 64-byte boundary; use Executable.allocate()")


def _check_apart(spans: Iterable[tuple[int, int, bool, str]]) -> None:
    """``spans`` are (begin, end, is output, name), in order. Inputs may share memory with each other, outputs with nothing."""
    reach = {True: (0, ""), False: (0, "")}
    """For outputs, and for all: how far those seen so far reach, and the name of the one that does."""
    for begin, end, is_output, where in spans:
        other_end, other = reach[not is_output]
        if begin < other_end:
            raise ModelError(
                f"{where}: expected memory of its own; it shares memory with {other}: an output must not lie over anything else"
            )
        for for_outputs in (True, False) if is_output else (False,):
            reach[for_outputs] = max(reach[for_outputs], (end, where))
