"""A compiled model in memory: one machine-code function over one arena.

The function takes a table of addresses (the arguments of every kernel in turn). The addresses of constants and of the arena are
filled in once; the entries of the model's inputs and outputs are patched when a call brings other arrays. There is no Python
between kernels.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.compiled import Array, Compiled, ModelError, Port, read, save
from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.stage import TensorType
from tilewright.schedules import jit
from tilewright.schedules.kernel import PAGE, aligned, aligned_copy, output_array
from tilewright.schedules.target import Target

MODEL = "tw_model"
PREPARE = "tw_prepare"


class Executable:
    """A callable model: ``(y,) = model(x)``. One call at a time: calls share the memory of what lies between the kernels.

    Raises ModelError for a model whose code needs what this machine lacks.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        host = Target.host(compiled.target.threads)
        missing = missing_features(compiled.target, host)
        if missing:
            raise ModelError(
                f"model compiled for {compiled.target.name} ({compiled.target.cpu}): this machine ({host.cpu}) lacks "
                f"{', '.join(missing)}; compile it for this machine"
            )
        self._code = jit.load_object(compiled.object_code, compiled.target)
        self._run = self._code.function(MODEL)
        self._table = (ctypes.c_void_p * max(1, len(compiled.slots)))()
        self._arena = aligned(compiled.arena_bytes + 64, PAGE, PAGE // 4)
        self._packed = aligned(compiled.packed_bytes + 64)
        self._thread = aligned(compiled.thread_bytes * compiled.target.threads + 64)
        self._constants = [aligned_copy(c) for c in compiled.constants]
        self._entries: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for k, slot in enumerate(compiled.slots):
            if slot.kind == "constant":
                self._table[k] = self._constants[slot.ref].ctypes.data + slot.offset
            elif slot.kind == "arena":
                self._table[k] = self._arena.ctypes.data + slot.ref
            elif slot.kind == "packed":
                self._table[k] = self._packed.ctypes.data + slot.ref
            elif slot.kind == "thread":
                self._table[k] = self._thread.ctypes.data
            else:
                self._entries.setdefault((slot.kind, slot.ref), []).append((k, slot.offset))
        self._address = ctypes.addressof(self._table)
        self._bound: dict[tuple[str, int], Array] = {}
        self._code.function(PREPARE)(self._address)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Inputs in order."""
        return self.compiled.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Outputs in order."""
        return self.compiled.outputs

    def __call__(self, *args: object, **named: object) -> list[Array]:
        """Run on arrays (NumPy, or anything that exports DLPack), by position or by name; returns fresh output arrays.

        Raises ModelError if an input is missing, unknown, or of another shape or data type.
        """
        names = [p.name for p in self.inputs]
        if len(args) > len(names):
            raise ModelError(f"expected {len(names)} inputs ({', '.join(names)}); got {len(args)}")
        given: dict[str, object] = dict(zip(names, args, strict=False))
        for n, a in named.items():
            if n not in names or n in given:
                raise ModelError(f"input {n!r}: expected one of {names}, each once")
            given[n] = a
        return self.run(given)

    def run(self, inputs: Mapping[str, object]) -> list[Array]:
        """Run on arrays by name (names that are no Python identifiers too); returns fresh output arrays. Raises as a call does."""
        missing = [p.name for p in self.inputs if p.name not in inputs]
        unknown = sorted(set(inputs) - {p.name for p in self.inputs})
        if missing or unknown:
            raise ModelError(f"inputs: missing {missing}, unknown {unknown}; expected {[p.name for p in self.inputs]}")
        outputs = self.allocate()
        self.bind([_checked(p, inputs[p.name]) for p in self.inputs], outputs)
        self.invoke()
        return outputs

    def allocate(self) -> list[Array]:
        """Fresh output arrays, aligned as :meth:`bind` needs them."""
        return [output_array(TensorType(p.shape, p.dtype)) for p in self.outputs]

    def allocate_inputs(self) -> list[Array]:
        """Fresh input arrays of zeros, aligned as those that records were measured on; to be filled and given to :meth:`bind`, or
        to a call. Others are as right, but a kernel may take a fifth longer on them."""
        return [aligned_copy(np.zeros(p.shape, numpy_dtype(p.dtype))) for p in self.inputs]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Point the model at contiguous arrays of the right shapes and types, outputs at 64-byte boundaries (:meth:`allocate`
        makes such); :meth:`invoke` then runs on them. Raises ModelError for any other array."""
        for kind, ports, arrays in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            if len(arrays) != len(ports):
                raise ModelError(f"bind: expected {len(ports)} {kind} arrays; got {len(arrays)}")
            for k, (port, a) in enumerate(zip(ports, arrays, strict=True)):
                if tuple(a.shape) != port.shape or a.dtype != numpy_dtype(port.dtype) or not a.flags.c_contiguous:
                    raise ModelError(
                        f"{kind} {port.name!r}: expected a contiguous {port.dtype} array of shape {port.shape}; got {a.dtype} "
                        f"of shape {tuple(a.shape)}"
                    )
                if kind == "output" and a.ctypes.data % 64:
                    raise ModelError(
                        f"output {port.name!r}: expected memory at a 64-byte boundary; use Executable.allocate()"
                    )
                self._bound[kind, k] = a
                for entry, offset in self._entries.get((kind, k), []):
                    self._table[entry] = a.ctypes.data + offset

    def invoke(self) -> None:
        """One call of the machine code on what is bound."""
        self._run(self._address)

    def time(self, min_seconds: float = 0.3, min_calls: int = 5) -> float:
        """Median seconds of a call on the bound arrays (random ones, aligned as :meth:`allocate_inputs` aligns them, if nothing is
        bound), over at least ``min_calls`` calls and ``min_seconds`` seconds. Bind two models to the same inputs before you compare
        their times."""
        if not self._bound:
            rng = np.random.default_rng(0)
            self.bind([random_input(p, rng) for p in self.inputs], self.allocate())
        self.invoke()
        samples: list[float] = []
        start = time.perf_counter()
        while len(samples) < min_calls or time.perf_counter() - start < min_seconds:
            before = time.perf_counter()
            self.invoke()
            samples.append(time.perf_counter() - before)
        return float(np.median(samples))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (``.tw``); an existing one is replaced as a whole. Raises ModelError if it cannot be written."""
        save(self.compiled, path)


def random_input(port: Port, rng: np.random.Generator) -> Array:
    """A plausible array for an input, aligned as :meth:`Executable.allocate_inputs` aligns them: normal floats, small
    non-negative integers."""
    if port.dtype in ("float32", "float64"):
        return aligned_copy(np.asarray(rng.standard_normal(port.shape), numpy_dtype(port.dtype)))
    return aligned_copy(rng.integers(0, 2, port.shape).astype(numpy_dtype(port.dtype)))


def _checked(port: Port, value: object) -> Array:
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise ModelError(
                f"input {port.name!r}: expected a NumPy array or a DLPack tensor; got {type(value).__name__}"
            )
        value = np.from_dlpack(value)
    if tuple(value.shape) != port.shape or value.dtype != numpy_dtype(port.dtype):
        raise ModelError(
            f"input {port.name!r}: expected {port.dtype} of shape {port.shape}; got {value.dtype} of shape {tuple(value.shape)}"
        )
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)  # (a scalar would become one-dimensional)


def missing_features(model: Target, host: Target) -> list[str]:
    """What code for ``model`` needs and ``host`` lacks: instruction sets, or another architecture altogether."""
    if model.arch != host.arch:
        return [f"architecture {model.arch}"]
    have = {f for f in host.features if f.startswith("+")}
    return [f for f in model.features if f.startswith("+") and f not in have]


def load(path: str | os.PathLike[str]) -> Executable:
    """Read a model file. Raises ModelError if it is none, is damaged, or was compiled for another machine."""
    return Executable(read(path))
