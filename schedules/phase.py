"""What a phase is: the stages of one loop program, rewritten so that they can be tiled
(:mod:`~tilewright.schedules.phases` makes them)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.graph.expr import Expr
from tilewright.graph.stage import Axes
from tilewright.schedules.steps import check

ACC = "_acc"
"""What the name of an accumulator ends with: ``t0_acc`` is summed for its leader ``t0``."""


@dataclass(frozen=True, slots=True)
class Running:
    """A scan: the stage is walked like a map, and what is stored at each point is the reduction of its values along ``axis`` up to
    there. A reversed scan walks ``axis`` from the far end, and stores there."""

    reducer: str
    axis: str
    exclusive: bool
    reverse: bool


@dataclass(frozen=True, slots=True)
class Best:
    """A selection: for each point of the stage's axes, the positions of the ``count`` best values along its reduction axis."""

    count: int
    largest: bool


@dataclass(frozen=True, slots=True)
class PStage:
    """One stage of a phase: :class:`~tilewright.graph.stage.Stage` with unified axes and flat external
    loads."""

    name: str
    axes: Axes
    reduce: Axes
    reducer: str | None
    body: Expr
    listing: Running | Best | None = None
    """How the results are listed along an axis, if the stage is an ordered reduction."""

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every axis."""
        return dict(self.axes + self.reduce)

    @property
    def dtype(self) -> str:
        """Data type of the tensor the stage defines."""
        return "int64" if isinstance(self.listing, Best) else self.body.dtype

    @property
    def size(self) -> int:
        """Elements of the tensor the stage defines."""
        return prod(e for _, e in self.axes) * (self.listing.count if isinstance(self.listing, Best) else 1)


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
