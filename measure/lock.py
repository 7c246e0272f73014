"""One tuner times at a time on a machine: a lock file that the system releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from tilewright.measure.request import DeviceError


def lock_path() -> Path:
    """The lock of this machine: in the user's cache folder, or among temporary files where that is not
    writable.

    The host's name is part of it because a home folder may be shared by machines.
    """
    name = "".join(c if c.isalnum() else "-" for c in platform.node()) or "host"
    folder = Path(platformdirs.user_cache_dir("tilewright"))
    if not folder.is_absolute():  # a user without a home folder
        return Path(tempfile.gettempdir()) / f"device-{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir())
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    return folder / f"device-{name}.lock"


def _opened(file: Path) -> int:
    """A handle of the lock file. Among temporary files it may be another user's, who may not be written to, but shared."""
    try:
        if file.exists():
            return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DeviceError(f"lock of the device: expected a file that can be opened; got: {error}") from error


@contextmanager
def device_lock(path: Path | None = None) -> Iterator[float]:
    """Hold the device; the value is the seconds waited for it. Raises DeviceError if the file cannot be made."""
    file = path or lock_path()
    start = time.monotonic()
    handle = _opened(file)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield time.monotonic() - start
    finally:
        os.close(handle)
