"""A worker process seen from its runner: started, spoken to with a time limit, killed with its whole
group."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final, final

from tilewright.measure.messages import Decoder, Message, MessageError, encode
from tilewright.measure.request import DeviceError

_PROGRAM: Final = """
import importlib, importlib.util, sys
spec = importlib.util.find_spec("tilewright")
sys.modules["tilewright"] = importlib.util.module_from_spec(spec)
importlib.import_module(sys.argv[1]).main()
"""
START_S: Final = 60.0
"""Most seconds for a worker to start."""
_TAIL: Final = 8000


def command(module: str = "tilewright.measure.worker_process") -> tuple[str, ...]:
    """The command line of a worker: ``main()`` of a module that is on the import path.

    The front door of the package is not run in it, because that imports the whole tuner.
    """
    return (sys.executable, "-P", "-c", _PROGRAM, module)


class WorkerTimeout(RuntimeError):
    """No answer within the limit; the worker was killed."""


class WorkerCrash(RuntimeError):
    """The worker ended, or answered nonsense; the text says how, with the end of what it printed."""


@final
class WorkerProcess:
    """One worker in a session and process group of its own.

    Raises DeviceError if it cannot be started. After a timeout or a crash the object is of no more use.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], greeting: Message) -> None:
        self._errors = _error_file()
        self._decoder = Decoder()
        self.alive = True
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise DeviceError(f"worker: expected {command[0]!r} to start; got {error}") from error
        try:
            self.send({**greeting, "parent": os.getpid()})
            answer = self.receive(START_S)
        except (WorkerTimeout, WorkerCrash) as error:
            raise DeviceError(f"worker: expected it to start; got: {error}") from error
        except BaseException:
            self.kill()
            raise
        self.resident = int(answer.get("resident", 0))
        self.started_resident = self.resident

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process group."""
        return self._process.pid

    def fileno(self) -> int:
        """What becomes readable when an answer comes."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def exited(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def send(self, message: Message) -> None:
        """Send a message. Raises WorkerCrash if the worker is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
        except OSError:
            raise self._crash("is gone") from None

    def receive(self, seconds: float) -> Message:
        """The next answer. Raises WorkerTimeout after ``seconds``, WorkerCrash if the worker ends or answers
        nonsense; either way it is killed."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno(), selectors.EVENT_READ)
            while True:
                answer = self.parse()
                if answer is not None:
                    return answer
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    if deadline - time.monotonic() > 0:
                        continue
                    self.kill()
                    raise WorkerTimeout(f"no answer within {seconds:.3g} s")
                self.read()

    def read(self) -> None:
        """Take what is there. Raises WorkerCrash at the end of the stream."""
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            raise self._crash("ended")
        self._decoder.feed(data)

    def parse(self) -> Message | None:
        """A complete answer, if there is one. Raises WorkerCrash if what came is none."""
        try:
            answer = self._decoder.next()
        except MessageError as error:
            raise self._crash(f"answered nonsense: {error}") from error
        if answer is None:
            return None
        if "status" not in answer:
            raise self._crash(f"answered nonsense: expected a status; got {str(answer)[:80]}")
        self.resident = int(answer.get("resident", 0))
        return answer

    def _crash(self, what: str) -> WorkerCrash:
        """Kill the worker and describe its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1 if what == "ended" or what == "is gone" else 0)
        code = self._process.poll()
        printed = self._printed()
        self.kill()
        if code is None:
            end = ""
        elif code < 0:
            end = f" (killed by {signal.Signals(-code).name})"
        else:
            end = f" (exit code {code})"
        return WorkerCrash(f"the worker {what}{end}" + (f"\n{printed}" if printed else ""))

    def _printed(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        return self._errors.read().decode(errors="replace").strip()

    def kill(self) -> None:
        """End the whole group and free everything. May be called twice."""
        if not self.alive:
            return
        self.alive = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(OSError):  # a full pipe to a dead process
                stream.close()


def _error_file() -> IO[bytes]:
    """Where a worker's complaints go; closed by :meth:`WorkerProcess.kill`."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise DeviceError(
            f"worker: expected room for temporary files; got: {error}; set TMPDIR to a folder that can be written"
        ) from error


def environment(parent: Mapping[str, str], threads: int) -> dict[str, str]:
    """A worker's environment: the parent's, with the thread count of the target for OpenMP and one thread for
    the BLAS that computes references, and the parent's import path."""
    count = str(threads)
    path = os.pathsep.join(p for p in sys.path if p)
    return {
        **parent,
        "OMP_NUM_THREADS": count,
        "OMP_DYNAMIC": "false",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }
