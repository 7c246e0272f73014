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


def lock_path() -> Path:
    """The lock of this machine: in the user's cache folder, or among temporary files where that is not
    writable.

    The host's name is part of it because a home folder may be shared by machines.
    """
    name = "".join(c if c.isalnum() else "-" for c in platform.node()) or "host"
    folder = Path(platformdirs.user_cache_dir("tilewright"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir())
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    return folder / f"device-{name}.lock"


@contextmanager
def device_lock(path: Path | None = None) -> Iterator[float]:
    """Hold the device; the value is the seconds waited for it. Raises OSError if the file cannot be made."""
    file = path or lock_path()
    start = time.monotonic()
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield time.monotonic() - start
    finally:
        os.close(handle)
