"""Another processor as the host, for a whole run of the tests: what detection finds is the target of a file.

The number of cores stays that of the machine. The library reads no setting from the environment; the variable is between the tests
and ``sitecustomize`` of the processes they start. There, nothing is loaded before the program loads it: only what detection is
changes when it is imported, so that a program starts, and can be interrupted, as it always does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TESTS_HOST_TARGET"
DETECTION = "tilewright.schedules.target_host"


def pretend(name: str) -> None:
    """Make ``Target.host()`` the target ``name``, here and in every process that this one starts. Raises SystemExit where this machine
    cannot run its code."""
    from tilewright.runtime import missing_features
    from tilewright.schedules import target_host
    from tilewright.schedules.target import Target

    real = Target.host()
    missing = missing_features(Target.load(name), real)
    if missing:
        raise SystemExit(f"--host-target {name}: this machine ({real.cpu}) lacks {', '.join(missing)}")
    _replace(target_host, name)
    _hand_on(name)


def when_imported(name: str) -> None:
    """The same for a process that has not imported the package."""
    sys.meta_path.insert(0, _Changed(name))


class _Changed:
    """Finds the module of detection as Python does, and changes it once it is loaded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, module: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if module != DETECTION:
            return None
        spec = PathFinder.find_spec(module, path, target)
        loader: Any = spec.loader if spec else None
        if loader is not None:
            load = loader.exec_module

            def loaded(found: ModuleType) -> None:
                load(found)
                _replace(found, self.name)

            loader.exec_module = loaded
        return spec


def _replace(module: Any, name: str) -> None:
    """Detection finds the target ``name``, with the cores that are really there."""
    real = module.detect

    @wraps(real)
    def pretended() -> dict[str, object]:
        from dataclasses import asdict

        from tilewright.schedules.target import Target

        found, cores = asdict(Target.load(name)), real()
        return {k: v for k, v in found.items() if k != "name"} | {k: cores[k] for k in ("cores", "threads")}

    module.detect = pretended


def _hand_on(name: str) -> None:
    """To every child, also where its environment is written out."""

    def with_host(environment: Mapping[str, str]) -> dict[str, str]:
        paths = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
        return {**environment, VARIABLE: name, "PYTHONPATH": os.pathsep.join(paths)}

    os.environ.update(with_host(os.environ))
    start: Any = subprocess.Popen.__init__

    def started(self: Any, *args: Any, env: Mapping[str, str] | None = None, **options: Any) -> None:
        start(self, *args, env=None if env is None else with_host(env), **options)

    setattr(subprocess.Popen, "__init__", started)  # noqa: B010
