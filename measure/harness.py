"""A built kernel with buffers of its own: whatever it may write is poisoned and lies between guard bands."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.graph import Array
from tilewright.measure.timing import Subject
from tilewright.schedules import jit
from tilewright.schedules.kernel import NAME, Built
from tilewright.schedules.write_bounds import NOTE_BYTES

GUARD = 4096
CANARY = 0xC5
_PAGE = 4096
_STAGGER = 5 * 64


@final
class Guarded:
    """Bytes between two guard bands.

    ``turn`` staggers the buffers of a kernel within a page, always in the same way: equal offsets would make
    loads and stores of different buffers collide, and accidental ones would make times differ by accident.
    """

    def __init__(self, nbytes: int, turn: int = 0) -> None:
        offset = turn * _STAGGER % _PAGE
        raw = np.empty(nbytes + 2 * GUARD + 2 * _PAGE, dtype=np.uint8)
        start = -raw.ctypes.data % _PAGE + GUARD + offset
        self._before = raw[start - GUARD : start]
        self._after = raw[start + nbytes : start + nbytes + GUARD]
        self.data = raw[start : start + nbytes]
        self._before.fill(CANARY)
        self._after.fill(CANARY)

    @property
    def address(self) -> int:
        """Address of the first byte between the bands (a multiple of 64)."""
        return int(self.data.ctypes.data)

    def damage(self) -> str | None:
        """Where a guard band was written to, or None."""
        for band, where, base in (
            (self._before, "before", -GUARD),
            (self._after, "behind", self.data.nbytes),
        ):
            wrong = np.flatnonzero(band != CANARY)
            if wrong.size:
                return f"{wrong.size} bytes {where} it were written to, the first at byte {base + int(wrong[0])}"
        return None


@final
class Bound:
    """One set of buffers bound to a kernel's ``args``."""

    def __init__(self, harness: Harness, inputs: Mapping[str, Array], shared: Mapping[str, Guarded]) -> None:
        self.inputs = inputs
        layout = harness.built.layout
        output = harness.built.workload.output
        self._args = (ctypes.c_void_p * (len(layout.names) + 1))()
        self._written = dict(shared)
        for k, (name, size) in enumerate(zip(layout.names, layout.nbytes, strict=True)):
            if name in inputs:
                self._args[k] = inputs[name].ctypes.data
                continue
            if name not in self._written:
                self._written[name] = Guarded(size, k)
            self._args[k] = self._written[name].address
        self._args[len(layout.names)] = self._written[_SCRATCH].address
        t = harness.built.workload.types[output]
        self.output: Array = self._written[output].data.view(numpy_dtype(t.dtype)).reshape(t.shape)

    @property
    def address(self) -> int:
        """Address of ``args``."""
        return ctypes.addressof(self._args)

    def poison(self, byte: int) -> None:
        """Fill everything the kernel may write; floating-point outputs become NaN."""
        for buffer in self._written.values():
            buffer.data.fill(byte)
        if self.output.dtype.kind == "f":
            self.output.fill(np.nan)

    def damage(self) -> str | None:
        """The first buffer whose guard bands are not intact, or None."""
        for name, buffer in self._written.items():
            found = buffer.damage()
            if found:
                return f"buffer {name} of {buffer.data.nbytes} bytes: {found}"
        return None


_SCRATCH = "thread scratch"


@final
class Harness:
    """Machine code of a kernel. Raises CompileError if LLVM refuses the text."""

    def __init__(self, built: Built, text: str) -> None:
        self.built = built
        self._code = jit.compile_text(text, built.target)
        self.function = self._code.address(NAME)
        self._run = self._code.function(NAME)
        self._prepare = self._code.function(f"{NAME}.prepare")

    def bind(self, inputs: Mapping[str, Array], shared: Mapping[str, Guarded] | None = None) -> Bound:
        """New buffers for everything but the inputs (and but ``shared``)."""
        buffers = dict(shared or {})
        if _SCRATCH not in buffers:
            layout = self.built.layout
            buffers[_SCRATCH] = Guarded(NOTE_BYTES + layout.thread_bytes * self.built.target.threads, len(layout.names))
        return Bound(self, inputs, buffers)

    def prepare(self, bound: Bound) -> None:
        """Pack the constants."""
        self._prepare(bound.address)

    def run(self, bound: Bound) -> None:
        """One call."""
        self._run(bound.address)

    def subject(self, bound: Bound) -> Subject:
        """What a clock takes, for one set of buffers."""
        return Subject(self.function, (bound.address,))

    def rotating(self, inputs: Mapping[str, Array], copies: int) -> tuple[Subject, list[Bound]]:
        """A subject that walks through copies of all tensors; the buffers must be kept while it is used."""
        scratch = {_SCRATCH: self.bind(inputs)._written[_SCRATCH]}
        sets: list[Bound] = []
        for _ in range(copies):
            copied: dict[str, Any] = {}
            for k, (name, value) in enumerate(inputs.items()):
                buffer = Guarded(value.nbytes, k)
                copied[name] = buffer.data.view(value.dtype).reshape(value.shape)
                copied[name][...] = value
            bound = self.bind(copied, scratch)
            self.prepare(bound)
            self.run(bound)  # so that the pages are there, and every output can be looked at afterwards
            sets.append(bound)
        return Subject(self.function, tuple(b.address for b in sets)), sets
