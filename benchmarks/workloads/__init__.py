"""The operators that are compared: names, shapes, which tensors are constant, and what they compute.

``peers`` is a list of 17 operators from common networks; ``kernelbench`` follows the problem list of
KernelBench (https://github.com/ScalingIntelligence/KernelBench, MIT), reduced to sizes that take a CPU
1 to 20 ms. The problems are written from their names and shapes. ``selection`` has running sums, the best
of rows, and operators that mostly move elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.workloads.builder import Builder
from benchmarks.workloads.kernelbench_suite import add_level_1, add_level_2
from benchmarks.workloads.networks import add_mini_gpt_block, add_mobilenet_v2, add_resnet18
from benchmarks.workloads.peers_suite import add_peers
from benchmarks.workloads.selection_suite import add_selection
from benchmarks.workloads.workload import Workload as Workload

_PARTS = {
    "peers": (add_peers,),
    "selection": (add_selection,),
    "kernelbench": (add_level_1, add_level_2, add_resnet18, add_mobilenet_v2, add_mini_gpt_block),
}
SUITES = tuple(_PARTS)


def suite(name: str, cap: int | None = None) -> dict[str, Workload]:
    """The workloads of a suite by name; ``cap`` cuts sizes down. Raises ValueError for an unknown suite."""
    if name not in SUITES:
        raise ValueError(f"suite: expected one of {', '.join(SUITES)}; got {name!r}")
    b = Builder(name, cap)
    for part in _PARTS[name]:
        part(b)
    return {w.name: w for w in b.made}


def requested(request: Mapping[str, Any]) -> Workload:
    """The workload that a request from another process names."""
    return suite(request["suite"], request["cap"])[request["op"]]
