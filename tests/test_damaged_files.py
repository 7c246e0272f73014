"""Whatever is loaded may be damaged: thousands of damaged files end in a typed error or a right result.

Never in a crash, a hang or memory without bound: each property of ``damaged.py`` runs in a process of its own, under limits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import damaged

pytestmark = pytest.mark.workers


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits for a process that it starts")
@pytest.mark.parametrize("name", damaged.PROPERTIES)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """The process ends by itself and without a word."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, damaged.__file__, name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=damaged.SECONDS + 20)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
