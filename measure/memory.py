"""How much memory a process may have here: the least of what the machine has, its control group allows, and its own limits allow."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import psutil

WORKER_SHARE = 0.8
"""Share of the memory of the machine (or of the control group) that a worker may have."""


@final
@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit in bytes, and what sets it."""

    nbytes: int
    what: str

    def __str__(self) -> str:
        return f"{bytes_text(self.nbytes)} ({self.what})"


def bytes_text(nbytes: float) -> str:
    """Bytes for people: ``25.6 TB``."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"


def memory_limit() -> MemoryLimit:
    """The tightest limit of this process."""
    return min([_machine(), *_own_limits(), *_group_limits()], key=lambda limit: limit.nbytes)


def memory_text() -> str:
    """The tightest limit, for messages."""
    return f"this process may have {memory_limit()}"


def worker_bytes() -> int:
    """The address space that a worker may have, in bytes; it keeps to tighter limits of its own."""
    physical = psutil.virtual_memory().total
    return int(WORKER_SHARE * min([physical, *(limit.nbytes for limit in _group_limits())]))


def shortage(needs: Mapping[str, int]) -> str | None:
    """Why what is needed (bytes, by what they are for) cannot be had, or None if it can."""
    total, limit = sum(needs.values()), memory_limit()
    if total <= limit.nbytes:
        return None
    parts = ", ".join(f"{bytes_text(n)} for {what}" for what, n in needs.items() if n * 20 >= total)
    return f"needs {bytes_text(total)} of memory ({parts}), more than it may have here: {limit}"


def _machine() -> MemoryLimit:
    total = psutil.virtual_memory().total + psutil.swap_memory().total
    return MemoryLimit(total, "the machine's memory and swap space")


def _own_limits() -> Iterator[MemoryLimit]:
    """What ``ulimit`` leaves, apart from what the process has already."""
    used = psutil.Process().memory_info()
    for kind, what, has in (
        (resource.RLIMIT_AS, "ulimit -v", used.vms),
        (resource.RLIMIT_DATA, "ulimit -d", getattr(used, "data", 0)),
    ):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield MemoryLimit(max(0, soft - has), f"what {what} leaves")


def _group_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[MemoryLimit]:
    """Limits of the control groups that this process is in (both versions), from its own to the outermost."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # a system without control groups
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            folder, name = root, "memory.max"
        elif "memory" in kinds.split(","):
            folder, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = folder / path.lstrip("/")
        for place in (group, *group.parents):
            if place.is_relative_to(folder):
                yield from _read_limit(place / name)


def _read_limit(file: Path) -> Iterator[MemoryLimit]:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:  # the root has no limit, and a container may not see the groups around it
        return
    if text.isdecimal():
        yield MemoryLimit(int(text), "the limit of its control group")
