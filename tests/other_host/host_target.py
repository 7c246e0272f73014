"""Another processor as the host, for a whole run of the tests: what detection finds is the target of a file.

The number of cores stays that of the machine. The library reads no setting from the environment; the variable is between the tests
and ``sitecustomize`` of the processes they start.
"""

from __future__ import annotations

from dataclasses import asdict

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
    target_host.detect = lambda: dict(found)
