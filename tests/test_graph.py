"""Building graphs, what operators refuse, and the passes: each keeps the values and leaves what it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.graph import Graph, GraphError, Stage, Tensor, View, evaluate, ops, optimise, passes
from tilewright.graph.edits import eliminate_dead
from tilewright.graph.expr import Const, Op, const, var
from tilewright.graph.scaling import fold_scaling
from tilewright.graph.traverse import walk

Build = Callable[..., Tensor]


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same_values(before: Graph, after: Graph) -> None:
    """Both graphs give the same outputs on random inputs."""
    arrays = {n: random(*before.types[n].shape, seed=k) for k, n in enumerate(before.inputs)}
    assert after.inputs == before.inputs
    assert after.output_names == before.output_names
    for a, b in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        got: Any = b
        want: Any = a
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def reductions(g: Graph) -> int:
    """Number of stages that reduce."""
    return passes.count(g)["reductions"]


def test_compute_is_index_notation() -> None:
    """A user's own operator is one call."""
    g = Graph()
    a, b = g.input("a", (3, 4)), g.input("b", (4, 5))
    g.output(g.compute((3, 5), lambda i, j, k: a[i, k] * b[k, j], reduce=(4,), reducer="sum"), "c")
    x, y = random(3, 4), random(4, 5)
    np.testing.assert_allclose(np.asarray(evaluate(g, {"a": x, "b": y})[0], float), x @ y, rtol=1e-5)
    assert g.output_names == ["c"]


def test_names_are_made_unique() -> None:
    """Hints are cleaned and numbered."""
    g = Graph()
    first, second = g.constant(1.0, "a/b"), g.constant([1, 2], "a/b")
    assert first.name == "a_b"
    assert second.name != first.name
    assert (first.dtype, second.dtype) == ("float32", "int64")


def test_construction_errors() -> None:
    """Each names what was expected and what came."""
    g = Graph()
    x = g.input("x", (2, 3))
    with pytest.raises(GraphError, match="input 'x': the name is taken"):
        g.input("x", (1,))
    with pytest.raises(GraphError, match=r"expected sizes of at least 1; got 0"):
        g.input("empty", (0, 3))
    with pytest.raises(GraphError, match="data type: expected one of float32"):
        g.input("half", (1,), "float16")
    with pytest.raises(GraphError, match=r"x: expected 2 indices for shape \(2, 3\); got 1"):
        x[0]
    with pytest.raises(GraphError, match="expected a body of 2 index arguments; got one of 1"):
        g.compute((2, 3), lambda i: x[i, i])
    with pytest.raises(GraphError, match="expected 6 elements"):
        g.view(x, (7,))
    with pytest.raises(GraphError, match="expected a tensor of this graph; got 'nothing'"):
        g.tensor("nothing")
    with pytest.raises(GraphError, match="source 'nothing' is not defined before it"):
        g.add(View("v", "nothing", x.type))
    with pytest.raises(GraphError, match=r"which are no axes of it"):
        g.add(Stage("s", (("i", 2),), x[var("i"), var("j")]))
    with pytest.raises(GraphError, match=r"inputs: expected \['x'\]; got \['y'\]"):
        evaluate(g, {"y": random(2, 3)})
    with pytest.raises(GraphError, match=r"input x: expected shape \(2, 3\); got \(3, 2\)"):
        evaluate(g, {"x": random(3, 2)})


def test_constants_are_inlined() -> None:
    """A constant of one element is a literal, so no load is left."""
    g = Graph()
    y = ops.clip(g.input("x", (2, 3)), g.constant(np.array([0.5], np.float32)), g.constant(2.0))
    stage = g.producers()[y.name]
    assert isinstance(stage, Stage)
    assert stage.sources == ["x"]


def test_dead_nodes_go_and_inputs_stay() -> None:
    """Only what an output depends on is kept."""
    g = Graph()
    x, unused = g.input("x", (2,)), g.input("unused", (2,))
    ops.add(x, unused)
    g.constant(random(5))
    g.output(ops.relu(x))
    after = eliminate_dead(g)
    assert len(after.nodes) == 1
    assert not after.constants
    same_values(g, after)


