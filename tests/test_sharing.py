"""What passes from core to core between the phases of a candidate."""

from __future__ import annotations

import numpy as np

from helpers import Case, case, each_target, values
from tilewright.cost_model.analysis import analyse
from tilewright.cost_model.prior import prior_ns
from tilewright.cost_model.sharing import foreign_bytes
from tilewright.graph import ops
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.target import Target
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.search_space.space import space

RNG = np.random.default_rng(0)


def convolution() -> Case:
    """3x3 with padding, 32 channels of 32x32."""
    w = values(RNG, (32, 32, 3, 3))

    def make(g: Graph) -> Tensor:
        x, k = g.input("x", (1, 32, 32, 32)), g.constant(w)
        return ops.conv(x, k, pads=(1, 1, 1, 1))

    return case(make, {"x": values(RNG, (1, 32, 32, 32))})


def found(name: str, target: Target) -> Sketch:
    """A sketch of the convolution for two threads by its name."""
    return next(s for s in space(convolution().workload, target.with_threads(2)).sketches if s.name == name)


def foreign(sketch: Sketch, threads: int, row: dict[str, int]) -> list[float]:
    """Bytes read of what other threads wrote, phase by phase, for one candidate."""
    rows = np.array([[row.get(p.name, sketch.preferred[p.name]) for p in sketch.params]])
    models = [p.model for p in analyse(sketch, rows).phases]
    return [float(np.max(x)) for x in foreign_bytes(models, threads)]


@each_target
def test_products_by_blocks_of_tiles_read_what_their_thread_wrote(target: Target) -> None:
    """The transformed data is 36 points of 8x8 tiles and 32 channels: half of it is another thread's where the products are shared out
    by points, and none where blocks of tiles come out even."""
    nbytes = 4 * 36 * 64 * 32
    points = foreign(found("winograd4[3x3,channels,ov]", target), 2, {})
    tiles = foreign(found("winograd4[3x3,channels,ov,by=tiles]", target), 2, {"r0": 4, "r0b": 1})
    assert points[0] == tiles[0] == 0.0
    assert points[1] == nbytes / 2
    assert tiles[1] < nbytes / 2 / 8


@each_target
def test_coarse_blocks_miss_the_border_between_threads_by_more(target: Target) -> None:
    sketch = found("winograd4[3x3,channels,ov,by=tiles]", target)
    fine, coarse = (foreign(sketch, 2, {"r0": 4, "r0b": b})[1] for b in (1, 8))
    assert 0 < fine < coarse


@each_target
def test_nothing_is_foreign_on_one_thread(target: Target) -> None:
    for s in space(convolution().workload, target).sketches:
        if s.name.startswith(("winograd", "staged")):
            assert not any(foreign(s, 1, {}))


@each_target
def test_padding_before_all_loops_is_another_threads_for_half(target: Target) -> None:
    """A padded copy is shared out by channels and rows, and read by every thread whole; made in blocks, it never leaves the thread."""
    before = foreign(found("staged[v=i1,r=i3]", target), 2, {})
    assert before == [0.0, 4 * 32 * 34 * 34 / 2]
    assert foreign(found("staged[v=i1,r=i3,pad=block]", target), 2, {}) == [0.0]


@each_target
def test_the_prior_counts_it(target: Target) -> None:
    """The same products cost less by blocks of tiles."""
    best = []
    for name in ("winograd4[3x3,channels,ov]", "winograd4[3x3,channels,ov,by=tiles]"):
        sketch = found(name, target)
        best.append(float(prior_ns(sketch, enumerate_points(sketch).rows).min()))
    assert best[1] < best[0]
