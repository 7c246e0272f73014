"""The command line as a program: whatever way a command ends, it is a documented exit code."""

from __future__ import annotations

import errno
import io
import sys

import click

from tilewright import signals
from tilewright.cli import main
from tilewright.display import tell
from tilewright.options import EXIT_CLOSED_PIPE, EXIT_USAGE


def run() -> int:
    """The program's command with its arguments; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name in letters that the terminal lacks is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        ended = main(prog_name="tilewright", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except click.Abort:
        return signals.exit_code()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT):
            raise
        tell(f"error: cannot write the output: {error.strerror}")  # of click's own: its help
        return EXIT_USAGE
    except SystemExit as end:  # 1 is click's answer to a closed pipe (of its help, say)
        return EXIT_CLOSED_PIPE if end.code == 1 else int(end.code or 0)
    return int(ended or 0)
