"""The folder for a runner's temporary files, and the end of those whose runner was killed.

A folder holds a lock file that is locked for as long as its owner lives. Whoever makes a folder first removes those of the same user
whose lock nobody holds any more. What has no such file is somebody else's and is left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, final

from tilewright.files import abandoned, claimed
from tilewright.measure.request import DeviceError

PREFIX: Final = "tilewright-"
OWNER: Final = "owner.lock"


@final
class Scratch:
    """A temporary folder of this process. Raises DeviceError if none can be made."""

    def __init__(self) -> None:
        try:
            sweep(Path(tempfile.gettempdir()))
            self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)
            self.path = Path(self._folder.name)
            self._lock = claimed(self.path / OWNER)
        except OSError as error:
            raise DeviceError(
                f"temporary files: expected a folder that can be written and has room; got: {error}; set TMPDIR to one"
            ) from error

    def close(self) -> None:
        """Remove the folder. May be called twice."""
        self._folder.cleanup()
        self._lock.close()


def sweep(folder: Path) -> list[Path]:
    """Remove the temporary folders in ``folder`` that belong to this user and whose owner is dead; those that were removed."""
    dead: list[Path] = []
    try:
        found = [Path(e) for e in os.scandir(folder) if e.name.startswith(PREFIX) and _is_ours(e)]
    except OSError:  # a folder that may be written to but not listed
        return dead
    for path in found:
        if abandoned(path / OWNER):
            shutil.rmtree(path, ignore_errors=True)  # another run may be removing it too
            dead.append(path)
    return dead


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:  # removed meanwhile
        return False
