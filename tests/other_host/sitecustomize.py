"""For the processes that tests start under ``--host-target``: the same host there. Python imports this at its start, by its name."""

import os

from host_target import VARIABLE, when_imported

when_imported(os.environ[VARIABLE])
