"""What the search itself costs: building a candidate, and ranking a hundred thousand.

python benchmarks/overhead.py
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

from tilewright.cost_model import Dataset, default_ranker
from tilewright.cost_model.features import FEATURES, features_and_prior
from tilewright.graph import ops
from tilewright.graph.graph import Graph
from tilewright.schedules import jit
from tilewright.schedules.kernel import build
from tilewright.schedules.lower import module
from tilewright.schedules.target import Target
from tilewright.search_space.ranked import RankedStrategy
from tilewright.search_space.sketch import enumerate_points
from tilewright.search_space.space import space
from tilewright.tasks import extract

CANDIDATES = 100_000


def main() -> None:
    """Print both figures as JSON."""
    target = Target.host()
    g = Graph()
    a, b = g.input("a", (1024, 1024)), g.input("b", (1024, 1024))
    g.output(ops.matmul(a, b))
    (task,) = extract(g, target)
    of = space(task.workload, target)
    strategy = RankedStrategy(of, lambda s, rows: features_and_prior(s, rows)[1])
    builds = []
    for candidate in strategy.ask(40):
        start = time.perf_counter()
        jit.compile_text(module([build(task.workload, candidate.schedule, target).lowered]), target)
        builds.append(time.perf_counter() - start)
    sketch = max(of.sketches, key=lambda s: s.size)
    rows = enumerate_points(sketch, 200_000).rows
    x, prior = features_and_prior(sketch, rows[:500])
    noise = np.random.default_rng(0).lognormal(0.0, 0.3, len(prior))
    data = Dataset(x, prior, prior * noise, np.asarray([task.workload.hash] * len(prior)), FEATURES.digest)
    ranker = default_ranker().fit(data)
    many = np.resize(rows, (CANDIDATES, rows.shape[1]))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        x, prior = features_and_prior(sketch, many)
        ranker.predict_ns(x, prior)
        times.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "median_build_ms": round(1e3 * statistics.median(builds), 1),
                "builds": len(builds),
                "rank_s": round(statistics.median(times), 3),
                "candidates": CANDIDATES,
                "sketch": sketch.name,
            }
        )
    )


if __name__ == "__main__":
    main()
