"""Einstein's notation: a sum of products of any number of operands.

One or two operands are one stage. More are contracted a few at a time, in the order that ``numpy.einsum_path`` finds (the least
arithmetic up to five operands, greedily beyond): a product of three matrices costs two products of matrices, where one loop nest over
all indices would cost a dimension more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr, index
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import reduction

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")
_SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OPTIMAL = 5
"""Operands up to which the best of all orders is looked for; the search is exponential in them."""

Labels = tuple[str, ...]


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """A sum of products in Einstein's notation, with ``...``, repeated letters and an implied output. A size of 1 broadcasts. Raises
    GraphError for an equation that is none, or does not fit the operands."""
    terms, result = _parsed(equation, operands)
    sizes = _sizes(equation, terms, operands)
    unknown = [c for c in result if c not in sizes]
    if unknown:
        raise GraphError(f"einsum {equation!r}: expected output letters that appear in an operand; got {unknown}")
    factors = [_Factor(t, labels) for t, labels in zip(operands, terms, strict=True)]
    if len(factors) > 2:
        factors = [f.squeezed(sizes) for f in factors]
        factors = [_summed(factors, k, result, sizes) for k in range(len(factors))]
        for chosen in _order(equation, factors, result, sizes)[:-1]:
            rest = [f for k, f in enumerate(factors) if k not in chosen]
            used = {*result, *(c for f in rest for c in f.labels)}
            taken = [factors[k] for k in chosen]
            kept = dict.fromkeys(c for f in _shared_first(taken) for c in f if c in used)
            factors = [*rest, _contracted(taken, tuple(kept), sizes)]
    return _contracted(factors, result, sizes).tensor


@dataclass(frozen=True)
class _Factor:
    """A tensor whose dimensions have labels; a dimension of size 1 whose label is longer is the same everywhere along it."""

    tensor: Tensor
    labels: Labels

    def squeezed(self, sizes: dict[str, int]) -> _Factor:
        """The factor without the dimensions along which it is the same."""
        kept = [(c, d) for c, d in zip(self.labels, self.tensor.shape, strict=True) if d == sizes[c]]
        return _Factor(self.tensor.graph.view(self.tensor, [d for _, d in kept]), tuple(c for c, _ in kept))


def _parsed(equation: str, operands: Sequence[Tensor]) -> tuple[list[Labels], Labels]:
    """The labels of each operand's dimensions and of the result's: letters, and numbers for the dimensions of ``...``."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, out):
        if not _TERM.fullmatch(term):
            raise GraphError(f"einsum {equation!r}: expected letters and at most one '...' in each term; got {term!r}")
    if len(terms) != len(operands):
        raise GraphError(f"einsum {equation!r}: expected {len(terms)} operands; got {len(operands)}")
    ranks = [t.rank - len(term.replace("...", "")) for term, t in zip(terms, operands, strict=True) if "..." in term]
    wide = max(ranks, default=0)
    labels: list[Labels] = []
    for term, t in zip(terms, operands, strict=True):
        dots = t.rank - len(term.replace("...", "")) if "..." in term else 0
        found = _labelled(term, range(wide - dots, wide))
        if len(found) != t.rank or dots < 0:
            raise GraphError(
                f"einsum {equation!r}: expected an operand of rank {len(found)} for {term!r}; got {t.shape}"
            )
        labels.append(found)
    if not arrow:
        flat = "".join(terms).replace("...", "")
        out = ("..." if ranks else "") + "".join(sorted(c for c in set(flat) if flat.count(c) == 1))
    letters = out.replace("...", "")
    if len(set(letters)) != len(letters):
        raise GraphError(f"einsum {equation!r}: expected each output letter once; got {out!r}")
    return labels, _labelled(out, range(wide))


def _labelled(term: str, dots: Iterable[int]) -> Labels:
    before, given, after = term.partition("...")
    return (*before, *(str(k) for k in dots if given), *after)


def _sizes(equation: str, terms: Sequence[Labels], operands: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, t in zip(terms, operands, strict=True):
        for c, d in zip(labels, t.shape, strict=True):
            if sizes.setdefault(c, d) not in (1, d) and d != 1:
                raise GraphError(f"einsum {equation!r}: expected one size for {c!r}; got {sizes[c]} and {d}")
            sizes[c] = max(sizes[c], d)
    return sizes


def _shared_first(factors: Sequence[_Factor]) -> list[Labels]:
    """The factors' labels, those that all of them have in front: an intermediate is then laid out like a batch of matrices."""
    common = tuple(c for c in factors[0].labels if all(c in f.labels for f in factors[1:]))
    return [common, *(f.labels for f in factors)]


def _summed(factors: Sequence[_Factor], k: int, result: Labels, sizes: dict[str, int]) -> _Factor:
    """Factor ``k`` without the labels that nothing else has."""
    f = factors[k]
    others = {*result, *(c for n, g in enumerate(factors) if n != k for c in g.labels)}
    if all(c in others for c in f.labels):
        return f
    kept = dict.fromkeys(c for c in f.labels if c in others)
    return _contracted([f], tuple(kept), sizes)


def _order(equation: str, factors: Sequence[_Factor], result: Labels, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Which factors to contract in each step; the result of a step goes to the end of the list."""
    terms = [f.labels for f in factors]
    names = list(dict.fromkeys(c for labels in terms for c in labels))
    if len(names) > len(_SYMBOLS):
        raise GraphError(f"einsum {equation!r}: expected at most {len(_SYMBOLS)} indices; got {len(names)}")
    symbol = dict(zip(names, _SYMBOLS, strict=False))
    text = ",".join("".join(symbol[c] for c in labels) for labels in terms)
    out = "".join(symbol[c] for c in result if c in symbol)
    stand_ins = [np.broadcast_to(np.float32(0), [sizes[c] for c in labels]) for labels in terms]
    how = "optimal" if len(factors) <= _OPTIMAL else "greedy"
    path = np.einsum_path(f"{text}->{out}", *stand_ins, optimize=how)[0]
    return [tuple(int(k) for k in step) for step in path[1:]]


def _contracted(factors: Sequence[_Factor], result: Labels, sizes: dict[str, int]) -> _Factor:
    """One stage: the product of the factors, summed over what ``result`` does not have."""
    summed = [c for c in dict.fromkeys(c for f in factors for c in f.labels) if c not in result]

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        at = dict(zip([*result, *summed], [*i, *r], strict=True))
        product: Expr | None = None
        for f in factors:
            value = f.tensor.at([index(0) if d == 1 else at[c] for c, d in zip(f.labels, f.tensor.shape, strict=True)])
            product = value if product is None else product * value
        assert product is not None
        return product

    shape = [sizes[c] for c in result]
    y = reduction(factors[0].tensor.graph, shape, [sizes[c] for c in summed], "sum", body, "einsum")
    return _Factor(y, result)
