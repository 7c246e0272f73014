"""Random schedules for the property tests: legal points of the space, and steps composed with no regard to
any sketch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from helpers import host
from tilewright.graph.ordered import Scan
from tilewright.graph.stage import Stage
from tilewright.graph.workload import Workload
from tilewright.schedules.blocks import BLOCK
from tilewright.schedules.factors import product_factors
from tilewright.schedules.phase import ACC, Phase, PStage
from tilewright.schedules.phases import phases
from tilewright.schedules.rewrites import resolve_views
from tilewright.schedules.rfactor import factor_out
from tilewright.schedules.steps import (
    At,
    Block,
    Divide,
    Inline,
    InPlace,
    Order,
    Pack,
    Parallel,
    Prefetch,
    RFactor,
    Schedule,
    ScheduleError,
    Split,
    Spread,
    Step,
    Stream,
    Unroll,
    Vectorize,
    Winograd,
)
from tilewright.schedules.winograd import convolution, expand
from tilewright.search_space.sketch import enumerate_points
from tilewright.search_space.space import space

FACTORS = (1, 2, 2, 3, 4, 4, 5, 8)


def point(workload: Workload, rng: np.random.Generator, threads: int) -> tuple[str, Schedule]:
    """A random legal point of a random sketch, and the sketch's name. The space is that of a machine with
    vectors of any size: the host runs them all."""
    bits = int(rng.choice([128, 256, 512]))
    sketches = space(workload, replace(host(threads), vector_bits=bits)).sketches
    sketch = sketches[int(rng.integers(len(sketches)))]
    rows = enumerate_points(sketch, 20_000).rows
    row = sketch.row(rows[int(rng.integers(len(rows)))]) if len(rows) else dict(sketch.preferred)
    return sketch.name, sketch.schedule(row)


class _Composer:
    def __init__(self, workload: Workload, rng: np.random.Generator) -> None:
        self.workload = workload
        self.rng = rng
        self.sizes: dict[str, tuple[int, ...]] = {}

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def shuffle(self, names: list[str]) -> list[str]:
        """A random order in which the levels of an axis stay outer to inner."""
        pools: dict[str, list[str]] = {}
        for n in names:
            pools.setdefault(n.rsplit(".", 1)[0], []).append(n)
        out: list[str] = []
        order = [n.rsplit(".", 1)[0] for n in names]
        for axis in [order[int(k)] for k in self.rng.permutation(len(order))]:
            out.append(pools[axis].pop(0))
        return out

    def split(self, stage: PStage, axis: str, keep: tuple[int, ...] = ()) -> Split | None:
        levels = int(self.pick(0, 1, 1, 1, 2, 2, 3))
        sizes: list[int] = []
        size = 1
        for _ in range(levels):
            size *= int(self.pick(*FACTORS))
            sizes.insert(0, size)
        if keep:
            below = [s for s in sizes if keep[-1] % s == 0]
            sizes = [*keep, *below]
        return Split(stage.name, axis, tuple(sizes)) if sizes else None

    def kinds(self, stage: PStage, order: list[str], reduced: set[str], parallel: int) -> list[Step]:
        """Vector, unrolled and spread loops, mostly inner ones."""
        steps: list[Step] = []
        free = order[parallel:]
        if free and self.chance(0.7):
            loop = free[-1] if self.chance(0.7) else self.pick(*free)
            steps.append(Vectorize(stage.name, loop))
            free = [n for n in free if n != loop]
        for loop in reversed(free[-3:]):
            if not self.chance(0.4):
                continue
            steps.append(Unroll(stage.name, loop))
            if loop.rsplit(".", 1)[0] in reduced and self.chance(0.5):
                steps.append(Spread(stage.name, loop))
        return steps

    def prefetch(self, stage: PStage, loops: list[str]) -> list[Step]:
        """Sometimes a fetch ahead along some loop."""
        if not loops or not self.chance(0.12):
            return []
        return [Prefetch(stage.name, self.pick(*loops), int(self.pick(1, 2, 7)))]

    def leader(self, stage: PStage) -> tuple[list[Step], list[str]]:
        steps: list[Step] = []
        axes = stage.axes + (stage.reduce if stage.listing is not None else ())  # a selection leads with its reduction
        for a, _ in axes:
            s = self.split(stage, a)
            self.sizes[a] = s.sizes if s else ()
            if s:
                steps.append(s)
        order = [f"{a}.{k}" for a, _ in axes for k in range(len(self.sizes[a]) + 1)]
        if self.chance(0.6):
            order = self.shuffle(order)
            steps.append(Order(stage.name, tuple(order)))
        count = int(self.rng.integers(0, len(order) + 1)) if self.chance(0.4) else 0
        if count:
            steps.append(Parallel(stage.name, min(count, int(self.pick(1, 2, 3)))))
        steps += self.kinds(stage, order, set(), count)
        if self.chance(0.15):
            steps.append(Stream(stage.name))
        steps += self.prefetch(stage, order)
        return steps, order

    def producer(self, stage: PStage, leader: PStage, outside: list[str]) -> list[Step]:
        steps: list[Step] = []
        sizes: dict[str, tuple[int, ...]] = {}
        first = {a: sum(n.rsplit(".", 1)[0] == a for n in outside) for a, _ in leader.axes}
        spatial = {a for a, _ in stage.axes}
        for a, _ in stage.axes + stage.reduce:
            inherited = self.sizes.get(a, ()) if a in spatial else ()
            sizes[a] = inherited
            if a in spatial and not self.chance(0.2):
                continue
            keep = inherited[: first.get(a, 0)] if a in spatial else ()
            s = self.split(stage, a, keep)
            if s:
                sizes[a] = s.sizes
                steps.append(s)
        order = [
            f"{a}.{k}"
            for a, _ in stage.axes + stage.reduce
            for k in range(first.get(a, 0) if a in spatial else 0, len(sizes[a]) + 1)
        ]
        if self.chance(0.6):
            order = self.shuffle(order)
            steps.append(Order(stage.name, tuple(order)))
        if self.chance(0.7):
            steps += self.kinds(stage, order, {a for a, _ in stage.reduce}, 0)
        steps += self.prefetch(stage, [*outside, *order])
        factors = product_factors(stage.body)
        for k in range(len(factors)):
            if stage.reducer == "sum" and len(factors) > 1 and self.chance(0.3):
                steps.append(self.pack(stage, k, factors[k], outside, order, sizes))
        return steps

    def pack(
        self,
        stage: PStage,
        k: int,
        factor: Any,
        outside: list[str],
        order: list[str],
        sizes: dict[str, tuple[int, ...]],
    ) -> Pack:
        from tilewright.graph.traverse import variables

        used = variables(factor)
        if self.chance(0.6) or not order:
            loops = [f"{a}.{n}" for a in stage.extents if a in used for n in range(len(sizes[a]) + 1)]
            return Pack(stage.name, k, "root", tuple(self.shuffle(loops)))
        if outside and self.chance(0.5):
            at = int(self.rng.integers(len(outside)))
            inside = [n for n in (*outside[at + 1 :], *order) if n.rsplit(".", 1)[0] in used]
            return Pack(stage.name, k, outside[at], tuple(self.shuffle(inside)))
        at = int(self.rng.integers(len(order)))
        inside = [n for n in order[at + 1 :] if n.rsplit(".", 1)[0] in used]
        return Pack(stage.name, k, order[at], tuple(self.shuffle(inside)))

    def phase(self, phase: Phase, ats: dict[str, str]) -> list[Step]:
        leader = phase.leader
        own, order = self.leader(leader)
        steps = list(own)
        least = 0
        guests = {n for n, into, _ in phase.attached if into != leader.name}
        for stage in phase.stages[:-1]:
            if stage.name in guests and self.chance(0.8):
                continue  # inside all loops of the stage that reads it
            # attached no further out than the one before it
            places = ["root", *order]
            loop = "tile" if self.chance(0.5) else places[int(self.rng.integers(least, len(places)))]
            if loop != "tile":
                least = places.index(loop)
                if stage.name in ats or stage.name.endswith(ACC):
                    ats[stage.name] = loop
            static = {s.loop for s in own if isinstance(s, (Vectorize, Unroll))}
            dynamic = [i for i, n in enumerate(order) if n not in static]
            if loop == "root":
                outside: list[str] = []
            elif loop == "tile":
                outside = order[: dynamic[-1] + 1] if dynamic else []
            else:
                outside = order[: order.index(loop) + 1]
            steps += self.producer(stage, leader, outside)
            if stage.reducer is None and dict(stage.axes) == dict(leader.axes) and self.chance(0.4):
                steps.append(InPlace(stage.name))
        return steps

    def parted(self, stages: list[Stage]) -> list[RFactor]:
        """Some reductions in parts, of any size of which there are two."""
        out: list[RFactor] = []
        for s in stages:
            if isinstance(s.ordered, Scan):
                a, e = s.axes[s.ordered.axis]
                sizes = [n for n in range(1, e // 2 + 1) if e % n == 0]
                if sizes and s.output == self.workload.output and self.chance(0.5):
                    out.append(RFactor(s.output, a, int(self.pick(*sizes))))
            axes = [(a, e) for a, e in s.reduce if e > 1 and s.ordered is None]
            if axes and (s.body.dtype != "bool" or s.reducer in ("max", "min")) and self.chance(0.25):
                a, e = self.pick(*axes)
                out.append(RFactor(s.output, a, int(self.rng.integers(1, e // 2 + 1))))
        return out

    def divided(self, output: Stage, tiles: list[int]) -> list[Divide]:
        """Some axes of the output as two, mostly by the size of a tile that is computed."""
        out: list[Divide] = []
        for a, extent in output.axes:
            sizes = [n for n in (*tiles, 2, 3, 4) if extent % n == 0]
            if sizes and self.chance(0.7 if tiles and sizes[0] in tiles else 0.15):
                out.append(Divide(output.output, a, sizes[0] if self.chance(0.8) else int(self.pick(*sizes))))
        return out

    def compose(self) -> Schedule:
        for _ in range(8):
            minimal = [
                Winograd(s.output, int(self.pick(2, 4)), str(self.pick("tiles", "channels")))
                for s in resolve_views(self.workload)
                if convolution(s) is not None and self.chance(0.5)
            ]
            listed = resolve_views(self.workload)
            for step in minimal:
                listed = expand(listed, step)
            parted = self.parted(listed)
            for part in parted:
                listed = factor_out(listed, part, self.workload.output)
            stages = {s.output: s for s in listed}
            inlined = [
                n for n, s in stages.items() if s.reducer is None and n != self.workload.output and self.chance(0.6)
            ]
            blocked = [n for n, s in stages.items() if s.reducer is None and n not in inlined and self.chance(0.2)]
            listing = [[n + BLOCK, n] if n in blocked else [n] for n in stages if n not in inlined]
            kept = [n for names in listing for n in names if n != self.workload.output]
            divided = self.divided(stages[self.workload.output], [s.tile for s in minimal])
            base: list[Step] = [
                *minimal,
                *parted,
                *(Inline(n) for n in inlined),
                *divided,
                *(Block(n) for n in blocked),
            ]
            later = dict(pairwise([*kept, self.workload.output]))
            into = {n: later[n] if self.chance(0.2) else self.workload.output for n in kept if self.chance(0.6)}
            into |= {n + BLOCK: n for n in blocked if self.chance(0.7)}
            try:
                parts = phases(self.workload, Schedule((*base, *(At(n, t, "tile") for n, t in into.items()))))
            except ScheduleError:
                continue
            loops = dict.fromkeys(into, "tile")
            steps: list[Step] = []
            for p in parts:
                steps += self.phase(p, loops)
            ats = [At(n, into.get(n, n.removesuffix(ACC)), loop) for n, loop in loops.items()]
            return Schedule((*base, *ats, *steps))
        return Schedule(())


def composed(workload: Workload, rng: np.random.Generator) -> Schedule:
    """Random steps: inlining, attachment, tile sizes, orders and loop kinds, often legal."""
    return _Composer(workload, rng).compose()
