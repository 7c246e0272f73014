"""Producers that are read through windows, computed for each block: just what a block reads, in a buffer of that size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from helpers import Case, case, check, values
from tilewright.graph.expr import Expr, all_of, const, select
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.nest import Alloc, Program, walk
from tilewright.schedules.phases import phases
from tilewright.schedules.steps import ScheduleError, parse
from tilewright.search_space.overlap import regions

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Window:
    """A padded image under a window: ``size`` pixels each way, ``stride`` and ``dilation`` of a window of ``taps``."""

    size: int = 19
    taps: int = 3
    stride: int = 1
    dilation: int = 1
    pad: int = 1

    @property
    def places(self) -> int:
        """Of the window, along one axis."""
        return (self.size + 2 * self.pad - self.dilation * (self.taps - 1) - 1) // self.stride + 1

    def reach(self, places: int) -> int:
        """Pixels that so many neighbouring places read."""
        return (places - 1) * self.stride + (self.taps - 1) * self.dilation + 1


def padded(g: Graph, x: Tensor, channels: int, w: Window) -> Tensor:
    """``x`` with a border of zeros."""
    p, n = w.pad, w.size

    def inside(c: Expr, i: Expr, j: Expr) -> Expr:
        known = all_of([i.ge(p), i.lt(n + p), j.ge(p), j.lt(n + p)])
        return select(known, x[c, i - p, j - p], const(0.0, "float32"))

    return g.compute((channels, n + 2 * p, n + 2 * p), inside)


def convolution(w: Window, channels: int = 5, out: int = 9) -> Case:
    """``t0`` is the padded image, ``t1`` the convolution."""
    weights = values(RNG, (out, channels, w.taps, w.taps), whole=True)

    def make(g: Graph) -> Tensor:
        x, k = g.input("x", (channels, w.size, w.size)), g.constant(weights)
        t = padded(g, x, channels, w)
        return g.compute(
            (out, w.places, w.places),
            lambda o, i, j, c, u, v: t[c, i * w.stride + u * w.dilation, j * w.stride + v * w.dilation] * k[o, c, u, v],
            (channels, w.taps, w.taps),
            "sum",
        )

    return case(make, {"x": values(RNG, (channels, w.size, w.size), whole=True)}, exact=True)


def neighbours(g: Graph, t: Tensor, n: int) -> Tensor:
    """``n`` sums of three neighbours."""
    return g.compute((n,), lambda i, r: t[i + r], (3,), "sum")


def sizes(program: Program) -> dict[str, int]:
    """Elements of every buffer that is allocated inside loops."""
    out: dict[str, int] = {}
    for node in walk(program.body):
        if isinstance(node, Alloc):
            out[node.buffer.name] = max(out.get(node.buffer.name, 0), node.buffer.size)
    return out


WINDOWS = [
    Window(),
    Window(stride=2),
    Window(taps=5, pad=2),
    Window(size=23, taps=3, dilation=2, pad=2),
    Window(18, 7, 2, 1, 3),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("w", WINDOWS, ids=str)
def test_padding_for_a_block_of_rows(w: Window, rows: int, threads: int) -> None:
    """Blocks that divide the image and blocks that leave a rest."""
    text = f"at t0 t1 i1.0\nsplit t1 i1 {rows}\norder t1 i1.0 i0.0 i1.1 i2.0\nparallel t1 1"
    program = check(convolution(w), text, threads)
    assert sizes(program)["t0.buf"] == 5 * w.reach(min(rows, w.places)) * w.reach(w.places)


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_any_shape(seed: int) -> None:
    """Random windows, tiles in both directions at any loop, vectors along the copied rows."""
    rng = np.random.default_rng(seed)
    w = Window(
        int(rng.integers(9, 24)),
        int(rng.integers(1, 5)),
        int(rng.integers(1, 4)),
        int(rng.integers(1, 3)),
        int(rng.integers(0, 4)),
    )
    a, b, c = (int(rng.integers(1, 9)) for _ in range(3))
    order = [f"i1.{k}" for k in range(2)], [f"i2.{k}" for k in range(3)], ["i0.0"]
    loops: list[str] = []
    pools = [list(o) for o in order]
    while any(pools):
        pool = pools[int(rng.integers(3))]
        loops += [pool.pop(0)] if pool else []
    at = loops[int(rng.integers(len(loops) - 1))]
    inner = int(rng.choice([1, 2, 4]))
    text = f"at t0 t1 {at}\nsplit t1 i1 {a}\nsplit t1 i2 {b * inner} {inner}\norder t1 {' '.join(loops)}"
    one = convolution(w, channels=3, out=4)
    last = phases(one.workload, parse(text))[0].stages[0].axes[-1][0]
    check(one, f"{text}\nsplit t0 {last} {c}\nvectorize t0 {last}.1")


def test_windows_over_windows() -> None:
    """A block of the last of three sums of neighbours reads more of the second, and still more of the first."""

    def make(g: Graph) -> Tensor:
        t = g.input("x", (50,))
        for n in (48, 46, 44):
            t = neighbours(g, t, n)
        return t

    c = case(make, {"x": values(RNG, (50,), whole=True)}, exact=True)
    for block in (4, 7, 44):
        text = f"at t0 t2 i0.0\nat t1 t2 i0.0\nsplit t2 i0 {block}"
        found = sizes(check(c, text))
        assert (found["t0.buf"], found["t1.buf"]) == (block + 4, block + 2)


def test_what_may_lie_outside_is_computed_whole() -> None:
    """A reader that looks beyond the ends under a condition says nothing about what is needed: the producer is computed whole."""

    def make(g: Graph) -> Tensor:
        x = g.input("x", (30,))
        t = g.compute((30,), lambda i: x[i] * 2.0)
        return g.compute(
            (30,),
            lambda i, r: select(all_of([(i + r).ge(1), (i + r).lt(31)]), t[i + r - 1], const(0.0, "float32")),
            (3,),
            "sum",
        )

    c = case(make, {"x": values(RNG, (30,), whole=True)}, exact=True)
    found = sizes(check(c, "at t0 t1 i0.0\nsplit t1 i0 6"))
    assert found["t0.buf"] == 30


def test_a_factor_that_was_packed_before_is_found_again() -> None:
    """A copy made before all loops is found by the loops of its reader, which therefore keeps walking all of its axis."""

    def make(g: Graph) -> Tensor:
        x, k = g.input("x", (20, 4)), g.input("k", (4,))
        t = g.compute((20,), lambda i, r: x[i, r] * k[r], (4,), "sum")
        return neighbours(g, t, 18)

    c = case(make, {"x": values(RNG, (20, 4), whole=True), "k": values(RNG, (4,), whole=True)}, exact=True)
    free = sizes(check(c, "at t0 t1 i0.0\nsplit t1 i0 6"))
    first = phases(c.workload, parse("at t0 t1 i0.0"))[0].stages[0]
    layout = " ".join(f"{a}.0" for a in first.extents)
    bound = sizes(check(c, f"at t0 t1 i0.0\nsplit t1 i0 6\npack t0 0 root {layout}"))
    assert (free["t0.buf"], bound["t0.buf"]) == (8, 20)


def test_the_model_knows_the_same_sizes() -> None:
    w = Window(stride=2)
    c = convolution(w)
    for rows in (1, 2, 3, 10):
        text = f"at t0 t1 i1.0\nsplit t1 i1 {rows}\norder t1 i1.0 i0.0 i1.1 i2.0"
        (phase,) = phases(c.workload, parse(text))
        copy = phase.stages[0]
        found = regions(copy, phase, {"i1": np.array([float(rows)])})
        height, width = (found[a].width if a in found else e for a, e in copy.axes[1:])
        assert sizes(check(c, text))["t0.buf"] == 5 * int(np.max(height)) * int(np.max(width))


def test_windows_and_the_loops_of_the_leader_do_not_mix() -> None:
    """What is read through windows has axes of its own; the leader's are refused by name."""
    with pytest.raises(ScheduleError, match="expected an axis of"):
        check(convolution(Window()), "at t0 t1 i1.0\nsplit t0 i1 4")
