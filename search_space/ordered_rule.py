"""The rule of ordered reductions: scans and selections, each a phase of its own.

A scan is bound by the order of its elements. Where something lies behind the scanned axis, vectors run across it and each lane has a
running result of its own (*across*); otherwise lanes are scanned inside a vector (*along*), a few operations more for each. Rows are
shared by the threads; where there are too few of them, parts of a row are (*parts*), for which all results pass twice.

A selection reads rows by vectors and looks closer at what may be better than the worst kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.graph.ordered import Scan
from tilewright.graph.workload import Workload
from tilewright.schedules.ordered import SCANNED
from tilewright.schedules.ordered_nest import MAX_MASK
from tilewright.schedules.phase import Best, PStage, Running
from tilewright.schedules.phases import phases
from tilewright.schedules.rewrites import resolve_views
from tilewright.schedules.steps import Order, Parallel, RFactor, Schedule, ScheduleError, Step, Unroll, Vectorize
from tilewright.schedules.target import Target
from tilewright.search_space.injective_rule import copy_steps
from tilewright.search_space.prologue import plan, worth_threads
from tilewright.search_space.sketch import Constraint, Open, Param, Sketch

ROWS_EACH = 4
"""Rows for each thread that are enough to share a scan by rows."""
PARTS_EACH = (1, 2, 4, 8, 16)
"""Parts of a row for each thread."""
SHORTEST = 1024
"""Elements of the shortest part."""


def ordered_sketches(workload: Workload, target: Target) -> list[Sketch]:
    """Sketches of a workload with one ordered reduction; none for any other."""
    found = [s for s in resolve_views(workload) if s.ordered is not None]
    if len(found) != 1:
        return []
    base: list[Step] = plan(workload).steps()
    out = _of_phase(workload, target, base, found[0].output)
    form = found[0].ordered
    if isinstance(form, Scan) and worth_threads(workload, target):
        axis, extent = found[0].axes[form.axis]
        if prod(e for a, e in found[0].axes if a != axis) < ROWS_EACH * target.threads:
            for size in _parts(extent, target.threads):
                steps = [RFactor(found[0].output, axis, size), *base]
                out += _of_phase(workload, target, steps, found[0].output + SCANNED, f"parts{extent // size}:")
    return out


def _parts(extent: int, threads: int) -> list[int]:
    """Sizes of parts, which divide the extent: about as many as each of ``PARTS_EACH`` asks for."""
    out: dict[int, None] = {}
    for each in PARTS_EACH:
        for count in range(each * threads, 2 * each * threads):
            if extent % count == 0 and extent // count >= SHORTEST:
                out[extent // count] = None
                break
    return list(out)


def _of_phase(workload: Workload, target: Target, base: Sequence[Step], name: str, prefix: str = "") -> list[Sketch]:
    """Sketches in which the phase of stage ``name`` is searched, and the others have fixed steps."""
    try:
        parts = phases(workload, Schedule(tuple(base)))
    except ScheduleError:
        return []
    leader = next((p.leader for p in parts if p.leader.name == name), None)
    if leader is None or leader.listing is None:
        return []  # of one element: a map
    extra: list[Step | Open] = []
    for p in parts:
        if p.leader is not leader and p.leader.listing is None and len(p.stages) == 1:
            extra += copy_steps(p.leader, target)
    make = _Maker(workload, target, leader, [*base, *extra], prefix)
    return make.selection() if isinstance(leader.listing, Best) else make.scan(leader.listing)


class _Maker:
    def __init__(
        self, workload: Workload, target: Target, leader: PStage, base: Sequence[Step | Open], prefix: str
    ) -> None:
        self.workload, self.target, self.leader, self.base, self.prefix = workload, target, leader, base, prefix
        self.lanes = target.lanes(leader.body.dtype)
        self.threads = worth_threads(workload, target)

    def scan(self, form: Running) -> list[Sketch]:
        axes = [a for a, e in self.leader.axes if a != form.axis]
        behind = self.leader.axes[-1][0]
        out = []
        if behind != form.axis:
            out.append(self._across(form.axis, behind, [a for a in axes if a != behind]))
        elif self.leader.extents[form.axis] >= self.lanes:
            out.append(self._along(form.axis, axes))
        return out

    def _across(self, scanned: str, lane: str, outside: list[str]) -> Sketch:
        extent = self.leader.extents[lane]
        params, preferred = self._widths(extent, "vectors with running results of their own")
        params.append(Param("s", (1, 2, 4), "steps in a row"))
        steps: list[Step | Open] = [
            Open(self.leader.name, lane, ("v*u", "v")),
            Open(self.leader.name, scanned, ("s",)),
            Order(
                self.leader.name,
                (*(f"{a}.0" for a in outside), f"{lane}.0", f"{scanned}.0", f"{scanned}.1", f"{lane}.1", f"{lane}.2"),
            ),
            Unroll(self.leader.name, f"{scanned}.1"),
            Unroll(self.leader.name, f"{lane}.1"),
            Vectorize(self.leader.name, f"{lane}.2"),
        ]
        if self.threads:
            steps.append(Parallel(self.leader.name, len(outside) + 1))
            # each thread has a share of what lies behind, if there is no other axis to share
            share = -(-extent // (1 if prod(self.leader.extents[a] for a in outside) > 1 else self.target.threads))
            fitting = [u for u in params[1].values if preferred["v"] * u <= share]
            preferred["u"] = max(fitting, default=1)
        return self._sketch("across", steps, params, {**preferred, "s": 1}, (self._registers(),))

    def _along(self, scanned: str, outside: list[str]) -> Sketch:
        params, preferred = self._widths(self.leader.extents[scanned], "vectors in a row")
        steps: list[Step | Open] = [
            Open(self.leader.name, scanned, ("v*u", "v")),
            Order(self.leader.name, (*(f"{a}.0" for a in outside), f"{scanned}.0", f"{scanned}.1", f"{scanned}.2")),
            Unroll(self.leader.name, f"{scanned}.1"),
            Vectorize(self.leader.name, f"{scanned}.2"),
        ]
        if self.threads and outside:
            steps.append(Parallel(self.leader.name, len(outside)))
        return self._sketch("along", steps, params, {**preferred, "u": max(u for u in params[1].values if u <= 4)})

    def selection(self) -> list[Sketch]:
        """Rows looked through by vectors, as long as there is more than what is kept."""
        name, ((axis, extent),) = self.leader.name, self.leader.reduce
        outside = [a for a, _ in self.leader.axes]
        widths = tuple(w for w in (self.lanes, 2 * self.lanes) if w <= min(extent, MAX_MASK)) or (1,)
        groups = tuple(g for g in (1, 2, 4, 8) if g * widths[0] <= min(extent, MAX_MASK)) or (1,)
        params = [Param("v", widths, "width of the vectors compared"), Param("u", groups, "vectors at a time")]
        steps: list[Step | Open] = [
            Open(name, axis, ("v*u", "v")),
            Order(name, (*(f"{a}.0" for a in outside), f"{axis}.0", f"{axis}.1", f"{axis}.2")),
            Unroll(name, f"{axis}.1"),
            Vectorize(name, f"{axis}.2"),
        ]
        if self.threads and outside:
            steps.append(Parallel(name, len(outside)))
        limit = Constraint("word", f"at most {MAX_MASK} values at a time", lambda c: c["v"] * c["u"] <= MAX_MASK)
        preferred = {"v": widths[0], "u": max(g for g in groups if g <= 4)}
        return [self._sketch("select", steps, params, preferred, (limit,))]

    def _widths(self, extent: int, reason: str) -> tuple[list[Param], dict[str, int]]:
        widths = tuple(w for w in (self.lanes, 2 * self.lanes) if w <= extent) or (extent,)
        counts = tuple(u for u in (1, 2, 4, 8, 16) if u * widths[0] <= extent) or (1,)
        params = [Param("v", widths, "width of the vector loop"), Param("u", counts, reason)]
        return params, {"v": widths[0], "u": 1}

    def _registers(self) -> Constraint:
        most = self.target.vector_registers
        return Constraint(
            "registers",
            f"running results in at most {most} registers",
            lambda c: -(-c["v"] // self.lanes) * c["u"] <= most,
        )

    def _sketch(
        self,
        form: str,
        steps: Sequence[Step | Open],
        params: Sequence[Param],
        preferred: dict[str, int],
        limits: tuple[Constraint, ...] = (),
    ) -> Sketch:
        template = (*self.base, *steps)
        return Sketch(
            f"{self.prefix}{form}", self.workload, self.target, template, tuple(params), limits, self.leader.name, preferred
        )  # fmt: skip
