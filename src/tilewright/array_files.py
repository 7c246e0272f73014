"""Arrays of the command line: inputs from ``.npy`` files, outputs into a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from tilewright.compiled import ModelError
from tilewright.files import WriteError, replacing

LONGEST = 60
"""Characters of an output's name that its file's name keeps."""


def read_array(name: str, path: str) -> NDArray[Any]:
    """The array of a ``.npy`` file for the input ``name``. Raises ModelError for a file that holds none."""
    try:
        with open(path, "rb") as stream:
            if (start := stream.read(len(MAGIC_PREFIX))) != MAGIC_PREFIX:
                raise ValueError(_what_it_is(start))
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelError(
            f"input {name}: expected a .npy file, as numpy.save writes it; cannot read {path}: {why}"
        ) from error
    return np.asarray(found)


def _what_it_is(start: bytes) -> str:
    if start.startswith(b"PK"):
        return "it is an archive; save the one array by itself"
    return f"it begins with {start!r}" if start else "it is empty"


def output_files(folder: str, names: Sequence[str]) -> list[Path]:
    """A file in ``folder`` for each output, and the folder itself. Characters that file names should not have become ``_``, and names
    that would be the same get a number. Raises WriteError if the folder cannot be made."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    files: dict[str, None] = {}
    for name in names:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:LONGEST]
        number, file = 1, f"{safe}.npy"
        while file in files:
            number += 1
            file = f"{safe}_{number}.npy"
        files[file] = None
    return [Path(folder) / file for file in files]


def write_array(path: Path, value: NDArray[Any]) -> None:
    """Write a ``.npy`` file; one that is there is replaced as a whole. Raises WriteError."""
    with replacing(path) as stream:
        np.save(stream, value, allow_pickle=False)


def given_inputs(texts: Sequence[str], known: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    """The arrays of ``NAME=FILE.npy`` texts. Raises ModelError for an unknown name, one given twice, or a file that holds no array."""
    arrays: dict[str, NDArray[Any]] = {}
    for text in texts:
        # a name may hold an equals sign, and so may a path: the longest name that is known counts
        name = max((n for n in known if text.startswith(f"{n}=")), key=len, default=None)
        if name is None or len(text) == len(name) + 1:
            raise ModelError(
                f"--input: expected NAME=FILE.npy with a name of {', '.join(known) or 'none'}; got {text!r}"
            )
        if name in arrays:
            raise ModelError(f"--input: {name!r} is given twice")
        arrays[name] = read_array(name, text[len(name) + 1 :])
    return arrays
