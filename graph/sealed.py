"""Sealed files: the last bytes are a digest of all the others, so a file with any other byte than it was written with is known for it
before anything in it is looked at. That guards against damage, not against people, who can seal what they like.

The digest is text and of a fixed length; in a zip it is the archive's comment, which lies at the end.
"""

from __future__ import annotations

import hashlib
import os
from typing import IO

LENGTH = hashlib.sha256().digest_size * 2
UNSEALED = b"0" * LENGTH
"""What a file ends with until it is sealed."""


def seal(file: IO[bytes]) -> None:
    """Replace the last bytes (:data:`UNSEALED`) of a file that is open for reading and writing by the digest of those before."""
    digest = _digest(file)
    file.seek(-LENGTH, os.SEEK_END)
    file.write(digest)


def is_sealed(file: IO[bytes]) -> bool:
    """Whether a file ends with the digest of what is before."""
    if file.seek(0, os.SEEK_END) <= LENGTH:
        return False
    digest = _digest(file)
    return file.read(LENGTH) == digest


def _digest(file: IO[bytes]) -> bytes:
    """Of all bytes but the last ones; they are what is read next."""
    left = file.seek(0, os.SEEK_END) - LENGTH
    file.seek(0)
    sha = hashlib.sha256()
    while left > 0 and (piece := file.read(min(left, 1 << 20))):
        sha.update(piece)
        left -= len(piece)
    return sha.hexdigest().encode()
