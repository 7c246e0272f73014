"""Blocks: a map is computed by a stage of its own and then copied to where its result belongs.

``y[i] = f(x)`` becomes ``y_block[i] = f(x)`` and ``y[i] = y_block[i]``. With the first computed at a loop of the second,
a block of the result is made in the thread's cache, in the order in which ``x`` is read best, and then written out in
the order in which ``y`` is written best. A transpose needs both: memory wants long runs on either side, and no order of
one loop nest has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.graph.expr import Load, var
from tilewright.graph.stage import Stage
from tilewright.schedules.steps import Block, check

BLOCK = "_block"


def split_off(stages: Sequence[Stage], step: Block) -> list[Stage]:
    """The stages with the computation of ``step.stage`` in a stage of its own. Raises ScheduleError for a stage that is not
    there, or one that reduces: what its loops sum is already kept apart from where it is written."""
    name = step.stage + BLOCK
    known = {s.output for s in stages}
    check(step.stage in known, f"{step}: expected a stage of {sorted(known)}")
    check(name not in known, f"{step}: expected one step for a stage; there is a stage {name} already")
    out: list[Stage] = []
    for s in stages:
        if s.output != step.stage:
            out.append(s)
            continue
        check(s.reducer is None, f"{step}: expected a stage without a reduction")
        index = tuple(var(a) for a, _ in s.axes)
        out += [replace(s, output=name), replace(s, body=Load(s.body.dtype, name, index))]
    return out
