"""A compiled model in memory: one machine-code function over one table of addresses.

The table has the arguments of every kernel in turn: constants, what lies between the kernels, and the model's inputs and outputs.
There is no Python between kernels. What calls share and what each has for itself is in :mod:`tilewright.frames`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.arrays import as_input, check_bound
from tilewright.compiled import Array, Compiled, ModelError, Port
from tilewright.frames import Binding, Frames, IndexOutsideError
from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.stage import TensorType
from tilewright.measure import shortage
from tilewright.model_file import read, save
from tilewright.schedules import jit
from tilewright.schedules.kernel import aligned_copy, output_array
from tilewright.schedules.target import Target

MODEL = "tw_model"
PREPARE = "tw_prepare"
CONTRACT = "tw_contract"
"""Name of the 64 characters in the object code that say which description it belongs to (:attr:`Compiled.contract`)."""


class Executable:
    """A callable model: ``(y,) = model(x)``. Threads may share it: calls at the same time each have memory of their own for what lies
    between the kernels.

    Raises ModelError for a model whose code needs what this machine lacks, or more memory than it has, or does not belong to the
    description it came with.
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
        lacking = shortage(
            {
                "what lies between the kernels": compiled.arena_bytes,
                "packed constants": compiled.packed_bytes,
                "constants": sum(c.nbytes for c in compiled.constants),
                f"scratch of {compiled.target.threads} threads": compiled.thread_bytes * compiled.target.threads,
                "inputs and outputs": sum(
                    TensorType(p.shape, p.dtype).nbytes for p in compiled.inputs + compiled.outputs
                ),
            }
        )
        if lacking:
            raise ModelError(f"the model {lacking}; give smaller shapes or fewer threads, or use a larger machine")
        self._code = _load(compiled)
        self._frames = Frames(compiled, self._code.function(MODEL))
        try:
            self._frames.prepare(self._code.function(PREPARE))
        except IndexOutsideError as error:
            raise self._named(error) from None
        self._names = frozenset(p.name for p in compiled.inputs)
        self._output_types = [TensorType(p.shape, p.dtype) for p in compiled.outputs]
        self._mine = threading.local()
        """``binding``: what this thread has bound."""

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
        if not isinstance(inputs, Mapping):
            raise ModelError(f"inputs: expected arrays by name; got {type(inputs).__name__}")
        if inputs.keys() != self._names:
            missing = [p.name for p in self.inputs if p.name not in inputs]
            unknown = [name for name in inputs if name not in self._names]
            raise ModelError(f"inputs: missing {missing}, unknown {unknown}; expected {[p.name for p in self.inputs]}")
        arrays = [as_input(p, inputs[p.name]) for p in self.inputs]
        outputs = self.allocate()
        self._call(self._frames.binding(arrays, outputs))
        return outputs

    def allocate(self) -> list[Array]:
        """Fresh output arrays, aligned as :meth:`bind` needs them."""
        return [output_array(t) for t in self._output_types]

    def allocate_inputs(self) -> list[Array]:
        """Fresh input arrays of zeros, aligned as those that records were measured on; to be filled and given to :meth:`bind`, or
        to a call. Others are as right, but a kernel may take a fifth longer on them."""
        return [aligned_copy(np.zeros(p.shape, numpy_dtype(p.dtype))) for p in self.inputs]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Point the calling thread's :meth:`invoke` at contiguous arrays of the right shapes and types, outputs writable, apart from
        all others and at 64-byte boundaries (:meth:`allocate` makes such). The arrays are kept alive. What other threads have bound,
        and calls with arrays of their own, are not touched. Raises ModelError for any other array, and then binds nothing."""
        for kind, ports, arrays in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            if len(arrays) != len(ports):
                raise ModelError(f"bind: expected {len(ports)} {kind} arrays; got {len(arrays)}")
        check_bound(list(zip(self.inputs, inputs, strict=True)), list(zip(self.outputs, outputs, strict=True)))
        self._mine.binding = self._frames.binding(tuple(inputs), tuple(outputs))

    def invoke(self) -> None:
        """One call of the machine code on what this thread has bound. Raises ModelError if it has bound nothing."""
        try:
            binding: Binding = self._mine.binding
        except AttributeError:
            raise ModelError("invoke: expected arrays bound by this thread; call bind(inputs, outputs) first") from None
        self._call(binding)

    def _call(self, binding: Binding) -> None:
        try:
            self._frames.call(binding)
        except IndexOutsideError as error:
            raise self._named(error) from None

    def _named(self, error: IndexOutsideError) -> IndexOutsideError:
        """The error with the operator whose index it is."""
        found = next((k for k in self.compiled.kernels if k.name == f"k{error.number}"), None)
        where = f"{found.origin} ({found.describe})" if found is not None else "what is computed once"
        return IndexOutsideError(error.number, error.index, error.limit, where)

    def time(self, min_seconds: float = 0.3, min_calls: int = 5) -> float:
        """Median seconds of a call on what this thread has bound (on random arrays, aligned as :meth:`allocate_inputs` aligns them,
        which do not stay bound, if that is nothing), over at least ``min_calls`` calls and ``min_seconds`` seconds. Bind two models
        to the same inputs before you compare their times."""
        binding: Binding | None = getattr(self._mine, "binding", None)
        if binding is None:
            rng = np.random.default_rng(0)
            binding = self._frames.binding([random_input(p, rng) for p in self.inputs], self.allocate())
        self._call(binding)
        samples: list[float] = []
        start = time.perf_counter()
        while len(samples) < min_calls or time.perf_counter() - start < min_seconds:
            before = time.perf_counter()
            self._call(binding)
            samples.append(time.perf_counter() - before)
        return float(np.median(samples))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a model file (``.tw``); an existing one is replaced as a whole. Raises ModelError if it cannot be written."""
        save(self.compiled, path)


def _load(compiled: Compiled) -> jit.Code:
    """The machine code of a model, if it is that of its description."""
    try:
        code = jit.load_object(compiled.object_code, compiled.target, (MODEL, PREPARE, CONTRACT))
    except jit.CompileError as error:
        raise ModelError(f"the machine code of the model cannot be loaded: {error}") from error
    carried = code.data(CONTRACT, len(compiled.contract))
    if carried != compiled.contract.encode():
        raise ModelError(
            f"the machine code of the model belongs to another description (its contract is {carried[:16]!r}…, expected "
            f"{compiled.contract[:16]}…); compile it again"
        )
    return code


def random_input(port: Port, rng: np.random.Generator) -> Array:
    """A plausible array for an input, aligned as :meth:`Executable.allocate_inputs` aligns them: normal floats, small
    non-negative integers."""
    if port.dtype in ("float32", "float64"):
        return aligned_copy(np.asarray(rng.standard_normal(port.shape), numpy_dtype(port.dtype)))
    return aligned_copy(np.asarray(rng.integers(0, 2, port.shape), numpy_dtype(port.dtype)))


def missing_features(model: Target, host: Target) -> list[str]:
    """What code for ``model`` needs and ``host`` lacks: instruction sets, or another architecture altogether."""
    if model.arch != host.arch:
        return [f"architecture {model.arch}"]
    have = {f for f in host.features if f.startswith("+")}
    return [f for f in model.features if f.startswith("+") and f not in have]


def load(path: str | os.PathLike[str]) -> Executable:
    """Read a model file. Raises ModelError if it is none, is damaged, or was compiled for another machine."""
    return Executable(read(path))
