"""Files that appear whole or not at all: written beside their destination, and renamed once they are complete.

A reader never sees half a file, and what was there before is kept until the new one is safe on the disk. The draft carries a lock
for as long as its writer lives, so that the next writer to the same destination can tell the drafts of the dead from those of the
living. What is no ordinary file (a pipe, ``/dev/stdout``) has nothing to be kept and is written straight.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

DRAFT = ".tilewright-draft-"
"""How names of drafts begin; the name of the destination follows, as far as it fits."""


class WriteError(OSError):
    """A file cannot be written; the text says which and why. What was there before is as it was."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file ``path`` if all goes well, and vanish otherwise.

    Folders that are missing are not made. A file that is read-only is refused, and the permissions of one that is replaced are kept.
    Raises WriteError if the file cannot be written, also for an OSError within the block that is about the stream.
    """
    destination = Path(path)
    try:
        found = _stat(destination)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(None, "a folder is in its place; name a file")
        if found is not None and not stat.S_ISREG(found.st_mode):
            with destination.open("wb") as stream:
                yield stream
            return
        if found is not None and not os.access(destination, os.W_OK):
            raise PermissionError(None, "the file that is there is read-only")
        yield from _drafted(destination.resolve(), found)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteError(f"cannot write {destination}: {error.strerror or error}") from error


def _drafted(destination: Path, replaced: os.stat_result | None) -> Iterator[BinaryIO]:
    start = f"{DRAFT}{destination.name[:64]}-"
    _remove_abandoned(destination.parent, start)
    draft = destination.with_name(f"{start}{uuid.uuid4().hex[:12]}")
    try:
        with draft.open("xb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if replaced is not None:
                os.fchmod(stream.fileno(), stat.S_IMODE(replaced.st_mode))
            draft.replace(destination)
    finally:
        draft.unlink(missing_ok=True)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _remove_abandoned(folder: Path, start: str) -> None:
    """Remove drafts of writers that were killed. One without a lock may also be a moment old; its writer then fails to rename it
    and says so, which two writers of one file must expect."""
    with os.scandir(folder) as entries:
        drafts = [e.path for e in entries if e.name.startswith(start) and e.is_file(follow_symlinks=False)]
    for draft in drafts:
        if abandoned(draft):
            Path(draft).unlink(missing_ok=True)
