"""A candidate that is known to be good, to tell a broken device from broken candidates."""

from __future__ import annotations

import functools

from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload, canonical

SIZE = 4096


@functools.cache
def tiny_workload() -> Workload:
    """``y[i] = 2 * x[i] + 1`` over a few KiB; its empty schedule is legal on every target."""
    g = Graph()
    x = g.input("x", (SIZE,))
    y = g.compute((SIZE,), lambda i: x[i] * 2.0 + 1.0)
    return canonical(g.nodes, y.name, g.types, ())[0]
