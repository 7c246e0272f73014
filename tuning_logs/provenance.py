"""What surrounded a measurement: software versions and the load of the machine."""

import os
import platform
from importlib import metadata
from typing import Any


def environment_versions() -> dict[str, str]:
    """The versions that could change a result: tilewright, llvmlite, llvm, python; absent ones left out."""
    found = {"python": platform.python_version()}
    for package in ("tilewright", "llvmlite"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    try:
        from llvmlite import binding
    except ImportError:
        return found
    found["llvm"] = ".".join(str(part) for part in binding.llvm_version_info)
    return found


def system_load() -> dict[str, Any]:
    """The load averages and the processor count of this moment; empty where the system does not tell."""
    try:
        one, five, fifteen = os.getloadavg()
    except (AttributeError, OSError):
        return {}
    return {"load_1min": one, "load_5min": five, "load_15min": fifteen, "cpus": os.cpu_count()}
