"""Products as lists of factors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import Expr, Op


def product_factors(body: Expr) -> list[Expr]:
    """The factors of a product, left to right."""
    if isinstance(body, Op) and body.kind == "mul" and body.dtype in FLOATS:
        return product_factors(body.args[0]) + product_factors(body.args[1])
    return [body]


def product(factors: Sequence[Expr]) -> Expr:
    """The product of at least one factor."""
    out = factors[0]
    for f in factors[1:]:
        out = out * f
    return out
