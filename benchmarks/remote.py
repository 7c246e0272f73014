"""Our end of the pipe to a program that runs a library in another process (see `serve.py` for what is said)."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.clock import ROUND_CALLS, ROUND_S, WARM_S
from benchmarks.common import Array, Side
from benchmarks.serve import Lacking
from benchmarks.workloads import Workload

ROOT = Path(__file__).resolve().parents[1]
ANSWER_S = 300.0
"""How long an answer may take, unless a request says otherwise."""


class Remote:
    """A program at the other end of a pipe, which holds one operator at a time. It ends with this object's `close`, or
    when this process ends."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        python: str = sys.executable,
        env: Mapping[str, str] = {},
    ) -> None:
        """Start ``python -m module``. Raises Lacking if it cannot be started or lacks its library."""
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        self._errors = (Path(self._folder.name) / "stderr").open("w+b")
        # a process group of its own, so that its children end with it; the session stays ours, with its priority
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=ROOT,
                env={**os.environ, **env, "PYTHONPATH": os.pathsep.join(paths)},
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            self._release()
            raise Lacking(f"{name}: {python} cannot be started ({error})") from error
        self._held = 0
        self._rest = b""
        try:
            self.version: str = self._receive(ANSWER_S)["version"]
        except BaseException:
            self.close()
            raise

    def prepare(
        self, workload: Workload, arrays: Mapping[str, Array], limit_s: float = ANSWER_S, **more: Any
    ) -> dict[str, Any]:
        """Hand over an operator in place of the one before; returns what the other end says about it. Raises Lacking."""
        file = Path(self._folder.name) / "arrays.npz"
        tensors: dict[str, Any] = {i.name: arrays[i.name] for i in workload.inputs}
        np.savez(file, **tensors)
        self._held += 1
        what = {"suite": workload.suite, "op": workload.name, "cap": workload.cap, "arrays": str(file)}
        info: dict[str, Any] = self._ask({"do": "prepare", **what, **more}, limit_s)["info"]
        return info

    def side(self) -> Side:
        """The operator that was prepared last. The side is of no use once another one is prepared."""
        held = self._held

        def ask(**request: Any) -> dict[str, Any]:
            if held != self._held:
                raise RuntimeError(f"{self.name}: this operator was replaced by another one")
            return self._ask(request, ANSWER_S)

        def result() -> list[Array]:
            file = Path(self._folder.name) / "result.npy"
            ask(do="call", result=str(file))
            return [np.load(file)]

        def round_ms() -> float:
            return float(ask(do="time", min_s=ROUND_S, min_calls=ROUND_CALLS, warm_s=WARM_S)["ms"])

        return Side(self.name, result, result, round_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._release()

    def _release(self) -> None:
        self._errors.close()
        self._folder.cleanup()

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Lacking(self._ended()) from None
        return self._receive(limit_s)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        """The next line. Raises Lacking where it says so, where it is late, and at the end of the process."""
        assert self._process.stdout is not None
        until = time.monotonic() + limit_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not waiting.select(max(0.0, until - time.monotonic())):
                    os.killpg(self._process.pid, signal.SIGKILL)
                    raise Lacking(f"{self.name}: no answer within {limit_s:.0f} s")
                read = os.read(self._process.stdout.fileno(), 1 << 16)
                if not read:
                    raise Lacking(self._ended())
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "lacking" in message:
            raise Lacking(f"{self.name}: {message['lacking']}")
        return message

    def _ended(self) -> str:
        """Why the process is gone: its exit status and the last thing it said."""
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{self.name}: its process ended with status {status}" + (f": {said[-1][:200]}" if said else "")
