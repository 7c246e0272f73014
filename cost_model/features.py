"""The feature columns of a candidate: one table of name, meaning and formula, evaluated on arrays of
candidates.

Large quantities enter as base-2 logarithms, and all capacities, lane counts and speeds as ratios to the
target's own numbers, so that one space of features serves all targets. *main* is the stage with most
arithmetic; *total* adds up all stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.cost_model.analysis import Analysis, StageCost, analyses, capacities
from tilewright.cost_model.body import lanes_of
from tilewright.cost_model.prior import Estimate, estimate
from tilewright.cost_model.schema import Feature, FeatureSchema
from tilewright.search_space.sketch import Sketch

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """What the formulas of the table read: one chunk of candidates, analysed."""

    a: Analysis
    estimate: Estimate

    @cached_property
    def main(self) -> StageCost:
        """The stage with most work."""
        return self.a.main()

    @cached_property
    def stages(self) -> list[StageCost]:
        """All stages of all phases."""
        return [s for p in self.a.phases for s in p.stages]

    def total(self, value: Callable[[StageCost], Any]) -> Any:
        """Sum over the stages."""
        return sum((value(s) for s in self.stages), np.zeros(self.a.n))

    @cached_property
    def share(self) -> Floats:
        """Share of the busiest thread in the phase of the main stage."""
        return next(p.share for p in self.a.phases if self.main in p.stages)

    @cached_property
    def pieces(self) -> Floats:
        """Parallel iterations of the phase of the main stage."""
        return next(p.model.parallel for p in self.a.phases if self.main in p.stages)

    @cached_property
    def threads(self) -> int:
        """Threads the phase of the main stage can use."""
        return next(p.threads for p in self.a.phases if self.main in p.stages)

    @cached_property
    def caches(self) -> tuple[float, float, float]:
        """Bytes of each cache level."""
        return capacities(self.a.target)


def _work(s: StageCost) -> float:
    """Operations of a stage, a function counting as many."""
    return s.model.points * (s.model.arithmetic + s.model.maths)


def _reduction(v: View) -> float:
    m = v.main.model
    return float(np.prod([m.extents[x] for x in m.reduce])) if m.reduce else 0.0


def _log(x: Any) -> Any:
    return np.log2(1.0 + np.maximum(x, 0.0))


def _ratio(x: Any, y: Any) -> Any:
    return np.log2((x + 1.0) / (y + 1.0))


def _tensor_bytes(v: View) -> float:
    w = v.a.sketch.workload
    return float(
        sum(t.nbytes for t in w.types.values()) - w.types[w.output].nbytes - sum(t.nbytes for _, t, _ in w.inputs)
    )


def _per_flop(x: Any, v: View) -> Any:
    return np.log2(x / max(1.0, float(v.a.sketch.workload.flops)) + 2.0**-10)


def _width(v: View) -> Any:
    return v.main.model.lanes / lanes_of(v.main.model, v.a.target)


def _uneven(v: View, reduce: bool) -> Any:
    """Share of full tiles lost by tile sizes that do not divide, over the axes of one kind."""
    m = v.main.model
    out: Any = np.ones(v.a.n)
    for lp in m.loops:
        if (lp.axis in m.reduce) == reduce:
            out = out * lp.trips / np.ceil(lp.trips)
    return 1.0 - out


Row = tuple[str, str, str, str, Callable[[View], Any]]

_TABLE: tuple[Row, ...] = (
    # ---- the work itself
    ("log_flops", "log2 operations", "scale of the work", "",
     lambda v: _log(float(v.a.sketch.workload.flops))),
    ("intensity", "log2 operations/byte", "compute or memory bound", "every tensor moves once",
     lambda v: _ratio(float(v.a.sketch.workload.flops), float(v.a.sketch.workload.min_bytes))),
    ("arithmetic",
     "operations/point", "work of one evaluation of the main stage", "a fused multiply-add counts once",
     lambda v: v.main.model.arithmetic),
    ("maths", "multiply-adds/point", "functions cost many operations", "fixed cost of each function",
     lambda v: v.main.model.maths),
    ("maths_share", "share", "of all work, what is spent in functions", "",
     lambda v: v.total(lambda s: s.model.points * s.model.maths)
     / v.total(_work)),
    ("recompute", "log2 ratio", "work repeated by inlining or recomputation, relative to the plain graph", "",
     lambda v: _ratio(v.total(_work), float(v.a.sketch.workload.flops))),
    ("reduction", "log2 points", "length of the main reduction: what each accumulator is used for", "",
     lambda v: _log(_reduction(v))),
    # ---- the register tile of the main stage
    ("vectorised", "0/1", "scalar code is an order slower", "",
     lambda v: float(v.main.model.vector is not None)),
    ("vector_on_reduction", "0/1", "lanes have to be combined at the end", "",
     lambda v: float(v.main.model.vector in v.main.model.reduce)),
    ("vector_width", "registers", "vector loop width in registers of the target", "", _width),
    ("lane_use", "share", "lanes that do useful work, last vector included", "",
     lambda v: v.main.tile.lane_use),
    ("accumulators", "log2 registers", "independent chains hide the latency of multiply-add", "",
     lambda v: _log(v.main.tile.accumulators)),
    ("chains_needed", "ratio", "accumulators relative to what hides the latency", "latency of 4 cycles",
     lambda v: np.minimum(v.main.tile.accumulators / (4.0 * v.a.target.fma_per_cycle), 4.0)),
    ("register_pressure",
     "ratio", "values alive relative to vector registers; above 1 they spill", "operands of one row",
     lambda v: np.minimum(v.main.tile.registers / v.a.target.vector_registers, 8.0)),
    ("spread", "log2", "separate accumulators along the reduction", "", lambda v: _log(v.main.model.spread)),
    ("contiguous_loads", "loads/operation", "vector loads in the innermost body", "",
     lambda v: v.main.tile.contiguous),
    ("broadcast_loads", "loads/operation", "scalar loads copied to all lanes", "",
     lambda v: v.main.tile.broadcast),
    ("strided_loads", "loads/operation", "lanes loaded one by one", "", lambda v: v.main.tile.strided),
    ("gathered_loads", "loads/operation", "lanes loaded through an index", "",
     lambda v: v.main.tile.gathered),
    ("guards", "operations/operation", "padding tested at every point", "masked loads cost a fixed amount",
     lambda v: v.main.tile.guards),
    ("guarded", "0/1", "padding is a predicate, not a copy", "", lambda v: float(bool(v.main.model.guards))),
    ("body", "log2 operations", "the innermost loop competes for the instruction cache", "",
     lambda v: _log(v.main.tile.body)),
    ("code",
     "log2 operations", "all code with its last tiles: instruction cache, and compile time", "",
     lambda v: _log(v.a.code)),
    ("inner_trips", "log2 iterations", "a short inner loop pays for entering it", "",
     lambda v: _log(v.main.tile.inner_trips)),
    ("tail", "share", "points computed in last, smaller tiles", "", lambda v: v.main.tile.tail),
    ("uneven_space", "share", "blocks of spatial axes that are cut short", "", lambda v: _uneven(v, False)),
    ("uneven_reduction", "share", "unrolling that does not divide the reduction", "",
     lambda v: _uneven(v, True)),
    # ---- cycles by unit, of all stages
    ("fma_cycles", "log2 ratio", "multiply-add units, per operation of the workload", "",
     lambda v: _per_flop(v.total(lambda s: s.tile.fma), v)),
    ("load_cycles", "log2 ratio", "load and store ports and shuffles, per operation", "two loads a cycle",
     lambda v: _per_flop(v.total(lambda s: s.tile.load), v)),
    ("latency_cycles", "log2 ratio", "waiting for accumulators, per operation", "fixed look-ahead",
     lambda v: _per_flop(v.total(lambda s: s.tile.latency), v)),
    ("front_cycles", "log2 ratio", "instruction supply, per operation", "five a cycle",
     lambda v: _per_flop(v.total(lambda s: s.tile.front), v)),
    ("overhead_cycles", "log2 ratio", "loops, tile entries, combining lanes, per operation", "",
     lambda v: _per_flop(v.total(lambda s: s.tile.overhead), v)),
    ("spills", "log2 ratio", "registers stored and reloaded, per operation", "",
     lambda v: _per_flop(v.total(lambda s: s.tile.spill), v)),
    # ---- memory
    ("l1_traffic", "log2 bytes/operation", "bytes fetched into L1", "working sets against 3/4 of the cache",
     lambda v: _per_flop(v.total(lambda s: s.traffic[0]), v)),
    ("l2_traffic", "log2 bytes/operation", "bytes fetched into L2", "as above",
     lambda v: _per_flop(v.total(lambda s: s.traffic[1]), v)),
    ("l3_traffic", "log2 bytes/operation", "bytes fetched into the last cache level", "as above",
     lambda v: _per_flop(v.total(lambda s: s.traffic[2]), v)),
    ("l1_refetch", "log2 ratio", "how often each byte is fetched into L1", "",
     lambda v: _ratio(v.total(lambda s: s.traffic[0]), float(v.a.sketch.workload.min_bytes))),
    ("l2_refetch", "log2 ratio", "how often each byte is fetched into L2", "",
     lambda v: _ratio(v.total(lambda s: s.traffic[1]), float(v.a.sketch.workload.min_bytes))),
    ("inner_set", "log2 ratio", "data of the innermost loop relative to L1", "",
     lambda v: _ratio(v.main.working_set[0], v.caches[0])),
    ("near_set", "log2 ratio", "data of the two innermost loops relative to L1", "",
     lambda v: _ratio(v.main.working_set[1], v.caches[0])),
    ("near_set_l2", "log2 ratio", "data of the two innermost loops relative to L2", "",
     lambda v: _ratio(v.main.working_set[1], v.caches[1])),
    ("whole_set_l2", "log2 ratio", "everything the main stage touches relative to L2", "",
     lambda v: _ratio(v.main.working_set[2], v.caches[1])),
    ("whole_set_l3", "log2 ratio", "everything the main stage touches relative to the last level", "",
     lambda v: _ratio(v.main.working_set[2], v.caches[2])),
    ("line_use", "share", "used part of the cache lines touched by the inner loops", "",
     lambda v: v.main.line_use),
    ("pages", "log2 pages", "address translation: pages touched by the inner loops", "4 KiB pages",
     lambda v: _log(v.main.pages)),
    ("conflict", "log2 ratio", "power-of-two strides crowd into few cache sets", "8 ways",
     lambda v: _log(v.main.conflict)),
    ("scratch", "log2 bytes", "intermediate tensors of the workload", "inlined ones counted too",
     lambda v: _log(_tensor_bytes(v))),
    ("buffered", "tensors", "local tensors in memory touched at each point", "",
     lambda v: v.total(lambda s: float(s.model.buffered))),
    ("stream", "0/1", "the output bypasses the caches", "",
     lambda v: float(any(s.model.stream for s in v.stages))),
    ("packing", "log2 bytes", "factors copied on every run", "",
     lambda v: _log(sum(p.model.pack_bytes for p in v.a.phases))),
    ("packing_strided", "log2 bytes", "of these, read out of order", "",
     lambda v: _log(sum(p.model.pack_strided for p in v.a.phases))),
    # ---- parallelism
    ("threads", "threads", "threads of the target", "", lambda v: float(v.a.target.threads)),
    ("parallel", "log2 iterations", "pieces of work to share", "", lambda v: _log(v.pieces)),
    ("pieces_per_thread", "log2", "many small pieces cost index arithmetic", "",
     lambda v: np.log2(np.maximum(v.pieces, 1.0) / v.threads)),
    ("imbalance", "ratio", "busiest thread relative to an even share", "pieces of remainders: half of one",
     lambda v: v.share * v.threads),
    ("idle", "log2 ratio", "threads the main phase cannot use at all", "",
     lambda v: np.log2(v.a.target.threads * v.share)),
    ("phases", "count", "loop programs run one after the other", "", lambda v: float(len(v.a.phases))),
    # ---- the prior and its parts
    ("prior", "log2 ns", "the analytic estimate", "", lambda v: np.log2(v.estimate.total)),
    ("prior_compute", "share", "of the prior, computing", "",
     lambda v: v.estimate.compute / v.estimate.total),
    ("prior_memory", "share", "of the prior, waiting for memory beyond computing", "",
     lambda v: v.estimate.memory / v.estimate.total),
    ("prior_parallel", "share", "of the prior, starting and feeding threads", "",
     lambda v: v.estimate.parallel / v.estimate.total),
)  # fmt: skip

FEATURES = FeatureSchema(
    2, tuple(Feature(name, unit, reason, approximate) for name, unit, reason, approximate, _ in _TABLE)
)
"""The columns, in order. Raise the version whenever a formula changes its meaning."""


def features(sketch: Sketch, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Features (N, F) of candidates ``rows`` (N, P) of a sketch: finite float32."""
    return features_and_prior(sketch, rows)[0]


def features_and_prior(sketch: Sketch, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], Floats]:
    """Features (N, F) and prior (N,) of candidates, from one analysis."""
    x = np.empty((len(rows), len(_TABLE)), dtype=np.float32)
    prior = np.empty(len(rows))
    for part, analysis in analyses(sketch, rows):
        view = View(analysis, estimate(analysis))
        prior[part] = view.estimate.total
        for k, row in enumerate(_TABLE):
            x[part, k] = row[4](view)
    return x, prior
