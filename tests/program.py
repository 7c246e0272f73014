"""The command line as a program of its own: child processes, signals, limits."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SRC = Path(__file__).parents[1] / "src"
_PR_CAPBSET_DROP = 24
_CAPABILITIES = (1, 2, 3)  # to pass over the permissions of files: for root they mean nothing while it has these


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that imports the package under test."""
    return {**os.environ, "PYTHONPATH": str(SRC), **(extra or {})}


def command(*args: object) -> list[str]:
    """The program with arguments."""
    return [sys.executable, "-m", "tilewright", *map(str, args)]


def ordinary_user() -> None:
    """In a child: permissions of files count, also for root."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in _CAPABILITIES:
            assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())


def limited(kind: int, value: int) -> Callable[[], None]:
    """In a child: a resource limit."""
    return lambda: resource.setrlimit(kind, (value, value))


def run(*args: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program to its end. Its output must hold no traceback."""
    options.setdefault("stdout", subprocess.PIPE)
    done = subprocess.run(
        command(*args), stderr=subprocess.PIPE, text=True, env=environment(env), timeout=120, check=False, **options
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def interrupted(
    args: Sequence[object],
    delays: Sequence[float],
    number: signal.Signals = signal.SIGINT,
    env: Mapping[str, str] | None = None,
    ignored: bool = False,
    after: str = "",
) -> tuple[int, str, str]:
    """Start the program (which has the signal ``ignored`` or not) and send it the signal after each delay in seconds, counted from when
    ``after`` was on stderr; its exit code, stdout and stderr."""
    process = subprocess.Popen(
        command(*args),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL),
        start_new_session=True,
    )
    assert process.stderr is not None
    seen = ""
    while after not in seen and (line := process.stderr.readline()):
        seen += line
    for delay in delays:
        time.sleep(delay)
        if process.poll() is None:
            process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, seen + err
