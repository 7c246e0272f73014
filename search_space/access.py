"""What a stage reads and writes, as strides: footprints and cache lines of N candidates at once.

A flat index is sorted back into the dimensions of its tensor, so that the footprint of a tile is a product
of small extents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.graph.affine import affine, parted
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr, Load
from tilewright.graph.stage import TensorType
from tilewright.graph.traverse import loads, variables
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.steps import Pack
from tilewright.search_space.sketch import Sketch

Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Access:
    """One tensor a stage reads or writes. ``dims`` are, for each dimension of the tensor, its size and the
    axes it is walked by with their coefficients, outermost first; ``packed`` says the access goes to a
    packed copy (contiguous)."""

    tensor: str
    nbytes: int
    total: int
    dims: tuple[tuple[int, Terms], ...]
    store: bool
    packed: bool
    constant: bool
    looked_up: frozenset[str] = frozenset()
    """Axes along which the place is data, or a choice."""
    places: int = 1
    """At how many places it is read in the dimensions that no axis walks (the points of a transform)."""

    def axes(self) -> set[str]:
        """Axes the address depends on."""
        return {a for _, terms in self.dims for a, _ in terms}

    def stride(self, axis: str) -> int:
        """Elements between neighbours along ``axis``."""
        inner = 1
        out = 0
        for size, terms in reversed(self.dims):
            for a, c in terms:
                if a == axis:
                    out += c * inner
            inner *= size
        return out

    def footprint(self, span: Mapping[str, Any]) -> Any:
        """Elements touched while each axis ``a`` covers ``span[a]`` values."""
        out: Any = float(self.places)
        for size, terms in self.dims:
            extent = touched(terms, span)
            out = out * (np.minimum(extent, size) if len(self.dims) > 1 else extent)
        return np.minimum(out, self.total)

    def lines(self, span: Mapping[str, Any], line: int) -> Any:
        """Cache lines touched: rows are rounded up to whole lines, unless the copy is packed. A row runs on through the innermost
        dimensions as long as they are covered whole."""
        elements = self.footprint(span)
        if self.packed or not self.dims:
            return np.ceil(elements * self.nbytes / line)
        size, terms = self.dims[-1]
        inner = np.minimum(touched(terms, span), size)
        across = np.minimum(reach(terms, span), size)
        whole: Any = across >= size
        for size, terms in reversed(self.dims[:-1]):
            extent = np.minimum(reach(terms, span), size)
            whole = whole & (touched(terms, span) >= extent)
            inner, across = np.where(whole, inner * extent, inner), np.where(whole, across * extent, across)
            whole = whole & (extent >= size)
            if not np.any(whole):
                break
        row = np.maximum(np.ceil(across * self.nbytes / line), 1.0)
        sparse = np.minimum(row, inner)
        return elements / np.maximum(inner, 1.0) * sparse


def reach(terms: Terms, span: Mapping[str, Any]) -> Any:
    """Places from the first to the last of a dimension that axes walk together."""
    out: Any = 1.0
    for a, c in terms:
        out = out + abs(c) * (span.get(a, 1.0) - 1.0)
    return out


def touched(terms: Terms, span: Mapping[str, Any]) -> Any:
    """How many of them are touched: all, or fewer where an axis takes long steps."""
    product: Any = 1.0
    for a, _ in terms:
        product = product * span.get(a, 1.0)
    return np.minimum(reach(terms, span), product)


def accesses(stage: PStage, phase: Phase, sketch: Sketch) -> list[Access]:
    """Every tensor from outside the phase that a stage reads, and what its leader writes."""
    types = sketch.types
    constants = {k for k, _, c in sketch.workload.inputs if c}
    packed: set[Expr] = set()
    computed: set[Expr] = set()
    out: dict[tuple[Any, ...], Access] = {}
    for factor in packed_factors(stage, sketch):
        if isinstance(factor, Load):
            packed.add(factor)
        else:  # computed while it is packed: what is read later is the copy
            own = set(loads(factor))
            computed |= own
            found = _copy(factor, stage.extents, {load.tensor for load in own} <= constants)
            out[found.tensor, found.dims] = found
    fixed: dict[tuple[Any, ...], set[tuple[int, ...]]] = {}
    for load in loads(stage.body):
        if load in computed:
            continue
        if load.tensor in phase.local:
            continue
        found = access(load, types[load.tensor], stage.extents, load in packed, load.tensor in constants)
        places = fixed.setdefault((found.tensor, found.dims), set())
        places.add(_place(load, types[load.tensor]))
        out[found.tensor, found.dims] = replace(found, places=len(places))
    if stage is phase.leader:
        t = types[stage.name]
        inner = 1
        dims: list[tuple[int, Terms]] = []
        for a, e in reversed(stage.axes):
            dims.append((e, ((a, 1),)))
            inner *= e
        out["store",] = Access(stage.name, SIZES[t.dtype], t.size, tuple(reversed(dims)), True, False, False)
    return list(out.values())


def packed_factors(stage: PStage, sketch: Sketch) -> list[Expr]:
    """The factors of a stage's product that the sketch packs."""
    factors = product_factors(stage.body)
    return [factors[s.factor] for s in sketch.template if isinstance(s, Pack) and s.stage == stage.name]


