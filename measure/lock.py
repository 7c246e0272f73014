"""One tuner times at a time on a machine: a lock file that the system releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs


def lock_path() -> Path:
    """The lock of this machine. The host's name is part of it because a home folder may be shared by
    machines."""
    name = "".join(c if c.isalnum() else "-" for c in platform.node()) or "host"
    return Path(platformdirs.user_cache_dir("tilewright")) / f"device-{name}.lock"


@contextmanager
def device_lock(path: Path | None = None) -> Iterator[float]:
    """Hold the device; the value is the seconds waited for it. Raises OSError if the file cannot be made."""
    file = path or lock_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield time.monotonic() - start
    finally:
        os.close(handle)
