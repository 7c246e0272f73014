"""Which axes of a reduction are the vector axis, which are repeated in registers, and which factors are packed.

All of it is read off the accesses: an axis that a factor does not depend on is an axis of reuse.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.affine import affine
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr, Load
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import PStage
from tilewright.schedules.target import Target
from tilewright.search_space.dot_rule import strides_of

FAR = 256
"""Bytes from which on neighbouring steps of a reduction are far from each other: a factor that is read so may be packed."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Which axis is the vector, which are repeated in registers, and the rest."""

    leader: PStage
    anchor: PStage
    vector: str
    tiled: tuple[str, ...]
    others: tuple[str, ...]


def _output_stride(leader: PStage, axis: str) -> int:
    inner = 1
    for a, e in reversed(leader.axes):
        if a == axis:
            return inner
        inner *= e
    return 0


def roles_of(anchor: PStage, leader: PStage, target: Target) -> list[Roles]:
    """Which spatial axis to vectorise, and which to repeat in registers."""
    axes = [a for a, _ in leader.axes]
    extents = leader.extents
    factors = product_factors(anchor.body)
    out: list[Roles] = []
    for v in axes:
        if extents[v] < 2:
            continue
        strides = set().union(*(strides_of(f, v) for f in factors))
        contiguous_out = _output_stride(leader, v) == 1
        walks = 1 in strides or 2 in strides
        packable = len(factors) > 1 and strides <= {0, 1, 2} | strides
        if not (contiguous_out or walks or packable):
            continue
        if not contiguous_out and extents[v] < target.lanes("float32"):
            continue
        reuse = [a for a in axes if a != v and _reused(factors, a, v)]
        rest = [a for a in axes if a != v and a not in reuse]
        for tiled in _tilings(reuse, rest, extents):
            others = tuple(a for a in axes if a != v and a not in tiled)
            out.append(Roles(leader, anchor, v, tiled, others))
    return out[:8]


def _reused(factors: list[Expr], axis: str, vector: str) -> bool:
    """Whether repeating ``axis`` in registers reuses a loaded vector: some factor that varies with the vector axis does not
    depend on it, or (a sliding window) walks it together with a reduction axis."""
    return any(vector in variables(f) and axis not in variables(f) for f in factors)


def _tilings(reuse: list[str], rest: list[str], extents: dict[str, int]) -> list[tuple[str, ...]]:
    """Register-tiled axes to try: the largest reused one, with and without a neighbour."""
    reuse = [a for a in reuse if extents[a] > 1]
    rest = [a for a in rest if extents[a] > 1]
    main = sorted(reuse, key=lambda a: -extents[a])[:1]
    out: list[tuple[str, ...]] = [tuple(main)] if main else []
    for second in [a for a in reuse if a not in main][:1] + rest[-1:]:
        out.append((*main, second))
    return out or [()]


def pack_choices(anchor: PStage, roles: Roles, constants: set[str]) -> list[tuple[int, ...]]:
    """Factors to pack: constants always (it costs nothing at run time); others where it may pay, as alternatives."""
    factors = product_factors(anchor.body)
    if len(factors) < 2 or anchor.reducer != "sum":
        return [()]
    always: list[int] = []
    maybe: list[int] = []
    along: list[int] = []
    for k, f in enumerate(factors):
        read = {load.tensor for load in loads(f)}
        used = variables(f)
        if not read or not used & {a for a, _ in anchor.reduce}:
            continue
        if read <= constants:
            always.append(k)
            continue
        window = any(len(a.terms) > len(used) or len(used) > 3 for load in loads(f) if (a := affine(load.index[0])))
        reused = [a for a, _ in anchor.axes if a not in used]
        if window or not reused:
            continue
        if roles.vector in used:
            maybe.append(k)
        elif any(_jumps(load, anchor) for load in loads(f)):
            along.append(k)
    packs = [tuple(always)] + [(*always, k) for k in maybe]
    return packs + [tuple(sorted({*p, k})) for k in along for p in (packs[1:] or packs)]


def _jumps(load: Load, anchor: PStage) -> bool:
    """Whether steps of the reduction go to places far from each other (a transposed matrix): each line is fetched for one of them,
    and many of them share few sets of a cache."""
    flat = affine(load.index[0])
    last = anchor.reduce[-1][0]
    return flat is not None and abs(flat.coefficient(last)) * SIZES[load.dtype] >= FAR


def panel_factors(anchor: PStage, roles: Roles, packs: tuple[int, ...], constants: set[str]) -> tuple[int, ...]:
    """Of the factors ``packs``, those that each thread can pack for itself at the loop over blocks of vectors: made on every call, and
    the same for all that the loops inside repeat."""
    factors = product_factors(anchor.body)
    return tuple(
        k
        for k in packs
        if not {load.tensor for load in loads(factors[k])} <= constants
        and roles.vector in variables(factors[k])
        and not variables(factors[k]) & set(roles.tiled)
    )
