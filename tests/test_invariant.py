"""What does not change in a loop is computed before it, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph import ops
from tilewright.graph.expr import Const, Expr, Load, binary, const, select, unary, var
from tilewright.graph.graph import Graph
from tilewright.schedules.invariant import invariants
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.nest import If, Loop, Node, Seq, Store
from tilewright.schedules.target import Target
from tilewright.search_space.space import space
from tilewright.tasks import extract

R, J = var("r"), var("j")
ROOT = unary("sqrt", Load("float32", "s", (R,)))
"""A root of an element that a loop over ``j`` does not move through."""
X = Load("float32", "x", (J,))


def loop(*nodes: Node, extent: Expr | None = None) -> Loop:
    """A loop over ``j``."""
    return Loop("j", Const("int64", 8) if extent is None else extent, "serial", Seq(nodes), 8)


def store(value: Expr, tensor: str = "y") -> Store:
    """A store at ``j``."""
    return Store(tensor, J, value)


def test_a_root_that_does_not_move_is_found_once() -> None:
    assert invariants(loop(store(X * ROOT), store(X + ROOT, "z"))) == [ROOT]


def test_the_largest_part_that_stays_is_found() -> None:
    scale = const(1.0, "float32") / (ROOT + 1.0)
    assert invariants(loop(store(binary("sub", X, 2.0) * scale))) == [scale]


@pytest.mark.parametrize(
    "body",
    [
        loop(store(X * unary("sqrt", X))),  # it moves
        loop(store(X * Load("float32", "s", (R,)))),  # cheap
        loop(store(X * ROOT), Store("s", R, X)),  # its tensor is written
        loop(store(select(J.lt(3), ROOT, X))),  # only some iterations come to it
        loop(store(X * select(R.lt(3), ROOT, X))),
        loop(If(J.lt(3), store(X * ROOT))),
        loop(store(X * ROOT), extent=R),  # perhaps none does
        loop(Loop("k", R, "serial", store(X * ROOT), 8)),
    ],
)
def test_what_moves_or_is_guarded_or_cheap_stays(body: Loop) -> None:
    assert invariants(body) == []


def test_layer_normalisation_takes_one_root_a_row() -> None:
    """The loop over a row holds no root: it is written once, before it. The result is NumPy's."""
    rng = np.random.default_rng(0)
    g = Graph()
    x = g.input("x", (9, 96))
    g.output(ops.layer_norm(x)[0], "y")
    target = Target.host(threads=1)
    workload = extract(g, target)[0].workload
    a = rng.standard_normal((9, 96)).astype(np.float32)
    want = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)
    for sketch in space(workload, target).sketches:
        built = build(workload, sketch.schedule(sketch.preferred), target)
        text = "\n".join(built.lowered.functions)
        assert text.count("@tw_rsqrt") == 1
        assert text.index("@tw_rsqrt") < text.rindex(" phi "), sketch.name  # the loop over the row begins behind it
        kernel = Kernel(built)
        np.testing.assert_allclose(kernel({workload.inputs[0][0]: a}), want, rtol=1e-4, atol=1e-4)