def _copy(factor: Expr, extents: Mapping[str, int], constant: bool) -> Access:
    """The packed copy of a computed factor: an array over the axes it depends on."""
    axes = sorted(variables(factor))
    dims = tuple((extents[a], ((a, 1),)) for a in axes)
    size = math.prod(extents[a] for a in axes)
    return Access("computed factor", SIZES[factor.dtype], size, dims, False, True, constant)


def access(load: Load, t: TensorType, extents: Mapping[str, int], packed: bool, constant: bool) -> Access:
    """Sort the terms of a flat index into the dimensions of the tensor, by their strides."""
    found = parted(load.index[0])
    nbytes = SIZES[load.dtype]
    terms: list[list[tuple[str, int]]] = [[] for _ in t.shape]
    strides = t.strides
    walked = [
        (a, c)
        for name, c in found.form.terms
        for a in (sorted(variables(found.parts[name])) if name in found.parts else [name])
    ]
    for a, c in walked if strides else ():
        k = next(
            (k for k, s in enumerate(strides) if abs(c) >= s and abs(c) % s == 0 and t.shape[k] > 1),
            len(strides) - 1,
        )
        terms[k].append((a, max(1, abs(c) // strides[k])))
    dims = _merged([(s, tuple(x)) for s, x in zip(t.shape, terms, strict=True) if x or s > 1], extents)
    moved = frozenset(a for part in found.parts.values() for a in variables(part))
    return Access(load.tensor, nbytes, t.size, tuple(dims), False, packed, constant, moved)


def _place(load: Load, t: TensorType) -> tuple[int, ...]:
    """Where a load is in the dimensions that no axis walks."""
    flat = affine(load.index[0])
    if flat is None:
        return ()
    walked = [abs(c) for _, c in flat.terms]
    rest, out = flat.const, []
    for size, stride in zip(t.shape, t.strides, strict=True):
        if not any(stride <= c < stride * size for c in walked):
            out.append(rest // stride % size)
    return tuple(out)


def _merged(dims: list[tuple[int, Terms]], extents: Mapping[str, int]) -> list[tuple[int, Terms]]:
    """A collapsed axis walks several dimensions at once: they become one."""
    out: list[tuple[int, Terms]] = []
    for size, terms in reversed(dims):
        if out and not terms:
            inner, walked = out[-1]
            if sum(c * (extents[a] - 1) for a, c in walked) >= 2 * inner:
                out[-1] = (inner * size, walked)
                continue
        out.append((size, terms))
    return out[::-1]
