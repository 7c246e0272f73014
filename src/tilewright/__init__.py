"""Tilewright: an autotuning search framework with a learned cost model. Write once, run fast on any chip.

The public names are loaded when they are first used, so that a measurement worker (which imports only what it measures with)
starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.api import compile as compile
    from tilewright.api import load as load
    from tilewright.api import load_compiled as load_compiled
    from tilewright.api import records_lookup as records_lookup
    from tilewright.compiled import ModelError as ModelError
    from tilewright.compiler import MissError as MissError
    from tilewright.graph.graph import Graph as Graph
    from tilewright.graph.graph import Tensor as Tensor
    from tilewright.measure import Policy as Policy
    from tilewright.runtime import Executable as Executable
    from tilewright.schedules.steps import Schedule as Schedule
    from tilewright.schedules.steps import ScheduleError as ScheduleError
    from tilewright.schedules.target import Target as Target
    from tilewright.tuner import Budget as Budget
    from tilewright.tuner import TuneError as TuneError
    from tilewright.tuner import TuneResult as TuneResult
    from tilewright.tuner import tune as tune
    from tilewright.tuning_logs import Store as Store

__version__ = "0.1.0"

_HOMES = {
    "Budget": "tuner",
    "Executable": "runtime",
    "Graph": "graph.graph",
    "MissError": "compiler",
    "ModelError": "compiled",
    "Policy": "measure",
    "Schedule": "schedules.steps",
    "ScheduleError": "schedules.steps",
    "Store": "tuning_logs",
    "Target": "schedules.target",
    "Tensor": "graph.graph",
    "TuneError": "tuner",
    "TuneResult": "tuner",
    "compile": "api",
    "load": "api",
    "load_compiled": "api",
    "records_lookup": "api",
    "tune": "tuner",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tilewright.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
