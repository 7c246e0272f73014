"""Model files (``.tw``): a zip of ``model.json`` (the description), ``code.o`` (an object file) and ``constants.bin`` (the elements of
the constants one after the other, little-endian, each constant at a multiple of 64 bytes); never a pickle.

The file is sealed (:mod:`tilewright.graph.sealed`), so one with any other byte than it was written with is refused before anything in
it is believed. That guards against damage, not against people: a model file is a program, like any other.
Parts are stored as they are, so none is larger than the file.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from typing import IO

import numpy as np

from tilewright.compiled import Array, Compiled, ModelError
from tilewright.files import WriteError, replacing
from tilewright.graph import sealed
from tilewright.graph.dtypes import numpy_dtype
from tilewright.model_json import Constant, describe, parse
from tilewright.schedules.kernel import aligned

ALIGN = 64
_PARTS = ("model.json", "code.o", "constants.bin")
_BROKEN = (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, KeyError, ValueError)
"""What the standard library raises for a zip that is none, or that uses what we do not write (RuntimeError: encryption)."""


def save(compiled: Compiled, path: str | os.PathLike[str]) -> None:
    """Write a model file; an existing one is replaced only once the new one is complete. Raises ModelError if it cannot be written."""
    try:
        with replacing(path) as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as z:
                z.comment = sealed.UNSEALED
                z.writestr("model.json", json.dumps(describe(compiled), indent=1))
                z.writestr("code.o", compiled.object_code)
                with z.open("constants.bin", "w", force_zip64=True) as part:
                    for a in compiled.constants:
                        part.write(_bytes(a).data)
                        part.write(bytes(-a.nbytes % ALIGN))
            sealed.seal(file)
    except WriteError as error:
        raise ModelError(str(error)) from error


def read(path: str | os.PathLike[str]) -> Compiled:
    """Read a model file. Raises ModelError if it is none, has another format, or differs in any byte from what was written."""
    where = os.fspath(path)
    try:
        with open(path, "rb") as file:
            intact = sealed.is_sealed(file)
            with zipfile.ZipFile(file) as z:
                return _read(z, intact)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    except OSError as error:
        raise ModelError(f"cannot read {where}: {error.strerror or error}") from error
    except MemoryError as error:
        raise ModelError(f"{where}: not enough memory to read it") from error
    except _BROKEN as error:
        raise ModelError(
            f"{where}: expected a model file written by 'tilewright compile'; it is damaged or something else ({error})"
        ) from error


def _read(z: zipfile.ZipFile, intact: bool) -> Compiled:
    parts = {i.filename: i for i in z.infolist()}
    if not intact:
        if "constants.npz" in parts:
            raise ModelError("expected a model file of this version; it was written by an older one; compile it again")
        raise ModelError("expected the bytes that 'tilewright compile' wrote; the file is damaged; compile it again")
    if tuple(sorted(parts)) != tuple(sorted(_PARTS)) or len(z.infolist()) != len(_PARTS):
        raise ModelError(
            f"expected the parts {', '.join(_PARTS)}; got {', '.join(i.filename for i in z.infolist())[:200]}"
        )
    if any(i.compress_type != zipfile.ZIP_STORED or i.file_size != i.compress_size for i in parts.values()):
        raise ModelError("expected parts that are stored as they are; got compressed ones")
    found = parse(z.read("model.json"))
    total = sum(-(-c.nbytes // ALIGN) * ALIGN for c in found.constants)
    if parts["constants.bin"].file_size != total:
        raise ModelError(
            f"constants.bin: expected {total} bytes, as model.json says; got {parts['constants.bin'].file_size}"
        )
    with z.open("constants.bin") as part:
        constants = tuple(_constants(part, found.constants))
        if part.read(1):  # reads to the end, which checks the sum over the part
            raise ModelError("constants.bin: expected no more bytes than model.json says")
    return Compiled(
        found.target, found.inputs, found.outputs, found.slots, found.kernels, found.arena_bytes, found.packed_bytes,
        found.thread_bytes, constants, z.read("code.o"),
    )  # fmt: skip


def _constants(part: IO[bytes], wanted: tuple[Constant, ...]) -> Iterator[Array]:
    for c in wanted:
        place = aligned(-(-c.nbytes // ALIGN) * ALIGN)
        place[...] = np.frombuffer(part.read(place.size), np.uint8)
        if c.dtype == "bool" and (place[: c.nbytes] > 1).any():
            raise ModelError("constants.bin: expected 0 or 1 in a bool constant")
        yield place[: c.nbytes].view(numpy_dtype(c.dtype)).reshape(c.shape)


def _bytes(a: Array) -> Array:
    little = np.ascontiguousarray(a, a.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8)
