"""What a phase is: the stages of one loop program, rewritten so that they can be tiled
(:mod:`~tilewright.schedules.phases` makes them)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.expr import Expr
from tilewright.graph.stage import Axes
from tilewright.schedules.steps import check

ACC = "_acc"
"""What the name of an accumulator ends with: ``t0_acc`` is summed for its leader ``t0``."""


@dataclass(frozen=True, slots=True)
class PStage:
    """One stage of a phase: :class:`~tilewright.graph.stage.Stage` with unified axes and flat external
    loads."""

    name: str
    axes: Axes
    reduce: Axes
    reducer: str | None
    body: Expr

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every axis."""
        return dict(self.axes + self.reduce)


@dataclass(frozen=True, slots=True)
class Phase:
    """Stages computed in one loop program: producers in order, the leader last. ``attached`` maps each
    producer to the stage and the loop it is computed in."""

    stages: tuple[PStage, ...]
    attached: tuple[tuple[str, str, str], ...]

    @property
    def leader(self) -> PStage:
        """The stage whose loops the others are computed in; it writes the phase's output."""
        return self.stages[-1]

    @property
    def local(self) -> set[str]:
        """Tensors that exist only inside the phase."""
        return {s.name for s in self.stages[:-1]}

    def stage(self, name: str) -> PStage:
        """The stage that defines ``name``."""
        found = next((s for s in self.stages if s.name == name), None)
        check(found is not None, f"expected a stage of {[s.name for s in self.stages]}; got {name!r}")
        assert found is not None
        return found
