"""Detection of the machine this runs on, as the fields of a `Target`.

Sources: LLVM for the triple, processor name and features (the code generator is what must agree with them),
/sys for the caches, the scheduler's affinity mask and the control group's quota for the cores that this
process may use, archspec and /proc/cpuinfo for the name that people know. What cannot be read falls back to a
common value (`FALLBACK`): a schedule tuned for too small a cache is slower, never wrong.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from pathlib import Path
from typing import Final

import archspec.cpu
import llvmlite.binding as llvm
import psutil

FALLBACK: Final = {"l1d_bytes": 32 * 1024, "l2_bytes": 512 * 1024, "l3_bytes": 0, "line_bytes": 64}
SYS_CACHE: Final = Path("/sys/devices/system/cpu/cpu0/cache")
CGROUP: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
_UNITS: Final = {"K": 1024, "M": 1024**2, "G": 1024**3}


def detect() -> dict[str, object]:
    """Every field but the name and those that follow from the features."""
    # Absent features are kept: a hypervisor may hide some that the processor's name promises to LLVM.
    features = tuple(f for f in llvm.get_host_cpu_features().flatten().split(",") if f)
    cores = physical_cores()
    return {
        "family": "cpu",
        "triple": llvm.get_process_triple(),
        "cpu": llvm.get_host_cpu_name(),
        "features": features,
        "fma_per_cycle": fma_pipes(features),
        **caches(SYS_CACHE),
        "cores": cores,
        "threads": min(cores, usable_cpus()),
        "model": model_name(PROC),
    }


def fma_pipes(features: tuple[str, ...]) -> int:
    """An assumption, as no system interface says it: two pipes on big x86 and AArch64 cores, else one."""
    return 2 if {"+fma", "+neon"} & set(features) else 1


def caches(folder: Path) -> dict[str, int]:
    """Sizes from the kernel's cache folder of one core."""
    found = dict(FALLBACK)
    for index in sorted(folder.glob("index*")):
        level, kind = _read(index / "level"), _read(index / "type")
        field = {"1": "l1d_bytes", "2": "l2_bytes", "3": "l3_bytes"}.get(level)
        size = parse_size(_read(index / "size"))
        if field is None or kind not in ("Data", "Unified") or size == 0:
            continue
        found[field] = size
        if level == "1":
            found["line_bytes"] = parse_size(_read(index / "coherency_line_size")) or FALLBACK["line_bytes"]
    return found


def parse_size(text: str) -> int:
    """`32K` -> 32768; 0 for anything that is not a size."""
    digits, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    return int(digits) * unit if digits.isdigit() else 0


def physical_cores() -> int:
    """Cores of the machine; logical processors where the system does not tell, at least 1."""
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1


def usable_cpus() -> int:
    """Logical processors that the affinity mask and the control group's quota leave to this process."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = cgroup_quota(PROC, CGROUP)
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def cgroup_quota(proc: Path, root: Path) -> float | None:
    """Processors' worth of time a period, the least over the group and its parents; None: no limit.

    Version 2 keeps `cpu.max` ("quota period" or "max period"), version 1 two files under a `cpu` mount.
    """
    limits: list[float] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / controllers, root / "cpu"]
        else:
            continue
        for mount in mounts:
            inner = mount / path.lstrip("/")
            for group in (inner, *inner.parents):
                if not group.is_relative_to(mount):
                    break
                quota, _, period = _read(group / "cpu.max").partition(" ")
                if not quota:
                    quota = _read(group / "cpu.cfs_quota_us")
                    period = _read(group / "cpu.cfs_period_us")
                if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
                    limits.append(int(quota) / int(period))
    return min(limits, default=None)


def model_name(proc: Path) -> str:
    """The processor's own name and, in brackets, the microarchitecture that archspec sees."""
    named = [
        line.split(":", 1)[1].strip()
        for line in _read(proc / "cpuinfo").splitlines()
        if line.startswith("model name") and ":" in line
    ]
    name = named[0] if named else platform.processor() or platform.machine()
    return f"{name} ({archspec.cpu.host().name})"


def _read(path: Path) -> str:
    """The stripped text of a small kernel file; empty where there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
