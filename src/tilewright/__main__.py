"""The program: signals are seen to before anything else is imported, and whatever a command does ends with a documented exit code."""

from __future__ import annotations

import os
import sys

from tilewright import signals

EXIT_USAGE, EXIT_CLOSED_PIPE = 2, 141
"""As in ``options``, which is not imported yet."""


def main() -> int:
    """Run the command line on the program's arguments; the exit code."""
    signals.end_at_once()
    _open_missing()
    try:
        from tilewright.program import run
    except (ImportError, MemoryError, OSError) as error:
        print(f"error: the program cannot start: {error or type(error).__name__}", file=sys.stderr)
        return EXIT_USAGE
    signals.interrupt_once()
    try:
        code = run()
    except BaseException:
        if not signals.received():
            raise
        code = signals.exit_code()  # what an interrupt became on its way through other code
    code = _flushed(code)
    signals.ignore()
    return code


def _open_missing() -> None:
    """Give a program that was started without standard streams some that lead nowhere: else the next file it opens, a store say, would
    get what is printed."""
    for handle in (0, 1, 2):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _flushed(code: int) -> int:
    """The exit code after what is left in the buffers was written, which the interpreter would complain about if it failed later."""
    for stream, handle in ((sys.stdout, 1), (sys.stderr, 2)):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError as error:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, handle)
            os.close(nothing)
            if handle == 1 and code == 0:
                code = EXIT_CLOSED_PIPE if isinstance(error, BrokenPipeError) else EXIT_USAGE
    return code


if __name__ == "__main__":
    sys.exit(main())
