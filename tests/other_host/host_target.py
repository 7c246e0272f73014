"""Another processor as the host, for a whole run of the tests: what detection finds is the target of a file.

The number of cores stays that of the machine. The library reads no setting from the environment; the variable is between the tests
and ``sitecustomize`` of the processes they start.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

VARIABLE = "TESTS_HOST_TARGET"


def pretend(name: str) -> None:
    """Make ``Target.host()`` the target ``name``. Raises SystemExit where this machine cannot run its code."""
    from tilewright.runtime import missing_features
    from tilewright.schedules import target_host
    from tilewright.schedules.target import Target

    real, wanted = Target.host(), Target.load(name)
    missing = missing_features(wanted, real)
    if missing:
        raise SystemExit(f"--host-target {name}: this machine ({real.cpu}) lacks {', '.join(missing)}")
    found = {k: v for k, v in asdict(wanted).items() if k != "name"} | {"cores": real.cores, "threads": real.threads}

    @wraps(target_host.detect)
    def pretended() -> dict[str, object]:
        return dict(found)

    target_host.detect = pretended


def hand_on(name: str) -> None:
    """The same for every process that this one starts, also where the environment of the child is written out."""

    def with_host(environment: Mapping[str, str]) -> dict[str, str]:
        paths = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
        return {**environment, VARIABLE: name, "PYTHONPATH": os.pathsep.join(paths)}

    os.environ.update(with_host(os.environ))
    start: Any = subprocess.Popen.__init__

    def started(self: Any, *args: Any, env: Mapping[str, str] | None = None, **options: Any) -> None:
        start(self, *args, env=None if env is None else with_host(env), **options)

    setattr(subprocess.Popen, "__init__", started)  # noqa: B010
