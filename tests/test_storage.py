"""Where tensors lie: joins and slices that need no kernel, and those that do; compiled models agree with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers import each_target
from random_graphs import random_network
from tilewright.compiler import Choice, compile_graph
from tilewright.graph import ops, optimise
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.passes import prepared
from tilewright.graph.stage import Stage, View
from tilewright.graph.storage import Place, storage
from tilewright.graph.workload import Workload
from tilewright.runtime import load
from tilewright.schedules.target import Target
from tilewright.search_space.fusion import fuse
from tilewright.search_space.space import fallback
from tilewright.tasks import extract

TARGET = Target.host(threads=2)


def plainly(w: Workload) -> Choice:
    """The fallback schedule: quick to find."""
    return Choice(fallback(w, TARGET).schedule({}), "record", "")


def agrees(g: Graph, path: Any = None) -> int:
    """Compile without further passes and compare with the oracle, three calls on different inputs; the number of kernels."""
    g.clean = True
    model = compile_graph(g, TARGET, plainly)
    if path is not None:
        model.save(path)
        model = load(path)
    rng = np.random.default_rng(5)
    for _ in range(3):
        feeds = {n: rng.standard_normal(g.types[n].shape).astype(np.float32) for n in g.inputs}
        for got, want in zip(model.run(feeds), evaluate(g, feeds), strict=True):
            np.testing.assert_allclose(got, want.astype(np.float64), rtol=2e-4, atol=2e-5)
    return len(model.compiled.kernels)


def conv(g: Graph, x: Tensor, co: int, seed: int = 0) -> Tensor:
    """A convolution of windows of one, and an activation."""
    w = np.random.default_rng(seed).standard_normal((co, x.shape[1], 1, 1)).astype(np.float32) / 4
    return ops.relu(ops.conv(x, g.constant(w)))


def split_and_joined(g: Graph) -> Tensor:
    """Halves of a tensor, one of them worked on further, all joined again."""
    x = g.input("x", (1, 8, 4, 4))
    a, b = ops.split(conv(g, x, 16), (8, 8), 1)
    c = conv(g, b, 8, 1)
    return ops.concat([a, b, c, conv(g, c, 8, 2)], 1)


def test_split_and_joined(tmp_path: Any) -> None:
    """Nothing is copied: four kernels, of which three write into the joined tensor; also as a model file."""
    g = Graph()
    y = split_and_joined(g)
    g.output(conv(g, y, 4, 3))
    g.output(ops.exp(y))
    s = storage(g)
    assert y.name in s.absent
    assert s.of(y.name) == Place(y.name, 0)
    assert len(s.parts[y.name]) == 3
    assert agrees(g, tmp_path / "m.tw") == 5


def test_joined_output() -> None:
    """Parts are written straight into an output, at offsets."""
    g = Graph()
    g.output(split_and_joined(g))
    assert agrees(g) == 3


def test_joined_twice() -> None:
    """A joined tensor that is a part of another."""
    g = Graph()
    x = g.input("x", (1, 4, 4, 4))
    inner = ops.concat([conv(g, x, 4, 1), conv(g, x, 8, 2)], 1)
    outer = ops.concat([conv(g, inner, 4, 3), inner], 1)
    g.output(ops.neg(outer))
    s = storage(g)
    assert {inner.name, outer.name} <= s.absent
    assert s.of(inner.name) == Place(outer.name, 4 * 16 * 4)
    agrees(g)


@pytest.mark.parametrize("why", ["input", "constant", "output", "again", "overlap", "alignment", "strided"])
def test_joins_that_need_a_kernel(why: str) -> None:
    """A part that cannot be put in its place."""
    g = Graph()
    n = 3 if why == "alignment" else 4
    x = g.input("x", (2 if why == "strided" else 1, 4, n, n))
    a, b = conv(g, x, 5, 1), conv(g, x, 8, 2)
    if why == "input":
        b = x
    if why == "constant":
        b = g.constant(np.ones((1, 2, 4, 4), np.float32))
    if why == "output":
        g.output(a)
    if why == "again":
        b = a
    if why == "overlap":
        a = ops.split(conv(g, x, 16, 1), (8, 8), 1)[0]
    y = ops.concat([a, b], 1)
    g.output(ops.neg(y))
    assert y.name not in storage(g).absent
    agrees(g)


def test_slices_of_inputs_and_of_outputs() -> None:
    """A slice of an input is read in place; a slice that is an output is a tensor of its own."""
    g = Graph()
    x = g.input("x", (6, 5))
    a, b = ops.split(x, (2, 4), 0)
    y = ops.exp(x)
    c = ops.split(y, (1, 5), 0)[1]
    g.output(ops.neg(b))
    g.output(c)
    g.output(y)
    g.output(g.view(ops.split(y, (3, 3), 0)[0], (15,)))
    s = storage(g)
    assert s.of(b.name) == Place("x", 2 * 5 * 4)
    assert c.name not in s.absent
    assert a.name in s.absent
    agrees(g)


@each_target
def test_views_sink_below_maps(target: Target) -> None:
    """A bias and an activation behind a reshaped product join its kernel, also with other tensors of the new shape."""
    rng = np.random.default_rng(0)
    for shape, bias in (((2, 12, 20), (20,)), ((2, 12, 5, 4), ()), ((24, 5, 4), (24, 1, 1)), ((480,), ())):
        g = Graph()
        x = g.input("x", (24, 16))
        r = g.input("r", shape)
        w = g.constant(rng.standard_normal((16, 20)).astype(np.float32))
        b = g.constant(rng.standard_normal(bias).astype(np.float32))
        y = g.view(ops.matmul(x, w), shape)
        g.output(ops.relu(ops.add(ops.add(y, b), r)))
        clean = optimise(g)
        assert len(fuse(clean, target)) == 1, (shape, bias)
        agrees(clean)


@each_target
def test_views_that_cannot_sink(target: Target) -> None:
    """A bias along an axis that the product's axes do not give by an affine form: the map keeps its own kernel."""
    g = Graph()
    x = g.input("x", (24, 16))
    w = g.constant(np.ones((16, 20), np.float32))
    b = g.constant(np.arange(4, dtype=np.float32))
    g.output(ops.add(g.view(ops.matmul(x, w), (24, 5, 4)), b))
    clean = optimise(g)
    assert len(fuse(clean, target)) == 2
    agrees(clean)


