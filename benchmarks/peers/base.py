"""What every peer has."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar

from benchmarks.common import Array, Side
from benchmarks.serve import Lacking
from benchmarks.workloads import Workload


class Peer(ABC):
    """A library, set to a number of threads. Making one raises Lacking where the library is not there."""

    name: ClassVar[str]
    version: str

    @abstractmethod
    def __init__(self, threads: int) -> None: ...

    @abstractmethod
    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        """A workload ready to run. Raises Lacking. A peer may hold one workload at a time: a side is of no use
        after the next call of this method."""

    def close(self) -> None:  # noqa: B027 (most peers hold nothing)
        """Let go of whatever the peer holds."""


def needed(name: str) -> ModuleType:
    """A module of a library. Raises Lacking if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Lacking(f"{name} is not installed ({error})") from error


def call_inputs(workload: Workload, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What comes with a call."""
    return {i.name: arrays[i.name] for i in workload.inputs if not i.constant}
