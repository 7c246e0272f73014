"""Tiles that are transposed in registers: every type and tile, remainders, guards, and what must not wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers import TARGETS, Array, Case, case, check, each_target, named, values
from tilewright.graph import ops
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr, all_of, select
from tilewright.graph.graph import Graph, Tensor
from tilewright.schedules.emit import Function, Value
from tilewright.schedules.kernel import build
from tilewright.schedules.steps import parse
from tilewright.schedules.target import Target
from tilewright.schedules.write_transposed import pieces, runs, transpose

RNG = np.random.default_rng(0)
TILES = [(8, 16), (16, 6), (4, 4), (3, 5), (24, 23)]
SHAPE = (29, 43)


def simple(make: Callable[[Tensor], Tensor], array: Array) -> Case:
    """A case of one input."""
    return case(lambda g: make(g.input("a", array.shape, array.dtype.name)), {"a": array})


def turned(dtype: str, shape: tuple[int, int] = SHAPE) -> Case:
    """A transpose."""
    return simple(lambda x: ops.transpose(x, (1, 0)), values(RNG, shape, dtype))


def tiled(vector: str, lanes: int, unrolled: str, rows: int, stream: bool = False) -> str:
    """A vector loop along one axis inside an unrolled one along the other."""
    text = f"split t0 {vector} {4 * lanes} {lanes}\nsplit t0 {unrolled} {rows}\n"
    text += f"order t0 {unrolled}.0 {vector}.0 {vector}.1 {unrolled}.1 {vector}.2\n"
    return text + f"vectorize t0 {vector}.2\nunroll t0 {unrolled}.1" + ("\nstream t0" if stream else "")


def ir(c: Case, schedule: str, target: Target) -> str:
    """The LLVM IR of a kernel."""
    return "\n".join(build(c.workload, parse(schedule), target).lowered.functions)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_stores_of_every_type(dtype: str, stream: bool) -> None:
    """Lanes along the input, the unrolled loop along the output."""
    for lanes, rows in TILES:
        check(turned(dtype), tiled("i0", lanes, "i1", rows, stream))


@pytest.mark.parametrize("dtype", sorted(SIZES))
def test_loads_of_every_type(dtype: str) -> None:
    """Lanes along the output, the unrolled loop along the input."""
    for lanes, rows in TILES:
        check(turned(dtype), tiled("i1", lanes, "i0", rows))


@each_target
@pytest.mark.parametrize("vector", ["i0", "i1"])
def test_a_whole_tile_moves_no_element_alone(vector: str, target: Target) -> None:
    text = ir(turned("float32", (64, 64)), tiled(vector, 8, "i1" if vector == "i0" else "i0", 8, True), target)
    assert "extractelement" not in text
    assert "insertelement" not in text
    if vector == "i0":
        assert text.count("!nontemporal") == 8
        assert text.count("store <8 x float>") == 8


@pytest.mark.parametrize("width", [32, 28, 27, 26])
def test_a_run_over_two_unrolled_loops_is_one(width: int) -> None:
    """Four neighbours in each of two iterations: eight are transposed together, and what is left of a row apart."""
    c = turned("float32", (width, 24))
    steps = "split t0 i0 8\nsplit t0 i1 8 4\norder t0 i0.0 i1.0 i1.1 i1.2 i0.1\nvectorize t0 i0.1\n"
    steps += "unroll t0 i1.1\nunroll t0 i1.2"
    check(c, steps)
    for target in TARGETS if width == 32 else ():
        text = ir(c, steps, named(target))
        assert text.count("store <8 x float>") == 8
        assert "store <4 x float>" not in text
        assert "extractelement" not in text


@each_target
def test_streamed_lines_are_whole_where_they_are_aligned(target: Target) -> None:
    text = ir(turned("float32", (64, 64)), tiled("i0", 8, "i1", 16, True), target)
    assert text.count("store <16 x float>") == text.count("align 64, !nontemporal") == 8
    assert "nontemporal" not in ir(turned("float32", (43, 64)), tiled("i0", 8, "i1", 16, True), target)


def test_both_operands() -> None:
    """One load is contiguous along the lanes, the other along the unrolled loop."""
    c = case(
        lambda g: ops.add(ops.transpose(g.input("a", (29, 43)), (1, 0)), g.input("b", (43, 29))),
        {"a": values(RNG, (29, 43)), "b": values(RNG, (43, 29))},
    )
    for vector, unrolled in (("i0", "i1"), ("i1", "i0")):
        for lanes, rows in TILES:
            check(c, f"inline t0\n{tiled(vector, lanes, unrolled, rows).replace('t0', 't1')}")


def padded(g: Graph) -> Tensor:
    """Transposed and padded: the guards of some lanes and of some iterations are known when code is written."""
    x = g.input("a", (13, 21))

    def body(i: Expr, j: Expr) -> Expr:
        inside = all_of([i.ge(3), i.lt(24), j.ge(2), j.lt(15)])
        return select(inside, x[j - 2, i - 3], 7.0)

    return g.compute((30, 18), body)


@pytest.mark.parametrize("vector", ["i0", "i1"])
def test_guarded_loads(vector: str) -> None:
    c = case(padded, {"a": values(RNG, (13, 21))})
    for lanes, rows in TILES:
        check(c, tiled(vector, lanes, "i1" if vector == "i0" else "i0", rows))
    whole = (
        "unroll t0 i1.0\nvectorize t0 i0.0"
        if vector == "i0"
        else "order t0 i0.0 i1.0\nunroll t0 i0.0\nvectorize t0 i1.0"
    )
    check(c, whole)


@pytest.mark.parametrize(("pixels", "lanes"), [(6, 8), (8, 16), (7, 24), (14, 8)])
def test_channels_as_lanes_are_stored_with_pixels_as_rows(pixels: int, lanes: int) -> None:
    """The register tile of a convolution: accumulators [pixels x channels], output in channels of pixels."""
    x, w = values(RNG, (35, 9), whole=True), values(RNG, (9, 40), whole=True)
    c = case(
        lambda g: ops.transpose(ops.matmul(g.input("a", x.shape), g.input("b", w.shape)), (1, 0)),
        {"a": x, "b": w},
        True,
    )
    leader = c.workload.output
    inner = next(n for n in c.workload.stages if n != leader)
    text = f"""at {inner} {leader} tile
