"""The whole core in one page: a graph, its workload, its space, one schedule, a kernel, and NumPy's
answer."""

from __future__ import annotations

import numpy as np

from tilewright.graph.expr import maximum
from tilewright.graph.graph import Graph
from tilewright.graph.workload import canonical
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.steps import parse
from tilewright.schedules.target import Target
from tilewright.search_space.space import space


def test_a_graph_becomes_a_kernel_that_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((37, 29)).astype(np.float32)
    b = rng.standard_normal((29, 50)).astype(np.float32)

    g = Graph()
    x, w = g.input("x", a.shape), g.constant(b, "w")
    c = g.compute((37, 50), lambda i, j, k: x[i, k] * w[k, j], reduce=(29,), reducer="sum")
    y = g.compute((37, 50), lambda i, j: maximum(c[i, j], 0.0))
    g.output(y)

    workload, names = canonical(g.nodes, y.name, g.types, g.constants)
    target = Target.host(threads=2)
    sketch = space(workload, target).sketches[0]
    schedule = sketch.schedule(sketch.preferred)
    assert parse(str(schedule)) == schedule

    kernel = Kernel(build(workload, schedule, target))
    out = kernel({c: a if names[c] == "x" else b for c, _, _ in workload.inputs})
    np.testing.assert_allclose(out, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)
