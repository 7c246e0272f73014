"""A compiled model as data: what its machine code expects, and what people want to know about it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from tilewright.schedules.target import Target

Array = NDArray[Any]


class ModelError(ValueError):
    """A compiled model that cannot be used, or arrays that it does not take: the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as callers see it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Slot:
    """What one entry of the address table points to: ``kind`` is ``input``, ``output`` or ``constant`` (``ref`` is its index, and
    the address is ``offset`` bytes into it), or ``arena``, ``packed`` or ``thread`` (``ref`` is a byte offset)."""

    kind: str
    ref: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One kernel of the model, for reports. ``source`` is ``record`` or ``default``."""

    name: str
    origin: str
    workload: str
    describe: str
    schedule: str
    source: str
    why: str


@dataclass(frozen=True)
class Compiled:
    """Everything but the machine code: what a model file holds."""

    target: Target
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    slots: tuple[Slot, ...]
    kernels: tuple[KernelInfo, ...]
    arena_bytes: int
    packed_bytes: int
    thread_bytes: int
    constants: tuple[Array, ...]
    object_code: bytes

    def coverage(self) -> tuple[int, int]:
        """Kernels that run a tuned record, and all kernels."""
        return sum(k.source != "default" for k in self.kernels), len(self.kernels)

    @cached_property
    def contract(self) -> str:
        """64 hexadecimal digits over all that the machine code relies on: what every address points to and how large that is, and the
        processor. The code carries them, so that it never runs with a description that is not its own."""
        relied_on = {
            "triple": self.target.triple,
            "features": self.target.features,
            "threads": self.target.threads,
            "inputs": [asdict(p) for p in self.inputs],
            "outputs": [asdict(p) for p in self.outputs],
            "slots": [[s.kind, s.ref, s.offset] for s in self.slots],
            "bytes": [self.arena_bytes, self.packed_bytes, self.thread_bytes],
            "constants": [[list(c.shape), c.dtype.str] for c in self.constants],
        }
        return hashlib.sha256(json.dumps(relied_on, sort_keys=True).encode()).hexdigest()