split {leader} i0 {lanes}
split {leader} i1 {pixels}
order {leader} i0.0 i1.0 i1.1 i0.1
unroll {leader} i1.1
vectorize {leader} i0.1"""
    check(c, text)
    for target in TARGETS:
        assert f"store <{next(pieces(pixels, 'float32'))[1]} x float>" in ir(c, text, named(target))


def test_lanes_of_a_tile() -> None:
    """The shuffles name every element once, and the right one."""
    for rows in (2, 4, 8, 16):
        for lanes in (2, 4, 8, 16, 32):
            for dtype in ("float32", "float64", "int8", "int16"):
                fn = Recorder()
                tile = [fn.row(k, lanes, dtype) for k in range(rows)]
                columns = transpose(fn, tile)
                assert [fn.content[c.name] for c in columns] == [[(r, k) for r in range(rows)] for k in range(lanes)]


class Recorder(Function):
    """A function in which vectors are lists of what they hold."""

    content: dict[str, list[tuple[int, int]]]

    def row(self, k: int, lanes: int, dtype: str) -> Value:
        """Row ``k`` of a tile."""
        self.content = getattr(self, "content", {})
        v = Value(self.fresh(), dtype, lanes)
        self.content[v.name] = [(k, lane) for lane in range(lanes)]
        return v

    def shuffle(self, a: Value, b: Value | None, mask: list[int]) -> Value:
        both = self.content[a.name] + (self.content[b.name] if b is not None else [])
        out = super().shuffle(a, b, mask)
        self.content[out.name] = [both[m] for m in mask]
        return out


def test_pieces_and_runs() -> None:
    assert list(pieces(23, "float32")) == [(0, 16), (16, 4), (20, 2), (22, 1)]
    assert list(pieces(16, "float64")) == [(0, 8), (8, 8)]
    assert list(runs([5, 1, 2, 7, 0])) == [[0, 1, 2], [5], [7]]
