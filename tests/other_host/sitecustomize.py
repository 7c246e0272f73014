"""For the processes that tests start under ``--host-target``: the same host there. Python imports this module by its name."""

import os

from host_target import VARIABLE, pretend

pretend(os.environ[VARIABLE])
