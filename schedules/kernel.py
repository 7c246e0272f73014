"""A workload, a schedule and a target: a callable kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.stage import TensorType
from tilewright.graph.workload import Workload
from tilewright.schedules import jit
from tilewright.schedules.apply import apply
from tilewright.schedules.lower import Layout, Lowered, lower, module
from tilewright.schedules.nest import Program
from tilewright.schedules.steps import Schedule
from tilewright.schedules.target import Target
from tilewright.schedules.write_bounds import NOTE_BYTES

NAME = "kernel"


@dataclass(frozen=True)
class Built:
    """Text of one kernel: its loop program and its LLVM IR."""

    workload: Workload
    schedule: Schedule
    target: Target
    program: Program
    lowered: Lowered

    @property
    def layout(self) -> Layout:
        """What the kernel's ``args`` point to."""
        return self.lowered.layout


def build(workload: Workload, schedule: Schedule, target: Target, name: str = NAME, number: int = 0) -> Built:
    """Apply and lower a schedule; ``number`` tells the kernel from others of a model. Raises ScheduleError if the schedule does not
    fit the workload."""
    program = apply(workload, schedule)
    return Built(workload, schedule, target, program, lower(program, name, target.threads, number))


def aligned(nbytes: int, align: int = 64, offset: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Uninitialised bytes with some slack behind, at an address that is ``offset`` past a multiple of ``align``."""
    raw = np.empty(nbytes + 2 * align + offset + 64, dtype=np.uint8)
    start = -raw.ctypes.data % align + offset
    return raw[start : start + nbytes]


def aligned_copy(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A contiguous copy at a multiple of 64 bytes, where measurements have their inputs and constants: elsewhere every second
    vector lies in two cache lines, and a kernel may take a fifth longer."""
    out: np.ndarray[Any, Any] = aligned(max(a.nbytes, a.itemsize)).view(a.dtype)[: a.size].reshape(a.shape)
    out[...] = a
    return out


PAGE = 4096
OUTPUT_OFFSET = PAGE // 2 + 64
"""Where outputs begin in a page. Arrays of callers mostly begin near the start of one; a store whose address equals that of a load
that follows in the last twelve bits makes the load wait."""


def output_array(t: TensorType) -> np.ndarray[Any, Any]:
    """A fresh array for an output."""
    raw = aligned(max(1, t.nbytes), PAGE, OUTPUT_OFFSET)
    return raw.view(numpy_dtype(t.dtype)).reshape(t.shape)


class Kernel:
    """Machine code of one workload with its scratch buffers. Not thread-safe: one call at a time."""

    def __init__(self, built: Built) -> None:
        self.built = built
        text = module([built.lowered])
        self.code = jit.compile_text(text, built.target)
        self._run = self.code.function(NAME)
        self._prepare = self.code.function(f"{NAME}.prepare")
        layout = built.layout
        w = built.workload
        self._external = {n for n, _, _ in w.inputs} | {w.output}
        self._own = {
            n: aligned(size) for n, size in zip(layout.names, layout.nbytes, strict=True) if n not in self._external
        }
        self._thread = aligned(NOTE_BYTES + layout.thread_bytes * built.target.threads)
        self._args = (ctypes.c_void_p * (len(layout.names) + 1))()
        self._args[len(layout.names)] = self._thread.ctypes.data
        for k, n in enumerate(layout.names):
            if n in self._own:
                self._args[k] = self._own[n].ctypes.data
        self._keep: dict[str, Any] = {}

    @property
    def args_address(self) -> int:
        """Address of the bound ``args``, for a timing loop in machine code."""
        return ctypes.addressof(self._args)

    def bind(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Point the kernel at contiguous arrays for its inputs and its output, and pack constants. Raises ValueError for
        any other array, and then binds nothing."""
        given: dict[str, np.ndarray[Any, Any]] = {}
        for n in (n for n in self.built.layout.names if n in self._external):
            if n not in arrays:
                raise ValueError(f"tensor {n}: expected an array; got nothing")
            a, expected = arrays[n], self.built.workload.types[n]
            writable = a.flags.writeable or n != self.built.workload.output
            right = tuple(a.shape) == expected.shape and a.dtype == numpy_dtype(expected.dtype)
            if not right or not a.flags.c_contiguous or not writable:
                raise ValueError(
                    f"tensor {n}: expected a contiguous {expected.dtype} array of shape {expected.shape} that, if it is the output, "
                    f"may be written; got {a.dtype} {tuple(a.shape)}"
                )
            given[n] = a
        for k, n in enumerate(self.built.layout.names):
            if n in given:
                self._args[k] = given[n].ctypes.data
        self._keep = given
        self._prepare(self.args_address)

    def run(self) -> None:
        """One call on the bound arrays. Raises ValueError if nothing is bound."""
        if not self._keep:
            raise ValueError("kernel: expected bound arrays; call bind first")
        self._run(self.args_address)

    def __call__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Bind inputs, allocate the output, run."""
        t = self.built.workload.types[self.built.workload.output]
        out = output_array(t)
        self.bind({**arrays, self.built.workload.output: out})
        self.run()
        return out
