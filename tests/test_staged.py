"""The staged form of contractions: every candidate gives what the unscheduled workload means, with remainders everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import Case, case, check_sketches, each_target, values
from tilewright.cost_model.prior import prior_ns
from tilewright.graph import ops
from tilewright.graph.expr import maximum
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.target import Target
from tilewright.search_space.sketch import Sketch, enumerate_points
from tilewright.search_space.space import space

RNG = np.random.default_rng(0)


def convolution(channels: int, size: int, out: int, window: int, stride: int, pad: int = 0) -> Case:
    """Constant weights, a bias and an activation; ``pad`` zeros around the image."""
    w = values(RNG, (out, channels, window, window), whole=True)
    bias = values(RNG, (out,), whole=True)
    places = (size + 2 * pad - window) // stride + 1

    def make(g: Graph) -> Tensor:
        x, k, b = g.input("x", (channels, size, size)), g.constant(w), g.constant(bias)
        if pad:
            x = ops.pad(x, (0, pad, pad), (0, pad, pad))
        y = g.compute(
            (out, places, places),
            lambda o, i, j, c, u, v: x[c, i * stride + u, j * stride + v] * k[o, c, u, v],
            (channels, window, window),
            "sum",
        )
        return g.compute((out, places, places), lambda o, i, j: maximum(y[o, i, j] + b[o], 0.0))

    return case(make, {"x": values(RNG, (channels, size, size), whole=True)}, exact=True)


def product(m: int, n: int, k: int, transposed: bool = False) -> Case:
    """Both factors come with the call."""

    def make(g: Graph) -> Tensor:
        a, b = g.input("a", (k, m) if transposed else (m, k)), g.input("b", (k, n))
        return g.compute((m, n), lambda i, j, r: (a[r, i] if transposed else a[i, r]) * b[r, j], (k,), "sum")

    shape = (k, m) if transposed else (m, k)
    data = {"a": values(RNG, shape, whole=True), "b": values(RNG, (k, n), whole=True)}
    return case(make, data, exact=True)


def staged(c: Case, target: Target, threads: int = 1) -> list[Sketch]:
    """The staged sketches of a workload."""
    return [s for s in space(c.workload, target.with_threads(threads)).sketches if s.name.startswith("staged")]


CASES = {
    "strided": lambda: convolution(5, 17, 27, 3, 2),
    "large window": lambda: convolution(3, 23, 20, 7, 2),
    "short rows": lambda: convolution(19, 9, 40, 3, 1),
    "pointwise": lambda: convolution(37, 7, 21, 1, 1),
    "padded": lambda: convolution(6, 15, 20, 3, 1, 1),
    "padded and strided": lambda: convolution(3, 22, 18, 5, 2, 2),
    "product": lambda: product(29, 43, 50),
    "transposed": lambda: product(33, 26, 19, transposed=True),
}


@pytest.mark.slow
@each_target
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_candidates_are_right(name: str, threads: int, target: Target) -> None:
    """A sample of each sketch, and what the prior likes best."""
    c = CASES[name]()
    sketches = staged(c, target, threads)
    assert sketches
    check_sketches(c, sketches, threads, target)


@each_target
def test_channels_are_lanes_of_a_strided_convolution(target: Target) -> None:
    """Vectors of output channels come first: no load jumps from lane to lane, and the block is written out transposed."""
    c = convolution(16, 33, 32, 3, 2)
    channels = max(staged(c, target), key=lambda s: -float(prior_ns(s, enumerate_points(s).rows).min()))
    assert channels.name == "staged[v=i0,r=i2]"


@each_target
def test_no_staged_form_without_reuse(target: Target) -> None:
    """A depthwise convolution has no factor that is the same for a whole vector: nothing is staged."""
    w = values(RNG, (16, 3))

    def make(g: Graph) -> Tensor:
        x, k = g.input("x", (16, 20)), g.constant(w)
        return g.compute((16, 18), lambda c, i, u: x[c, i + u] * k[c, u], (3,), "sum")

    assert not [s for s in staged(case(make, {"x": values(RNG, (16, 20))}), target) if s.name == "staged[v=i0,r=i1]"]


@each_target
def test_padding_is_made_for_a_block_of_rows_where_that_is_offered(target: Target) -> None:
    """Its own sketch, in which no program comes before the convolution's; no such sketch without padding."""
    found = [s for s in staged(CASES["padded and strided"](), target, 2) if s.name.endswith("pad=block]")]
    assert found
    assert all(len(s.structure) == 1 for s in found)
    assert not [s for s in staged(CASES["strided"](), target, 2) if s.name.endswith("pad=block]")]
