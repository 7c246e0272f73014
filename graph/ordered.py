"""Ordered reductions: reductions of which more than one number is kept for each row.

A *scan* keeps every prefix of a reduction, a *selection* the positions of the best elements, in order. Both are stages whose one
reduction axis is listed along an axis of the output, which the body therefore does not use::

    y[i, j] = sum(x[i, r] for r in range(j + 1))                    Scan("sum", axis=1)
    y[i, j] = the position r of the j-th largest x[i, r]            Select(largest=True)

Written with ordinary reductions each would cost the square of the row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scan:
    """Element ``j`` along axis number ``axis`` of the output reduces the first ``j + 1`` values of the reduction axis (``j`` of them
    if ``exclusive``; the first is then the identity), or the last ones if ``reverse``. The two axes have the same extent."""

    reducer: str
    axis: int
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """Element ``j`` along the last axis of the output is the int64 position of the ``j``-th largest (or smallest) value of the body
    along the reduction axis. Of equal values the first comes first, and NaN are equal and larger than all numbers, as NumPy sorts."""

    largest: bool


Ordered = Scan | Select
