"""Where the time of a compiled model goes: its kernels one by one, and by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tilewright
from benchmarks import common
from tilewright.compiled import Port
from tilewright.fixed import groups_of_a_call
from tilewright.graph.graph import Graph
from tilewright.graph.traverse import loads, variables
from tilewright.runtime import random_input
from tilewright.schedules.factors import product_factors
from tilewright.schedules.kernel import Kernel, build
from tilewright.schedules.steps import parse as parse_schedule
from tilewright.search_space.fusion import Group, fuse
from tilewright.search_space.prologue import is_contraction

Row = dict[str, Any]


def contraction_flops(graph: Graph, target: tilewright.Target) -> int:
    """Operations of convolutions and matrix products of one run."""
    return sum(2 * s.points for g in fuse(graph, target) for s in g.stages if is_contraction(s))


KINDS = ("attention", "product", "windows", "reduction", "map")
"""Kinds of kernels: two products around a normalisation; products whose factors are both reused (dense convolutions,
matrix products); products of which only the weights are (depthwise); other reductions; no reduction."""


def kind_of(group: Group) -> str:
    """The kind of a kernel, from the structure of its stages."""
    contractions = [s for s in group.stages if is_contraction(s)]
    if len(contractions) > 1:
        return "attention"
    for s in contractions:
        wide = {a for a, e in s.axes if e > 1}
        factors = [f for f in product_factors(s.body) if loads(f)]
        return "product" if all(wide - variables(f) for f in factors) else "windows"
    return "reduction" if any(e > 1 for s in group.stages for _, e in s.reduce) else "map"


def kernel_times(graph: Graph, target: tilewright.Target, executable: tilewright.Executable) -> list[Row]:
    """Each distinct kernel on its own, hot, with the schedule that the model uses; the most costly first."""
    rows: dict[str, Row] = {}
    rng = np.random.default_rng(0)
    for group, info in zip(groups_of_a_call(graph, fuse(graph, target)), executable.compiled.kernels, strict=True):
        w = group.workload
        if w.hash in rows:
            rows[w.hash]["runs"] += 1
            continue
        kernel = Kernel(build(w, parse_schedule(info.schedule), target))
        arrays = {}
        for name, kind, constant in w.inputs:
            port = Port(name, kind.shape, kind.dtype)
            arrays[name] = (
                common.aligned_copy(graph.constants[group.names[name]]) if constant else random_input(port, rng)
            )
        out = w.types[w.output]
        arrays[w.output] = common.empty(Port(w.output, out.shape, out.dtype))
        kernel.bind(arrays)
        ms = common.call_ms(kernel.run, 0.02)
        rows[w.hash] = {
            "node": info.origin,
            "workload": info.describe,
            "source": info.source,
            "kind": kind_of(group),
            "runs": 1,
            "ms": ms,
            "gflops": w.flops / ms / 1e6,
        }
    total = sum(r["runs"] * r["ms"] for r in rows.values())
    for r in rows.values():
        r["share"] = r["runs"] * r["ms"] / total
    return sorted(rows.values(), key=lambda r: -r["share"])


def kinds_text(shares: Mapping[str, float]) -> str:
    """``product 80 %, map 20 %``: where the time goes, the most first."""
    return ", ".join(f"{k} {100 * v:.0f} %" for k, v in sorted(shares.items(), key=lambda x: -x[1]) if v >= 0.005)