def test_constants_fold_and_are_rounded_once() -> None:
    """Arithmetic on constants is done in float64 and stored in float32."""
    g = Graph()
    table = g.constant(random(4))
    g.output(ops.exp(table / 3) + g.input("x", (4,)))
    after = passes.fold_constants(g)
    assert len(after.nodes) == 1
    (value,) = after.constants.values()
    assert value.dtype == np.float32
    want = np.exp((random(4).astype(np.float64) / 3).astype(np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(value, want)


def test_equal_stages_and_constants_are_shared() -> None:
    """Names do not matter, so a chain of equals collapses."""
    g = Graph()
    x = g.input("x", (2, 3))
    w = random(2, 3)
    parts = [ops.relu(ops.reshape(x * g.constant(w.copy()), (3, 2))) for _ in range(3)]
    g.output(ops.concat(parts))
    after = passes.common_subexpressions(g)
    assert len(after.nodes) == 4
    assert len(after.constants) == 1
    same_values(g, after)


def test_negative_zero_is_not_shared_with_zero() -> None:
    """Constants are equal when their bits are."""
    g = Graph()
    x = g.input("x", (2,))
    for z in (0.0, -0.0):
        g.output(ops.maximum_of(x, g.constant(np.array([z, z], np.float32))))
    assert len(passes.common_subexpressions(g).constants) == 2


def test_simplify_leaves_no_neutral_arithmetic() -> None:
    """Times one, plus zero and the like are gone, with numbers and with constant tensors."""
    g = Graph()
    x = g.input("x", (2, 3))
    y = (x * 1 + 0) / 1 - 0
    y = y * g.constant(np.ones((2, 3), np.float32)) + g.constant(np.zeros(3, np.float32))
    g.output(ops.relu(y))
    after = optimise(g)
    assert [n.output for n in after.nodes] == [g.nodes[-1].output]
    same_values(g, after)


def test_moves_compose() -> None:
    """Transposes that cancel vanish, others join, and a view of a view is one view."""
    g = Graph()
    x = g.input("x", (2, 3, 4))
    g.output(ops.transpose(ops.transpose(x, (1, 2, 0)), (2, 0, 1)), "same")
    g.output(ops.transpose(ops.transpose(x, (1, 2, 0)), (1, 2, 0)), "joined")
    g.output(ops.reshape(ops.reshape(x, (6, 4)), (24,)), "flat")
    after = optimise(g)
    assert after.outputs[0] == "x"
    assert len(after.nodes) == 2
    assert all(n.sources == ["x"] for n in after.nodes)
    same_values(g, after)


def test_unit_dimensions_are_absorbed() -> None:
    """A squeeze after a stage changes the stage, so nothing separates it from what follows."""
    g = Graph()
    x = g.input("x", (1, 4, 1, 5))
    g.output(ops.relu(ops.squeeze(ops.exp(x), [0, 2])))
    g.output(ops.unsqueeze(ops.squeeze(ops.reduce_sum(ops.relu(x), [3])), [0]))
    after = optimise(g)
    assert passes.count(after)["views"] == 0
    same_values(g, after)


def batch_normalised(conv: Tensor, channels: int) -> Tensor:
    """The operator with random parameters."""
    scale, bias, mean = (conv.graph.constant(random(channels, seed=k)) for k in range(3))
    return ops.batch_norm(conv, scale, bias, mean, conv.graph.constant(np.abs(random(channels, seed=9)) + 0.5))


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_folds_into_convolution(group: int, bias: bool) -> None:
    """One contraction and one addition are left, also for groups and depthwise."""
    g = Graph()
    w = g.constant(random(8 if group == 2 else 4, 4 // group, 3, 3))
    b = g.constant(random(w.shape[0], seed=3)) if bias else None
    g.output(batch_normalised(ops.conv(g.input("x", (1, 4, 6, 6)), w, b, group=group), w.shape[0]))
    after = optimise(g)
    kinds = {
        e.kind
        for n in after.nodes
        if isinstance(n, Stage) and not n.reduce
        for e in walk(n.body)
        if isinstance(e, Op) and e.dtype == "float32"
    }
    assert reductions(after) == 1
    assert passes.count(after)["maps"] == 1
    assert kinds == {"add"}
    same_values(g, after)


def test_scaling_folds_into_matrix_products() -> None:
    """A chain of scalar and row-vector arithmetic after a product with constant weights."""
    g = Graph()
    w = g.constant(random(4, 5))
    y = (g.input("x", (3, 4)) @ w - g.constant(random(5, seed=1))) * 2 / g.constant(np.abs(random(5, seed=2)) + 1)
    g.output(3 - y)
    after = optimise(g)
    assert len(after.nodes) == 2
    same_values(g, after)


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x, w: ops.relu(x @ w) * 2,
        lambda g, x, w: (x @ x.transpose()) * 2,
        lambda g, x, w: (x @ w) * g.constant(random(3, 1)),
        lambda g, x, w: ops.crop(x @ w, {0: (0, 2, 1)}) * 2,
        lambda g, x, w: (lambda y: y + y * 2)(x @ w),
        lambda g, x, w: (lambda y: 2 / (y * y + 1))(x @ w),
    ],
)
def test_scaling_that_does_not_fold_stays_right(build: Any) -> None:
    """A non-linear step, computed weights, a factor along the rows, a cut, a second reader."""
    g = Graph()
    g.output(build(g, g.input("x", (3, 4)), g.constant(random(4, 5))))
    same_values(g, optimise(g))


def test_shared_weights_are_scaled_apart() -> None:
    """Two products with the same constant keep their own factors."""
    g = Graph()
    w = g.constant(random(4, 5))
    for k, n in enumerate(("a", "b")):
        g.output(g.input(n, (3, 4)) @ w * (k + 2))
    after = fold_scaling(g)
    assert len(after.nodes) == 2
    assert len(after.constants) == 2
    same_values(g, after)


def test_outputs_that_are_inputs_or_constants() -> None:
    """Nothing to compute is fine."""
    g = Graph()
    g.output(g.input("x", (2,)), "same")
    g.output(g.constant(random(3)) * 2, "fixed")
    after = optimise(g)
    assert not after.nodes
    same_values(g, after)


def test_const_keeps_its_type() -> None:
    """A literal converts the Python number."""
    assert const(1, "float32") == Const("float32", 1.0)
    with pytest.raises(GraphError, match=r"constant of int64: expected a whole number; got 0\.5"):
        const(0.5, "int64")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.add(x, ops.reshape(x, (3, 2))), r"broadcast: expected shapes that agree or are 1"),
        (
            lambda x: ops.add(x, ops.cast(x, "int64")),
            r"add: expected two values of one data type; got float32 and int64",
        ),
        (lambda x: ops.reshape(x, (4, -1)), r"reshape: expected a shape of 6 elements for \(2, 3\)"),
        (lambda x: ops.reshape(x, (-1, -1)), r"reshape: expected at most one -1"),
        (lambda x: ops.reshape(x, (2, 3, 0), zero_copies=True), r"dimension 2 copies one that"),
        (lambda x: ops.squeeze(x, [0]), r"squeeze: expected size 1 at axis 0"),
        (lambda x: ops.transpose(x, [0, 0]), r"transpose: expected distinct axes"),
        (lambda x: ops.transpose(x, [0]), r"transpose: expected an order of 2 dimensions"),
        (lambda x: ops.reduce_sum(x, [2]), r"reduce_sum: expected an axis of -2..1; got 2"),
        (lambda x: ops.matmul(x, x), r"matmul: expected equal inner sizes"),
        (
            lambda x: ops.concat([x, ops.reshape(x, (3, 2))]),
            r"concat on axis 0: expected shapes equal elsewhere",
        ),
        (lambda x: ops.concat([]), r"concat: expected at least one tensor"),
        (lambda x: ops.split(x, [1, 1], 1)[0], r"split: expected sizes that add up to 3"),
        (lambda x: ops.slice_(x, [0], [1], [0], [0]), r"slice: expected steps other than 0"),
        (
            lambda x: ops.pad(x, [1, 1], [0, 0], mode="blur"),
            r"pad: expected a mode of constant, edge, reflect or wrap",
        ),
        (lambda x: ops.tile(x, [2]), r"tile: expected 2 repeats"),
        (lambda x: ops.conv(x, x), r"conv: expected input and weight of equal rank, at least 3"),
        (
            lambda x: ops.conv(ops.reshape(x, (1, 2, 3)), ops.reshape(x, (3, 1, 2))),
            r"conv: expected 1 input channels",
        ),
        (
            lambda x: ops.conv(ops.reshape(x, (1, 2, 3)), ops.reshape(x, (1, 2, 3)), dilations=[2]),
            r"larger than the padded",
        ),
        (lambda x: ops.max_pool(ops.reshape(x, (1, 2, 3)), ops.Window([4])), r"pool: the window \[4\]"),
        (lambda x: ops.einsum("ij,jk", x), r"einsum 'ij,jk': expected 2 operands; got 1"),
        (lambda x: ops.einsum("ij->k", x), r"expected output letters that appear in an operand; got \['k'\]"),
        (lambda x: ops.top_k(x, 4)[0], r"top_k: expected k of 1..3; got 4"),
        (
            lambda x: ops.resize(x, (2, 3), sampling=ops.Sampling("area")),
            r"expected a mode of nearest, linear or cubic",
        ),
        (lambda x: ops.depth_to_space(ops.reshape(x, (1, 6, 1, 1)), 2), r"channels divisible by 4"),
        (
            lambda x: ops.group_norm(ops.reshape(x, (1, 3, 2)), x, x, 2),
            r"group_norm: expected channels divisible by 2",
        ),
        (
            lambda x: ops.lp_pool(ops.reshape(x, (1, 2, 3)), ops.Window([2]), 0),
            r"lp_pool: expected p of at least 1",
        ),
        (lambda x: ops.exp(ops.cast(x, "int32")), r"exp: expected float32 or float64; got int32"),
        (lambda x: x + "a", r"could not convert|expected"),
    ],
)
def test_refusals(build: Build, message: str) -> None:
    """What is refused, with the argument, what was expected and what came."""
    g = Graph()
    x = g.input("x", (2, 3))
    with pytest.raises((GraphError, ValueError), match=message):
        build(x)
