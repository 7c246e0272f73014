"""A compiled model as data, and the file that it is kept in.

The model file (``.tw``) is a zip of plain parts: ``model.json``, ``code.o``, ``constants.npz``; never a pickle.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.files import WriteError, replacing
from tilewright.schedules.target import Target

Array = NDArray[Any]
FORMAT = 2


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


def save(compiled: Compiled, path: str | os.PathLike[str]) -> None:
    """Write a model file; an existing one is replaced only once the new one is complete. Raises ModelError if it cannot be written."""
    meta = {
        "format": FORMAT,
        "target": json.loads(compiled.target.to_json()),
        "inputs": [asdict(p) for p in compiled.inputs],
        "outputs": [asdict(p) for p in compiled.outputs],
        "slots": [[s.kind, s.ref, s.offset] for s in compiled.slots],
        "kernels": [asdict(k) for k in compiled.kernels],
        "arena_bytes": compiled.arena_bytes,
        "packed_bytes": compiled.packed_bytes,
        "thread_bytes": compiled.thread_bytes,
        "constants": len(compiled.constants),
    }
    arrays = io.BytesIO()
    np.savez(arrays, *compiled.constants)
    try:
        with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as z:
            z.writestr("model.json", json.dumps(meta, indent=1))
            z.writestr("code.o", compiled.object_code)
            z.writestr("constants.npz", arrays.getvalue())
    except WriteError as error:
        raise ModelError(str(error)) from error


def read(path: str | os.PathLike[str]) -> Compiled:
    """Read a model file. Raises ModelError if it is none, is damaged, or has another format."""
    try:
        with zipfile.ZipFile(path) as z:
            meta = json.loads(z.read("model.json"))
            code = z.read("code.o")
            with np.load(io.BytesIO(z.read("constants.npz")), allow_pickle=False) as arrays:
                constants = tuple(arrays[f"arr_{k}"] for k in range(meta["constants"]))
    except OSError as error:
        raise ModelError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelError(
            f"{os.fspath(path)}: expected a model file written by 'tilewright compile'; it is damaged or something else "
            f"({error})"
        ) from error
    if meta.get("format") != FORMAT:
        raise ModelError(
            f"{os.fspath(path)}: expected model format {FORMAT}; got {meta.get('format')!r}; compile it again"
        )
    return Compiled(
        Target.from_json(json.dumps(meta["target"])),
        tuple(Port(p["name"], tuple(p["shape"]), p["dtype"]) for p in meta["inputs"]),
        tuple(Port(p["name"], tuple(p["shape"]), p["dtype"]) for p in meta["outputs"]),
        tuple(Slot(*slot) for slot in meta["slots"]),
        tuple(KernelInfo(**k) for k in meta["kernels"]),
        meta["arena_bytes"],
        meta["packed_bytes"],
        meta["thread_bytes"],
        constants,
        code,
    )
