"""What a test needs, as markers: a test that starts processes, times kernels or loads models of other packages says so, and one that
does without saying so fails.

- ``workers``: starts other processes.
- ``timing``: times kernels, so nothing else may run beside it.
- ``models``: loads models of installed packages.
"""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
from typing import Any

import pytest

from tilewright.measure.timing import Clock

MARKERS = {
    "workers": "starts other processes",
    "timing": "times kernels: nothing else may run beside it",
    "models": "loads models of installed packages",
}


@pytest.fixture(autouse=True)
def _says_what_it_needs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    node = request.node

    def guard(owner: Any, name: str, marker: str) -> None:
        if node.get_closest_marker(marker) is not None:
            return

        def refused(*_: object, **__: object) -> None:
            pytest.fail(f"this test {MARKERS[marker].split(':')[0]}: mark it with pytest.mark.{marker}")

        monkeypatch.setattr(owner, name, refused)

    guard(subprocess.Popen, "__init__", "workers")
    guard(multiprocessing.process.BaseProcess, "start", "workers")
    guard(os, "fork", "workers")
    guard(Clock, "sample", "timing")
