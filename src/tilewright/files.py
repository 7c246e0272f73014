"""Files that appear whole or not at all, and things on the disk that belong to a living process.

A file is written beside its destination and renamed once it is complete: a reader never sees half of it, and what was there before
is kept until the new one is safe on the disk. Drafts carry a lock that the system releases when its holder dies, however it dies, so
that what the dead have left can be told from what the living still use. What is no ordinary file (a pipe, ``/dev/stdout``) has nothing
that could be kept, and is written straight.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

DRAFT = ".tilewright-draft-"
"""How names of drafts begin; the beginning of the destination's name follows."""


class WriteError(OSError):
    """A file cannot be written; the text says which and why. What was there before is as it was."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file ``path`` if all goes well, and vanish otherwise.

    The folder must be there. A file that is read-only is refused, and the permissions of one that is replaced are kept. Raises
    WriteError if the file cannot be written; an OSError within the block counts as that. (A pipe that nobody reads any more is a
    BrokenPipeError.)
    """
    destination = Path(path)
    refuse_unwritable(destination)
    try:
        found = destination.stat() if destination.exists() else None
        if found is None or stat.S_ISREG(found.st_mode):
            yield from _drafted(destination.resolve(), found)
        else:
            whole = io.BytesIO()
            yield whole
            destination.write_bytes(whole.getbuffer())
    except (BrokenPipeError, WriteError):
        raise
    except OSError as error:
        raise _failure(destination, error) from error


def refuse_unwritable(path: str | os.PathLike[str]) -> None:
    """Raise WriteError for a place that :func:`replacing` could not write to: before the work whose result is to go there."""
    destination = Path(path)
    try:
        found = destination.stat() if destination.exists() else None
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(0, "expected the name of a file, got a folder")
        if found is not None and not os.access(destination, os.W_OK):
            raise PermissionError(0, "the file that is there is read-only")
        folder = destination.resolve().parent
        if not folder.is_dir():
            raise NotADirectoryError(0, f"there is no folder {folder}")
        if (found is None or stat.S_ISREG(found.st_mode)) and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(
                0, f"its folder {folder} is read-only (a file is written beside its destination and renamed)"
            )
    except OSError as error:
        raise _failure(destination, error) from error


def _failure(destination: Path, error: OSError) -> WriteError:
    return WriteError(f"cannot write {destination}: {error.strerror or error}")


def _drafted(destination: Path, replaced: os.stat_result | None) -> Iterator[BinaryIO]:
    start = f"{DRAFT}{destination.name[:40]}-"
    with os.scandir(destination.parent) as entries:
        drafts = [Path(e) for e in entries if e.name.startswith(start) and e.is_file(follow_symlinks=False)]
    for other in drafts:
        if abandoned(other):
            other.unlink(missing_ok=True)
    draft = destination.with_name(f"{start}{uuid.uuid4().hex[:12]}")
    try:
        with claimed(draft) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if replaced is not None:
                os.fchmod(stream.fileno(), stat.S_IMODE(replaced.st_mode))
            draft.replace(destination)
    finally:
        draft.unlink(missing_ok=True)


def claimed(path: Path) -> BinaryIO:
    """A new file that is locked by this process from the moment it has its name until the stream is closed or the process dies.

    Where the file system has no locks the file is not locked, and never counts as abandoned. Raises OSError.
    """
    unnamed = path.with_name(f".tilewright-{uuid.uuid4().hex}")
    stream = unnamed.open("x+b")
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path)
    except BaseException:
        stream.close()
        unnamed.unlink(missing_ok=True)
        raise
    return stream


def abandoned(path: Path) -> bool:
    """Whether a file that was made by :func:`claimed` has outlived its process. False for one that is not ours to open."""
    try:
        with path.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
