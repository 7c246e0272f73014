"""What is inside all loops: stores, and the expressions they store at this point of the loops.

A stage's body speaks of axes and tensors. Here axes become affine forms of loop variables, tensors that are local to
the phase become reads of their buffers, packed factors reads of the packed copy. The stores of a phase are counted
while they are made, so that a program that is far too large is refused before it is built.
"""

from __future__ import annotations

from tilewright.graph.affine import Affine, affine, decide, parted
from tilewright.graph.expr import Expr, Load, Op, Var
from tilewright.graph.traverse import rewrite
from tilewright.schedules.factors import product_factors
from tilewright.schedules.nest import Store
from tilewright.schedules.phase import Phase, PStage
from tilewright.schedules.state import Local, State
from tilewright.schedules.steps import ScheduleError

MAX_STATEMENTS = 6000
"""Stores of one phase: what keeps building the program itself short."""


class Statements:
    """Makes the stores of one phase."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.count = 0

    def store(self, tensor: str, index: Affine, value: Expr, reducer: str | None = None, stream: bool = False) -> Store:
        """One store, counted."""
        self.counted()
        return Store(tensor, index.expr(), value, reducer, stream)

    def counted(self) -> None:
        """Count a statement. Raises ScheduleError where there are too many."""
        self.count += 1
        if self.count > MAX_STATEMENTS:
            raise ScheduleError(f"the loop program has more than {MAX_STATEMENTS} statements; choose smaller tiles")

    def put(self, where: Local, state: State, value: Expr, reducer: str | None = None) -> Store:
        """``value`` into the element of ``where`` at this point."""
        return self.store(where.buffer.name, where.index(state.base), value, reducer)

    def copy(self, target: Local, source: Local, state: State) -> Store:
        """The element of ``source`` at this point into that of ``target``."""
        return self.put(target, state, read(source, source.index(state.base)))

    def value(self, stage: PStage, e: Expr, state: State) -> Expr:
        """``e``, a part of the body of ``stage``, at this point."""
        packs = {}
        if any(name == stage.name for name, _ in state.packed):
            for k, factor in enumerate(product_factors(stage.body)):
                if (stage.name, k) in state.packed:
                    packs[factor] = state.packed[stage.name, k]
        memo: dict[Expr, Expr] = {}

        def rule(n: Expr) -> Expr | None:
            if n in packs:
                packed = packs[n]
                return Load(n.dtype, packed.buffer.name, (packed.index(state).expr(),))
            if isinstance(n, Op) and n.kind == "select" and state.within:
                holds = decide(n.args[0], state.within)
                return None if holds is None else rewrite(n.args[1] if holds else n.args[2], rule, memo)
            if isinstance(n, Var):
                return state.base[n.name].expr()
            if isinstance(n, Load):
                local = state.locals.get(n.tensor)
                if local is not None:
                    return read(local, self._place(local, n, state))
                flat = rewrite(n.index[0], rule, memo)
                return Load(n.dtype, n.tensor, (parted(flat, state.ranges).expr(),))
            return None

        return rewrite(e, rule, memo)

    def _place(self, local: Local, load: Load, state: State) -> Affine:
        """The element of ``local`` that a load reads, at or around this point."""
        values: dict[str, Affine] = {}
        for i, (a, _) in zip(load.index, self.phase.stage(load.tensor).axes, strict=True):
            at = affine(rewrite(i, lambda e: state.base[e.name].expr() if isinstance(e, Var) else None))
            assert at is not None  # checked when the phase was made
            values[a] = at
        return local.index(values)


def read(local: Local, index: Affine) -> Load:
    """An element of a buffer."""
    return Load(local.buffer.dtype, local.buffer.name, (index.expr(),))
