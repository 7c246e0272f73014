"""Exponentials that a minimum bounds, beside a constant, lose their guards, and activation functions keep their accuracy.

(Exponentials below the maximum of a row are in ``test_attention.py`` and ``test_reductions.py``.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import tilewright
from tilewright.graph import Graph, ops
from tilewright.graph.expr import Expr, Op, minimum, unary
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import elementwise
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import walk
from tilewright.schedules.falling import FALLING, falling

Build = Callable[[Tensor], Tensor]


def marked(body: Callable[[Expr], Expr], dtype: str = "float32") -> bool:
    g = Graph()
    g.output(elementwise("f", body, g.input("x", (5,), dtype)))
    (stage,) = falling([n for n in g.nodes if isinstance(n, Stage)])
    return any(isinstance(e, Op) and e.kind == FALLING for e in walk(stage.body))


def test_a_bounded_exponential_beside_a_constant_is_recognised() -> None:
    assert marked(lambda a: unary("exp", minimum(a, 20)) + 2)
    assert marked(lambda a: a * (unary("exp", minimum(a * 3, 0)) - 1))


def test_what_is_shared_stays_shared() -> None:
    """One exponential within another is marked at every place where it stands."""

    def twice(a: Expr) -> Expr:
        inner = unary("exp", minimum(a, 20)) + 2
        return inner * (unary("exp", minimum(inner, 20)) + 2)

    g = Graph()
    g.output(elementwise("f", twice, g.input("x", (5,))))
    (stage,) = falling([n for n in g.nodes if isinstance(n, Stage)])
    kinds = [e.kind for e in walk(stage.body) if isinstance(e, Op)]
    assert kinds.count(FALLING) == 2
    assert "exp" not in kinds


def test_a_bound_or_a_constant_alone_is_not_enough() -> None:
    assert not marked(lambda a: unary("exp", minimum(a, 20)))
    assert not marked(lambda a: unary("exp", a) + 2)
    assert not marked(lambda a: unary("exp", minimum(a, 85)) + 2)
    assert not marked(lambda a: unary("exp", minimum(a, 20)) + 1e-30)
    assert not marked(lambda a: unary("exp", minimum(a, 20)) + a)
    assert not marked(lambda a: unary("exp", minimum(a, 20)) + 2, "float64")


def _elu(x: Any) -> Any:
    return np.where(x > 0, x, np.expm1(x))


@pytest.mark.parametrize(
    ("build", "expected", "relative", "absolute"),
    [
        (ops.gelu, lambda x: x * special.ndtr(x), 4e-7, 4e-7),
        (
            lambda x: ops.gelu(x, True),
            lambda x: x * special.expit(1.5957691216057308 * (x + 0.044715 * x**3)),
            4e-7,
            4e-7,
        ),
        (ops.silu, lambda x: x * special.expit(x), 4e-7, 2.0**-140),
        (ops.mish, lambda x: x * np.tanh(np.logaddexp(x, 0)), 8e-7, 2.0**-119),
        (ops.softplus, lambda x: np.logaddexp(x, 0), 5e-7, 1e-44),
        (ops.elu, _elu, 2e-7, 2e-7),
        (ops.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), 3e-7, 2e-7),
    ],
)
def test_activations_are_accurate_for_every_size_of_their_argument(
    build: Build, expected: Callable[[Any], Any], relative: float, absolute: float
) -> None:
    """Compiled, against float64. Where ``absolute`` is small, small answers have all their bits, down to 0."""
    rng = np.random.default_rng(5)
    sizes = np.concatenate([2.0 ** rng.uniform(-126, 127, 4000), rng.uniform(0, 110, 8000), rng.uniform(0, 4, 8000)])
    x = np.concatenate([sizes, -sizes, [0.0, -0.0, np.nan, np.inf]]).astype(np.float32)
    g = Graph()
    g.output(build(g.input("x", x.shape)), "y")
    (got,) = tilewright.compile(g, tilewright.Target.host(1))(x)
    with np.errstate(all="ignore"):
        want = expected(x.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=relative, atol=absolute)
