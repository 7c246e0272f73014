"""Many operands, long chains and deep expressions: they work, or are refused in a clear sentence (FAULTS 15 and 16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph import Graph, GraphError, Tensor, ops
from tilewright.graph.expr import Expr, maximum, select
from tilewright.graph.graph import MAX_DEPTH
from tilewright.graph.traverse import depth, postorder, rewrite
from tilewright.schedules.target import Target

ONE = Target.host(1)


def on_ones(build: Callable[[Graph], Tensor]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The output of a graph, all inputs of which hold ones."""
    g = Graph()
    g.output(build(g))
    model = tilewright.compile(g, ONE)
    (y,) = model.run({p.name: np.ones(p.shape, np.float32) for p in model.inputs})
    return y


@pytest.mark.parametrize("count", [2, 17, 250, 600])
def test_joins_of_many_tensors(count: int) -> None:
    """Concat of 250 inputs ended in a RecursionError. Computed parts are written in place, inputs are copied."""
    g = Graph()
    parts = [g.input(f"x{k}", (1 + k % 3, 4)) for k in range(count)]
    arrays = {f"x{k}": np.full((1 + k % 3, 4), k, np.float32) for k in range(count)}
    g.output(ops.concat(parts, 0))
    g.output(ops.concat([ops.relu(p) for p in parts], 0))
    for y in tilewright.compile(g, ONE).run(arrays):
        np.testing.assert_array_equal(y, np.concatenate(list(arrays.values())))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "want"),
    [(ops.sum_of, 500 * 499 / 2), (ops.mean_of, 499 / 2), (ops.maximum_of, 499), (ops.minimum_of, 0)],
)
def test_operators_of_five_hundred_operands(operator: Callable[..., Tensor], want: float) -> None:
    """Sum of 500 inputs ended in a RecursionError."""

    def build(g: Graph) -> Tensor:
        x = g.input("x", (9,))
        return operator(*(x * k for k in range(500)))

    np.testing.assert_allclose(on_ones(build), np.full(9, want), rtol=1e-5)


@pytest.mark.parametrize("step", [ops.tanh, lambda t: t * 0.999 + 0.001, ops.relu])
def test_long_chains(step: Callable[[Tensor], Tensor]) -> None:
    """Three thousand nodes one after the other, and a reduction at their end."""

    def build(g: Graph) -> Tensor:
        t = g.input("x", (40,))
        for _ in range(3000):
            t = step(t)
        return ops.reduce_sum(t)

    want = np.ones(40)
    g = Graph()
    y = step(g.input("x", (40,)))
    g.output(y)
    one = tilewright.compile(g, ONE)
    single = want.astype(np.float32)
    for _ in range(3000):
        (single,) = one(single)
    np.testing.assert_allclose(on_ones(build).reshape(()), single.sum(), rtol=1e-4)


def test_an_expression_as_deep_as_is_allowed() -> None:
    """One stage, then a group of several."""

    def deep(x: Expr, levels: int) -> Expr:
        e = x
        for k in range(levels):
            e = maximum(e, float(k)) if k % 2 else select(x.lt(k), e, 0.5)
        return e

    def build(g: Graph) -> Tensor:
        x = g.input("x", (33,))
        t = g.compute((33,), lambda i: deep(x[i], 70))
        return g.compute((33,), lambda i: deep(t[i], 70))

    assert on_ones(build).shape == (33,)


def test_deeper_ones_are_refused() -> None:
    def body(i: Expr) -> Expr:
        e: Expr = x[i]
        for _ in range(5000):
            e = e + 1.0
        return e

    g = Graph()
    x = g.input("x", (4,))
    with pytest.raises(GraphError, match=f"at most {MAX_DEPTH} operations inside each other; got 500"):
        g.compute((4,), body)


def test_walks_need_no_depth_of_python() -> None:
    e: Expr = Graph().input("x", ())[()]
    for _ in range(20_000):
        e = e + 1.0
    assert depth(e) == 20_001
    assert sum(1 for _ in postorder(e)) == 20_002
    assert rewrite(e, lambda n: None) is e


OPS: Any = ops  # which are given what they do not take


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda g, x: g.output(OPS.layer_norm(x)),
            r"output: expected one tensor; got 3 in a tuple; take one, as in result\[0\]",
        ),
        (lambda g, x: g.output(np.ones(3)), r"output: expected a tensor of a graph; got ndarray; .* graph.constant"),
        (lambda g, x: g.view(OPS.top_k(x, 1), (4,)), "view: expected one tensor; got 2 in a tuple"),
        (lambda g, x: OPS.relu(OPS.top_k(x, 1)), "relu: x: expected one tensor; got 2 in a tuple"),
        (lambda g, x: OPS.matmul(x, np.ones((4, 4))), "matmul: b: expected a tensor of a graph; got ndarray"),
        (lambda g, x: OPS.add(x, None), "add: b: expected a tensor of a graph; got NoneType"),
        (lambda g, x: OPS.sum_of(x, "y"), "sum_of: operands: expected a tensor of a graph; got str"),
        (lambda g, x: OPS.concat(x), "concat: tensors: expected several tensors; got Tensor"),
        (lambda g, x: OPS.concat([x, 3]), "concat: tensors: expected a tensor of a graph; got int"),
        (lambda g, x: OPS.conv(x, None), "conv: .*: expected a tensor of a graph; got NoneType"),
        (
            lambda g, x: x + Graph().input("x", (4, 4)),
            "add: b: expected a tensor of this graph; got 'x' of another one",
        ),
        (
            lambda g, x: g.output(Graph().input("x", (4, 4))),
            "output: expected a tensor of this graph; got 'x' of another one",
        ),
    ],
)
def test_what_is_no_tensor_is_refused(build: Callable[[Graph, Tensor], object], message: str) -> None:
    g = Graph()
    with pytest.raises(GraphError, match=message):
        build(g, g.input("x", (4, 4)))
