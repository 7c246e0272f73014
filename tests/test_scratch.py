"""Fault 29: the temporary folder of a killed tuner is removed by the next one; a living one's and other programs' never."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from program import command, environment, run
from test_cli import tiny
from tilewright.measure.scratch import OWNER, PREFIX, Scratch, sweep

pytestmark = pytest.mark.workers

HOLDER = """
import sys, time
from tilewright.measure.scratch import Scratch
scratch = Scratch()
(scratch.path / "data.npy").write_bytes(b"x" * 1000)
print(scratch.path, flush=True)
time.sleep(600)
"""


def holder(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a temporary folder in ``folder``, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env=environment({"TMPDIR": str(folder)})
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_the_dead_left_is_removed_and_the_living_keep_theirs(here: Path) -> None:
    alive, kept = holder(here)
    dead, gone = holder(here)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.communicate()
        assert (gone / "data.npy").exists()
        scratch = Scratch()
        assert not gone.exists()
        assert (kept / "data.npy").exists()
        assert scratch.path.is_dir()
        second = Scratch()  # of the same process: its first folder is alive too
        assert scratch.path.is_dir()
        second.close()
        scratch.close()
        scratch.close()
        assert sorted(p.name for p in here.iterdir()) == [kept.name]
    finally:
        alive.kill()
        alive.communicate()
    assert sweep(here) == [kept]
    assert list(here.iterdir()) == []


def test_what_is_not_ours_is_left_alone(here: Path) -> None:
    """No lock file, other names, files, links to folders, and what belongs to another user."""
    (here / f"{PREFIX}models").mkdir()
    (here / f"{PREFIX}models" / "keep").touch()
    (here / f"{PREFIX}file").touch()
    (here / "other").mkdir()
    (here / "other" / OWNER).touch()
    (here / f"{PREFIX}link").symlink_to(here / "other")
    if os.geteuid() == 0:
        (here / f"{PREFIX}theirs").mkdir()
        (here / f"{PREFIX}theirs" / OWNER).touch()
        os.chown(here / f"{PREFIX}theirs", 12345, 12345)
    before = sorted(here.rglob("*"))
    Scratch().close()
    assert sorted(here.rglob("*")) == before


def test_folders_that_vanish_or_cannot_be_listed(here: Path) -> None:
    assert sweep(here / "none") == []
    (here / f"{PREFIX}x").mkdir()
    (here / f"{PREFIX}x" / OWNER).touch()
    assert sweep(here) == [here / f"{PREFIX}x"]
    assert sweep(here) == []


def test_a_killed_run_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    """The whole program, killed while it measures."""
    folder, model = tmp_path / "tmp", tiny(tmp_path / "m.onnx")
    folder.mkdir()
    line = ("tune", model, "--shape", "x=64,8", "--threads", "1", "--store", tmp_path / "r.sqlite")
    env = {"TMPDIR": str(folder)}
    process = subprocess.Popen(command(*line, "--time", "10m"), stderr=subprocess.PIPE, text=True, env=environment(env))
    assert process.stderr is not None
    assert "measured" in process.stderr.readline()
    process.kill()
    process.communicate()
    left = list(folder.iterdir())
    assert [p.name.startswith(PREFIX) for p in left] == [True]
    deadline = time.monotonic() + 10
    while any((folder / p).exists() for p in left) and time.monotonic() < deadline:
        done = run(*line, "--trials", "1", env=env)
        assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
