"""Features and the analytic prior: defined for every sketch, sane in direction, and fast on arrays of
candidates."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.cost_model.analysis import analyse, analyses
from tilewright.cost_model.features import FEATURES, features, features_and_prior
from tilewright.cost_model.prior import estimate, prior_ns
from tilewright.cost_model.traffic import footprint
from tilewright.graph.expr import Load, all_of, cast, maximum, select, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.workload import Workload, canonical
from tilewright.schedules.target import Target
from tilewright.search_space.access import Access
from tilewright.search_space.sketch import Ints, Sketch, enumerate_points
from tilewright.search_space.space import space

TARGET = Target.load("x86-64-v3").with_threads(2)


def finish(g: Graph, out: Tensor) -> Workload:
    g.output(out)
    return canonical(g.nodes, out.name, g.types, g.constants)[0]


def matmul(m: int, n: int, k: int, dtype: str = "float32", constant: bool = True) -> Workload:
    g = Graph()
    a = g.input("a", (m, k), dtype)
    b = g.constant(np.ones((k, n)), "b", dtype) if constant else g.input("b", (k, n), dtype)
    return finish(g, g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], reduce=(k,), reducer="sum"))


def conv(channels: int, size: int, out: int, stride: int = 1) -> Workload:
    g = Graph()
    x = g.input("x", (1, channels, size, size))
    w = g.constant(np.ones((out, channels, 3, 3)), "w", "float32")
    p = g.compute(
        (1, channels, size + 2, size + 2),
        lambda n, c, i, j: select(
            all_of([i.ge(1), i.lt(size + 1), j.ge(1), j.lt(size + 1)]), x[n, c, i - 1, j - 1], 0.0
        ),
    )
    after = (size - 1) // stride + 1
    y = g.compute(
        (1, out, after, after),
        lambda n, o, i, j, c, u, v: p[n, c, i * stride + u, j * stride + v] * w[o, c, u, v],
        reduce=(channels, 3, 3),
        reducer="sum",
    )
    return finish(g, g.compute((1, out, after, after), lambda *i: maximum(y[i], 0.0)))


def softmax(rows: int, columns: int) -> Workload:
    g = Graph()
    x = g.input("x", (rows, columns))
    m = g.compute((rows, 1), lambda i, j, k: x[i, k], reduce=(columns,), reducer="max")
    e = g.compute((rows, columns), lambda i, j: unary("exp", x[i, j] - m[i, 0]))
    s = g.compute((rows, 1), lambda i, j, k: e[i, k], reduce=(columns,), reducer="sum")
    return finish(g, g.compute((rows, columns), lambda i, j: e[i, j] / s[i, 0]))


def transpose(a: int, b: int) -> Workload:
    g = Graph()
    x = g.input("x", (a, b))
    return finish(g, g.compute((b, a), lambda i, j: x[j, i]))


def total(shape: tuple[int, ...]) -> Workload:
    """A sum to a scalar."""
    g = Graph()
    x = g.input("x", shape)
    return finish(g, g.compute((), lambda i, j: x[i, j], reduce=shape, reducer="sum"))


def gather() -> Workload:
    g = Graph()
    table, at = g.input("table", (50, 16)), g.input("at", (9,), "int64")
    return finish(g, g.compute((9, 16), lambda i, j: Load("float32", table.name, (at[i], j))))


def integers() -> Workload:
    g = Graph()
    x = g.input("x", (7, 40), "int32")
    return finish(g, g.compute((7, 40), lambda i, j: cast(x[i, j] * 2, "float32")))


def scalar_map() -> Workload:
    g = Graph()
    x = g.input("x", ())
    return finish(g, g.compute((), lambda: x[()] * 2.0))


def masks() -> Workload:
    g = Graph()
    x = g.input("x", (3, 33))
    return finish(g, g.compute((3, 33), lambda i, j: x[i, j].lt(0.5)))


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "matmul": lambda: matmul(64, 96, 80),
    "odd matmul": lambda: matmul(13, 7, 5),
    "double matmul": lambda: matmul(32, 48, 16, "float64"),
    "row matmul": lambda: matmul(1, 40, 30),
    "column matmul": lambda: matmul(40, 1, 30),
    "single point": lambda: matmul(1, 1, 1),
    "conv": lambda: conv(8, 14, 16),
    "strided conv": lambda: conv(3, 9, 5, 2),
    "softmax": lambda: softmax(5, 100),
    "narrow softmax": lambda: softmax(40, 3),
    "transpose": lambda: transpose(37, 64),
    "total": lambda: total((5, 77)),
    "gather": gather,
    "integers": integers,
    "scalar map": scalar_map,
    "masks": masks,
}


def points(sketch: Sketch, most: int = 400) -> Ints:
    rows = enumerate_points(sketch, limit=4000).rows
    return rows[:: max(1, len(rows) // most)]


def row(sketch: Sketch, **values: int) -> Ints:
    """The preferred candidate with some parameters changed."""
    chosen = {**sketch.preferred, **values}
    return np.array([[chosen[p.name] for p in sketch.params]], dtype=np.int64).reshape(1, -1)


def find(workload: Workload, prefix: str, target: Target = TARGET) -> Sketch:
    return next(s for s in space(workload, target).sketches if s.name.startswith(prefix))


@pytest.mark.parametrize("name", WORKLOADS)
def test_defined_for_every_sketch(name: str) -> None:
    for target in (TARGET, TARGET.with_threads(1), Target.load("generic-rv64gcv")):
        for sketch in space(WORKLOADS[name](), target).sketches:
            rows = points(sketch)
            x, prior = features_and_prior(sketch, rows)
            assert FEATURES.check(x).shape == (len(rows), len(FEATURES.features))
            assert prior.shape == (len(rows),)
            assert np.isfinite(prior).all()
            assert (prior > 0).all()


def test_no_candidates() -> None:
    sketch = find(matmul(64, 96, 80), "tile")
    none = np.empty((0, len(sketch.params)), dtype=np.int64)
    assert features(sketch, none).shape == (0, len(FEATURES.features))
    assert prior_ns(sketch, none).shape == (0,)


def test_every_feature_is_documented() -> None:
    assert 40 <= len(FEATURES.features) <= 64
    for feature in FEATURES.features:
        assert feature.name.isidentifier()
        assert feature.unit
        assert len(feature.reason) > 10


def test_features_and_prior_agree_with_the_parts() -> None:
    sketch = find(conv(8, 14, 16), "tile")
    rows = points(sketch)
    x, prior = features_and_prior(sketch, rows)
    assert np.array_equal(x, features(sketch, rows))
    assert np.array_equal(prior, prior_ns(sketch, rows))
    assert np.array_equal(estimate(analyse(sketch, rows)).total, prior)
    assert np.allclose(x[:, FEATURES.index("prior")], np.log2(prior), rtol=1e-5)


def test_a_phase_of_which_nothing_is_searched_is_analysed_once() -> None:
    """Sketches that have such a phase in common share its cost; it counts for every candidate."""
    sketches = [s for s in space(conv(8, 14, 16), TARGET).sketches if s.name.startswith("winograd2[3x3,tiles")]
    rows = [points(s) for s in sketches]
    fixed, *others = [
        [p for p in analyse(s, r).phases if p.share.shape != (len(r),)] for s, r in zip(sketches, rows, strict=True)
    ]
    assert fixed
    assert others
    for other in others:
        assert all(p is q for p, q in zip(fixed, other, strict=True))
    for s, r in zip(sketches, rows, strict=True):
        one = estimate(analyse(s, r[:1])).total
        assert estimate(analyse(s, r)).total.shape == (len(r),)
        assert np.allclose(estimate(analyse(s, r)).total[0], one)


def test_a_candidate_does_not_depend_on_its_neighbours() -> None:
    sketch = find(matmul(61, 97, 80), "tile")
    rows = points(sketch, 60)
    x, prior = features_and_prior(sketch, rows)
    for k in range(0, len(rows), 7):
        one, alone = features_and_prior(sketch, rows[k : k + 1])
        assert np.allclose(one[0], x[k], rtol=1e-6)
        assert np.isclose(alone[0], prior[k])


def test_candidates_are_told_apart() -> None:
    sketch = find(matmul(256, 256, 256), "tile")
    rows = points(sketch)
    assert len(np.unique(features(sketch, rows), axis=0)) > 0.9 * len(rows)


def test_register_tiles_beat_scalar_code() -> None:
    workload = matmul(256, 256, 256)
    tile, fallback = find(workload, "tile[v=i1"), find(workload, "fallback")
    good = prior_ns(tile, row(tile, v=16, r0=6))[0]
    assert prior_ns(fallback, row(fallback))[0] > 20 * good
    assert prior_ns(tile, row(tile, v=8, r0=1))[0] > 1.5 * good  # one accumulator waits for itself


def test_spilled_accumulators_cost() -> None:
    tile = find(matmul(256, 256, 256), "tile[v=i1")
    fits, spills = row(tile, v=16, r0=6), row(tile, v=32, r0=6)
    column = FEATURES.index("spills")
    assert features(tile, fits)[0, column] < features(tile, spills)[0, column]
    assert prior_ns(tile, spills)[0] > prior_ns(tile, fits)[0]


def test_blocking_reduces_traffic() -> None:
    """Tiles of a block share its rows; without blocks each tile reads them again."""
    workload = matmul(1500, 1500, 1500)
    tile = find(workload, "tile[v=i1")
    one = analyse(tile, row(tile, vb=1, r0b=1)).main()
    blocked = analyse(tile, row(tile, vb=1, r0b=64)).main()
    assert blocked.traffic[1][0] < one.traffic[1][0]


def test_more_bytes_more_traffic() -> None:
    last = 0.0
    for size in (64, 256, 1024, 4096):
        sketch = find(transpose(size, size), "map")
        traffic = analyse(sketch, row(sketch)).main().traffic[0][0]
        assert traffic > last
        last = float(traffic)


def test_power_of_two_strides_conflict() -> None:
    even, odd = (find(transpose(size, size), "map[v=i1]") for size in (1024, 1030))
    conflict = [analyse(s, row(s)).main().conflict[0] for s in (even, odd)]
    assert conflict[0] > 4 * conflict[1]
    assert prior_ns(even, row(even))[0] > 1.5 * prior_ns(odd, row(odd))[0]


def test_strides_close_to_a_power_of_two_conflict() -> None:
    """One element more than a power of two does not spread a few rows over the sets of a cache; a line more does."""
    even, near, odd = (footprint_of_rows(size) for size in (65536, 65537, 65552))
    assert even > near > 10 * odd


def test_crowded_lines_that_are_used_whole_are_fetched_ahead() -> None:
    """Columns of a matrix a cache line wide: not where each line is in a page of its own."""

    def scattered(size: int, width: int) -> float:
        sketch = find(matmul(96, size, 512, constant=False), "tile[v=i1,r=i0,ov,pack=-]")
        a = analyse(sketch, row(sketch, v=width, vb=1, r0=6, r0b=8, u0=4))
        return float(a.main().scattered[0][0])

    assert scattered(512, 16) == 0
    assert scattered(512, 8) > 0
    assert scattered(1024, 16) > 0


def test_long_steps_touch_few_places() -> None:
    """Two axes that walk one dimension: a few values of the one that takes long steps do not touch all that is between."""
    a = Access("x", 4, 4096 * 16, ((4096, (("p", 1024), ("q", 1))), (16, (("j", 1),))), False, False, False)
    assert a.footprint({"p": 3.0, "q": 2.0, "j": 16.0}) == 3 * 2 * 16
    assert a.lines({"p": 3.0, "q": 2.0, "j": 16.0}, 64) == 6
    window = Access("x", 4, 64, ((64, (("i", 1), ("k", 1))),), False, False, False)
    assert window.footprint({"i": 8.0, "k": 3.0}) == 10


def footprint_of_rows(size: int) -> float:
    """What the first elements of 32 rows of so many take of the first cache."""
    a = Access("x", 4, 32 * size, ((32, (("i", 1),)), (size, (("k", 1),))), False, False, False)
    return float(footprint(a, {"i": 32.0, "k": 1.0}, TARGET).occupied[0])


def test_uneven_tiles_are_seen() -> None:
    column = FEATURES.index("tail")
    even, odd = (find(matmul(size, size, 64), "tile[v=i1") for size in (96, 97))
    assert features(even, row(even, v=16, r0=6))[0, column] == 0
    assert features(odd, row(odd, v=16, r0=6))[0, column] > 0


def test_threads_help_where_there_is_work_for_them() -> None:
    workload = matmul(512, 512, 512)
    times = []
    for threads in (1, 2, 8):
        tile = find(workload, "tile[v=i1", TARGET.with_threads(threads))
        times.append(prior_ns(tile, row(tile, vb=4, r0b=4))[0])
    assert times[0] > 1.6 * times[1] > 1.6 * times[2]
    tile = find(matmul(6, 16, 64), "tile[v=i1", TARGET.with_threads(8))
    alone = features(tile, row(tile, v=16, vb=1, r0=6, r0b=1))
    assert alone[0, FEATURES.index("idle")] == pytest.approx(3)  # one tile: seven of eight threads wait


def test_stages_of_a_phase_share_what_they_read() -> None:
    """The second pass over a row finds it in the cache."""
    sketch = find(softmax(512, 1024), "rows[v=column")
    first, *others = analyse(sketch, row(sketch)).phases[0].stages
    assert first.traffic[0][0] > 0
    assert others[0].traffic[0][0] == 0


def test_collapsed_axes_cover_all_dimensions() -> None:
    """An axis that stands for two dimensions of a tensor touches all of it."""
    sketch = find(conv(8, 14, 16), "fallback")
    stage = analyse(sketch, row(sketch)).phases[-1].stages[-1].model
    for a in stage.accesses:
        whole = a.footprint({x: float(e) for x, e in stage.extents.items()})
        assert whole == pytest.approx(a.total)


def test_chunks_cover_all_rows() -> None:
    sketch = find(matmul(256, 256, 256), "tile")
    rows = np.resize(points(sketch), (20_000, len(sketch.params)))
    parts = list(analyses(sketch, rows))
    assert sum(a.n for _, a in parts) == len(rows)
    assert len(parts) > 1


@pytest.mark.timing
def test_speed() -> None:
    """100,000 candidates take about 0.4 s of one core; the bound allows for slow and busy machines."""
    sketch = find(conv(64, 56, 64), "tile")
    rows = np.resize(points(sketch, 4000), (100_000, len(sketch.params)))
    start = time.thread_time()
    features_and_prior(sketch, rows)
    assert time.thread_time() - start < 3.0
