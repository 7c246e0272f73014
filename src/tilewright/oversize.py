"""Refusing what this machine has not the memory for, before any work is done for it."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.compiled import ModelError
from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload
from tilewright.measure import shortage
from tilewright.schedules.target import HOST, Target


def refuse_oversize(graph: Graph, target: Target) -> None:
    """Raise ModelError for a graph whose inputs, outputs and constants alone are more than this machine's memory, before any work is
    done for it. Graphs for other machines are not judged."""
    if target.name != HOST:
        return
    ports = [
        *((f"input {n}", n) for n in graph.inputs),
        *zip((f"output {n}" for n in graph.output_names), graph.outputs, strict=True),
    ]
    needs = {f"{what} of {'x'.join(map(str, graph.types[t].shape))}": graph.types[t].nbytes for what, t in ports}
    needs["constants"] = sum(c.nbytes for c in graph.constants.values())
    lacking = shortage(needs)
    if lacking:
        raise ModelError(f"the model {lacking}; give smaller shapes, or use a larger machine")


def refuse_large_kernels(kernels: Iterable[tuple[str, Workload]], target: Target) -> None:
    """Raise ModelError for a kernel (a name for people, a workload) whose inputs and output are more than this machine's memory."""
    if target.name != HOST:
        return
    needs = {f"kernel {origin}: {w.describe()}": w.min_bytes for origin, w in kernels}
    largest = max(needs, key=lambda name: needs[name], default="")
    lacking = shortage({largest: needs[largest]}) if needs else None
    if lacking:
        raise ModelError(f"the model {lacking}; give smaller shapes, or use a larger machine")
