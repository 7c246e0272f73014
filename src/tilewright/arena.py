"""Memory planning: every intermediate tensor of a model gets a place in one arena, and places are reused when tensors die.

Offsets are found greedily, largest tensor first, each at the lowest place where no tensor alive at the same time lies: the
usual heuristic for offset assignment, near the lower bound on real models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGN = 64
SLACK = 64
"""Bytes left free behind every tensor, so that a kernel may read (never write) a vector past its end."""


@dataclass(frozen=True, slots=True)
class Block:
    """``nbytes`` needed from step ``first`` to step ``last``, both included."""

    name: str
    nbytes: int
    first: int
    last: int


def plan(blocks: Sequence[Block]) -> tuple[dict[str, int], int]:
    """Offset of every block, and the size of the arena."""
    placed: list[tuple[int, int, Block]] = []
    offsets: dict[str, int] = {}
    for b in sorted(blocks, key=lambda b: (-b.nbytes, b.first, b.name)):
        size = -(-(b.nbytes + SLACK) // ALIGN) * ALIGN
        busy = sorted((lo, hi) for lo, hi, other in placed if other.first <= b.last and b.first <= other.last)
        at = 0
        for lo, hi in busy:
            if at + size <= lo:
                break
            at = max(at, hi)
        offsets[b.name] = at
        placed.append((at, at + size, b))
    return offsets, max((hi for _, hi, _ in placed), default=0)


def lower_bound(blocks: Sequence[Block]) -> int:
    """The most bytes alive at one step: no plan can be smaller."""
    steps = {b.first for b in blocks}
    return max((sum(b.nbytes for b in blocks if b.first <= s <= b.last) for s in steps), default=0)
