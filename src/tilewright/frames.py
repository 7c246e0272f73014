"""What a call of a compiled model needs for itself, so that calls at the same time do not meet.

The machine code is told by a table of addresses where everything lies. Constants and what was packed from them are only read, so all
calls share them. The table, the arena (what lies between the kernels) and the scratch of the threads are a call's own: together a
*frame*. A call takes a frame that no other call has, or makes one, and gives it back. No lock is needed: taking from and adding to
the end of a list are single steps of the interpreter. So a call cannot wait for another, not even for one that it interrupted (a
signal handler) or that a fork has left behind, and as many frames exist as there ever were calls at the same time.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence

from tilewright.compiled import Array, Compiled, ModelError, Slot
from tilewright.schedules.kernel import PAGE, aligned
from tilewright.schedules.write_bounds import NOTE_BYTES

_serials = itertools.count(1)


class IndexOutsideError(ModelError, IndexError):
    """An index that is data lies outside of the tensor that it chooses from: of kernel ``number``, which wanted one below ``limit``."""

    def __init__(self, number: int, index: int, limit: int, where: str = "") -> None:
        super().__init__(number, index, limit, where)
        self.number, self.index, self.limit, self.where = number, index, limit, where

    def __str__(self) -> str:
        return (
            f"{self.where or f'kernel {self.number}'}: expected an index from 0 to {self.limit - 1} (negative ones count from the end, "
            f"where the operator has it so); got {self.index}, which lies outside; the outputs of this call mean nothing"
        )


class Binding:
    """The arrays that calls read and write, kept alive, and the entries of the address table that point to them."""

    __slots__ = ("arrays", "entries", "serial")

    def __init__(self, slots: Sequence[tuple[int, Slot]], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.arrays = {"input": inputs, "output": outputs}
        addresses = {kind: [a.ctypes.data for a in arrays] for kind, arrays in self.arrays.items()}
        self.entries = [(k, addresses[s.kind][s.ref] + s.offset) for k, s in slots]
        self.serial = next(_serials)


class Frame:
    """An address table with its arena and scratch. One call at a time."""

    __slots__ = ("_arena", "_bound", "_note", "_run", "_scratch", "_table", "address")

    def __init__(self, compiled: Compiled, shared: dict[int, int], run: Callable[[int], None]) -> None:
        self._run = run
        self._arena = allocated(compiled.arena_bytes + 64, PAGE, PAGE // 4)
        self._scratch = allocated(compiled.thread_bytes * compiled.target.threads + NOTE_BYTES)
        self._note = (ctypes.c_int64 * 3).from_address(self._scratch.ctypes.data)
        self._note[0] = 0
        self._table = (ctypes.c_void_p * max(1, len(compiled.slots)))()
        self._bound = 0
        """Serial number of the binding that the table points to. (A frame keeps no arrays alive.)"""
        for k, slot in enumerate(compiled.slots):
            if slot.kind == "arena":
                self._table[k] = self._arena.ctypes.data + slot.ref
            elif slot.kind == "thread":
                self._table[k] = self._scratch.ctypes.data
            elif k in shared:
                self._table[k] = shared[k]
        self.address = ctypes.addressof(self._table)

    def call(self, binding: Binding) -> None:
        """One call of the machine code on the arrays of ``binding``."""
        if self._bound != binding.serial:
            for k, address in binding.entries:
                self._table[k] = address
            self._bound = binding.serial
        self._run(self.address)
        if self._note[0]:
            self.outside()

    def outside(self) -> None:
        """Raise IndexOutsideError for what the machine code noted: an index that is data and lies outside of its tensor."""
        number, index, limit = self._note
        self._note[0] = 0
        if number:
            raise IndexOutsideError(number - 1, index, limit)


class Frames:
    """The frames of one model, and the memory that they share."""

    def __init__(self, compiled: Compiled, run: Callable[[int], None]) -> None:
        self._compiled = compiled
        self._run = run
        self._constants = [_copy(c) for c in compiled.constants]
        self._packed = allocated(compiled.packed_bytes + 64)
        self._shared: dict[int, int] = {}
        for k, slot in enumerate(compiled.slots):
            if slot.kind == "constant":
                self._shared[k] = self._constants[slot.ref].ctypes.data + slot.offset
            elif slot.kind == "packed":
                self._shared[k] = self._packed.ctypes.data + slot.ref
        self._slots = [(k, s) for k, s in enumerate(compiled.slots) if s.kind in ("input", "output")]
        self._idle = [Frame(compiled, self._shared, run)]

    def binding(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Binding:
        """Arrays, which must have been checked, as calls take them."""
        return Binding(self._slots, inputs, outputs)

    def prepare(self, run: Callable[[int], None]) -> None:
        """Fill what is packed from constants, by the model's function for that; once, before any call."""
        run(self._idle[0].address)
        self._idle[0].outside()

    def call(self, binding: Binding) -> None:
        """One call, in a frame of its own. Raises ModelError if another call is running and there is no memory for a second one, and
        IndexOutsideError."""
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = Frame(self._compiled, self._shared, self._run)
        try:
            frame.call(binding)
        finally:
            self._idle.append(frame)


def allocated(nbytes: int, align: int = 64, offset: int = 0) -> Array:
    """Uninitialised memory. Raises ModelError if there is not as much."""
    try:
        return aligned(nbytes, align, offset)
    except (MemoryError, ValueError) as error:  # ValueError: more than an address can count
        raise ModelError(f"not enough memory for the model: it needs {nbytes} bytes in one piece ({error})") from error


def _copy(a: Array) -> Array:
    copy: Array = allocated(max(1, a.nbytes)).view(a.dtype)[: a.size].reshape(a.shape)
    copy[...] = a
    return copy
