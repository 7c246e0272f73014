"""The process around a worker: it reads messages, has them answered, and ends when its parent does."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tilewright.measure.messages import LARGEST, LENGTH, Decoder, Message, encode
from tilewright.measure.priority import take_priority
from tilewright.measure.worker import Worker
from tilewright.schedules.target import Target

_PR_SET_PDEATHSIG = 1


def resident_bytes() -> int:
    """Resident memory of this process (0 where the system does not tell)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends, however it ends (Linux; elsewhere a worker notices when it is next
    idle)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def limit_address_space(wanted: int) -> int:
    """Limit this process to ``wanted`` bytes of address space, or to what a tighter limit that it has already allows; the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = min([wanted, *(n for n in (soft, hard) if n != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    return allowed


def serve(worker_type: type[Worker]) -> None:
    """Answer messages from standard input on standard output until it ends. The first message is the
    greeting, with the ``target``, the parent's process ``id``, ``memory`` (a limit in bytes, 0 for none)
    and a ``folder``."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what anything here prints must not end up between the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides when a worker ends
    decoder = Decoder()
    greeting = _read(decoder)
    if greeting is None:
        return
    die_with_parent(greeting["parent"])
    memory = limit_address_space(greeting["memory"]) if greeting["memory"] else 0
    if greeting["cpus"]:
        os.sched_setaffinity(0, greeting["cpus"])
    folder = Path(greeting["folder"]) if greeting["folder"] else None
    worker = worker_type(Target.from_json(greeting["target"]), folder)
    _write(answers, {"status": "ready", "resident": resident_bytes()})
    while (message := _read(decoder)) is not None:
        try:
            answer: dict[str, Any] = worker.answer(message)
        except MemoryError as error:
            # the process is of no use any more: the runner replaces it
            _write(
                answers,
                {"status": "crash", "error": f"out of memory (limit: {memory} bytes): {error}"},
            )
            return
        _write(answers, {**answer, "resident": resident_bytes()})


def _read(decoder: Decoder) -> Message | None:
    while (message := decoder.next()) is None:
        data = os.read(0, 1 << 16)
        if not data:
            return None
        decoder.feed(data)
    return message


def _write(handle: int, message: Message) -> None:
    data = memoryview(encode(message))
    if len(data) > LARGEST + LENGTH.size:
        raise MemoryError(f"an answer of {len(data)} bytes")
    while data:
        data = data[os.write(handle, data) :]


def main() -> None:
    """Entry of the process that a runner starts."""
    take_priority()
    serve(Worker)


if __name__ == "__main__":
    main()
