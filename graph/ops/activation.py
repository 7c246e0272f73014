"""Activation functions. Each is one stage without a reduction, so it fuses into whatever produces its
input."""

from __future__ import annotations

import math

from tilewright.graph.expr import Expr, const, maximum, minimum, select, unary
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import elementwise


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``; NaN stays NaN."""
    return elementwise("relu", lambda a: maximum(a, 0), x)


def leaky_relu(x: Tensor, alpha: float = 0.01) -> Tensor:
    """``x``, or ``alpha * x`` where negative."""
    return elementwise("leaky_relu", lambda a: select(a.lt(0), a * alpha, a), x)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """``x``, or ``slope * x`` where negative; ``slope`` broadcasts to ``x``."""
    return elementwise("prelu", lambda a, s: select(a.lt(0), a * s, a), x, slope)


def _less_1(a: Expr) -> Expr:
    """``exp(a) - 1`` where ``a`` is negative (an exponential that cannot overflow is cheaper)."""
    return unary("exp", minimum(a, 0)) - 1


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """``x``, or ``alpha * (exp(x) - 1)`` where negative."""
    return elementwise("elu", lambda a: select(a.lt(0), _less_1(a) * alpha, a), x)


def selu(x: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    """``gamma * x``, or ``gamma * alpha * (exp(x) - 1)`` where not positive."""
    return elementwise("selu", lambda a: select(a.gt(0), a, _less_1(a) * alpha) * gamma, x)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """``max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``."""
    return elementwise(
        "celu", lambda a: maximum(a, 0) + minimum((unary("exp", a / alpha) - 1) * alpha, 0), x
    )  # fmt: skip


def thresholded_relu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """``x`` where it exceeds ``alpha``, else 0."""
    return elementwise("thresholded_relu", lambda a: select(a.gt(alpha), a, 0), x)


def shrink(x: Tensor, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, else 0."""
    return elementwise("shrink", lambda a: select(a.lt(-lambd), a + bias, select(a.gt(lambd), a - bias, 0)), x)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """The Gaussian error linear unit; ``approximate`` uses the formula with ``tanh``."""

    def exact(a: Expr) -> Expr:
        half = a * 0.5
        return half * unary("erf", a * math.sqrt(0.5)) + half

    def by_tanh(a: Expr) -> Expr:
        k = math.sqrt(2 / math.pi)  # k (a + 0.044715 a^3), with one operation less
        half = a * 0.5
        return half * unary("tanh", (a * a * (0.044715 * k) + k) * a) + half

    return elementwise("gelu", by_tanh if approximate else exact, x)


def hard_sigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """``clip(alpha * x + beta, 0, 1)``."""
    return elementwise("hard_sigmoid", lambda a: _hard_sigmoid(a, alpha, beta), x)


def _hard_sigmoid(a: Expr, alpha: float, beta: float) -> Expr:
    return maximum(minimum(a * alpha + beta, 1), 0)


def hard_swish(x: Tensor) -> Tensor:
    """``x * clip(x / 6 + 0.5, 0, 1)``."""
    return elementwise("hard_swish", lambda a: a * _hard_sigmoid(a, 1 / 6, 0.5), x)


def silu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """``x * sigmoid(alpha * x)``, also called swish."""
    return elementwise("silu", lambda a: a * unary("sigmoid", a if alpha == 1 else a * alpha), x)


def softplus(x: Tensor) -> Tensor:
    """``log(exp(x) + 1)``, in a form that does not overflow."""
    return elementwise("softplus", lambda a: unary("softplus", a), x)


def mish(x: Tensor) -> Tensor:
    """``x * tanh(softplus(x))``: the hyperbolic tangent of a logarithm is a quotient, ``n / (n + 2)`` with ``n = e (e + 2)`` and
    ``e = exp(x)``. From 20 on it is 1."""

    def body(a: Expr) -> Expr:
        e = unary("exp", minimum(a, 20))
        n = e * (e + 2)
        return a * (n / (n + 2))

    return elementwise("mish", body, x)


def softsign(x: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return elementwise("softsign", lambda a: a / (const(1, a.dtype) + unary("abs", a)), x)
