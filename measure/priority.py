"""Ask the operating system to run this process before others, so that they disturb a measurement less.

Linux shares the processor between sessions first and between the processes of a session only then, so that a high priority
alone does not help against another session's programs; the session's own weight does.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

HIGHEST = -20
_GROUP = Path("/proc/self/autogroup")


def take_priority() -> bool:
    """Give this process, and the session it leads, the highest priority; whether that was allowed (it needs rights that
    users mostly lack). Call it in a process that leads a session: the weight holds for every process of the session."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, HIGHEST)
        if os.getpid() == os.getsid(0) and _GROUP.exists():
            _GROUP.write_text(str(HIGHEST))
        return True
    return False