@each_target
def test_another_branch_joins_the_map(target: Target) -> None:
    """An enlarged image is read by the addition that is its only reader."""
    g = Graph()
    x, s = g.input("x", (1, 3, 4, 4)), g.input("y", (1, 3, 8, 8))
    big = g.compute((1, 3, 8, 8), lambda n, c, i, j: x[n, c, i // 2, j // 2])
    scale = g.input("s", (1, 3, 1, 1))
    g.output(ops.add(ops.add(ops.mul(s, scale), s), big))
    assert len(fuse(g, target)) == 1
    agrees(g)


def test_passes_run_on_graphs_built_by_hand() -> None:
    """Tuning and compiling see the same graph, optimised; adding to a graph makes the passes run again."""
    g = Graph()
    x = g.input("x", (2, 8))
    w = g.constant(np.ones((8, 3), np.float32))
    g.output(ops.mul(ops.matmul(x, w), g.constant(np.full(3, 2, np.float32))))
    (task,) = extract(g, TARGET)
    model = compile_graph(g, TARGET, plainly)
    assert [k.workload for k in model.compiled.kernels] == [task.workload.hash]
    assert len(task.workload.stages) == 1
    clean = optimise(g)
    assert prepared(clean) is clean
    clean.output(ops.neg(clean.tensor(clean.outputs[0])))
    assert prepared(clean) is not clean


@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed: int) -> None:
    """Joins, slices, views and residuals between contractions: as built, and after the passes."""
    g = random_network(seed)
    agrees(g)
    clean = optimise(g)
    agrees(clean)
    once = [k.workload.text for k in fuse(clean, TARGET)]
    assert once == [k.workload.text for k in fuse(optimise(random_network(seed)), TARGET)]
    assert all(isinstance(n, Stage | View) for n in clean.nodes)
