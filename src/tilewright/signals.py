"""What Ctrl-C (and being told to end, or losing the terminal) does to the command line.

While the program starts, a signal ends it at once: nothing has begun. A command is interrupted by an exception,
so that files are whole, workers end and what was measured is shown. A second signal ends the program at once, also where the first one
waits for machine code to return (a thread of its own looks for signals): nothing that was measured is lost by that, workers end with
their parent, and what a killed run leaves on the disk is removed by the next one. The exit code is 128 and the number of the first
signal: 130 for Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOTE = b"\ninterrupted: ending what was begun (once more: at once)\n"
_SHOW_CURSOR = b"\x1b[?25h"
_received: list[int] = []


class Interrupted(KeyboardInterrupt):
    """The first signal. A class of its own, because where a plain KeyboardInterrupt passes code that is run from text, Python remembers
    to end by SIGINT, whatever becomes of it."""


def exit_code() -> int:
    """What an interrupted command ends with."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def received() -> bool:
    """Whether a signal has interrupted the command."""
    return bool(_received)


def end_at_once() -> None:
    """From now on a signal ends the program. Signals that the caller had ignored stay ignored."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def interrupt_once() -> None:
    """From now on the first signal raises Interrupted, and the second one ends the program."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def ignore() -> None:
    """From now on signals do nothing: all is done, and the exit code is decided."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _watch(reader: int) -> None:
    """Ends the program at the second signal, whatever the main thread is doing."""
    first = _next(reader)
    _tell(_NOTE)
    _next(reader)
    if os.isatty(2):
        _tell(_SHOW_CURSOR)
    os._exit(128 + first)


def _next(reader: int) -> int:
    """The number of the next signal that is one of ours."""
    while (number := os.read(reader, 1)[0]) not in _SIGNALS:
        continue
    return number


def _tell(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:  # nobody reads it any more
        return


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if not _received:
        _received.append(number)
        raise Interrupted


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
