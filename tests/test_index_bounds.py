"""Indices that are data: those outside of a tensor are an error of the call, and touch nothing (FAULTS 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from helpers import host
from tilewright.compiled import ModelError
from tilewright.frames import IndexOutsideError
from tilewright.graph import Graph, Tensor, ops
from tilewright.graph.bounds import bound_indices
from tilewright.graph.expr import select
from tilewright.graph.passes import optimise
from tilewright.graph.stage import Stage
from tilewright.graph.traverse import walk

FAR = (1 << 62, -(1 << 62), 1 << 40)


def gather(g: Graph, ids: Tensor) -> Tensor:
    return ops.gather(g.input("x", (5, 12)), ids, 0)


def elements(g: Graph, ids: Tensor) -> Tensor:
    return ops.gather_elements(g.input("x", (5, 12)), g.view(ids, (2, 3)), 0)


def tuples(g: Graph, ids: Tensor) -> Tensor:
    return ops.gather_nd(g.input("x", (5, 5, 4)), g.view(ids, (3, 2)))


def own(g: Graph, ids: Tensor) -> Tensor:
    x = g.input("x", (5, 40))
    return g.compute((6, 40), lambda i, j: x[ids[i], j] * 2)


def lanes(g: Graph, ids: Tensor) -> Tensor:
    x = g.input("x", (5,))
    return g.compute((6,), lambda i: x[ids[i]] + 1)


OPERATORS: list[Callable[[Graph, Tensor], Tensor]] = [gather, elements, tuples, own, lanes]


def model(build: Callable[[Graph, Tensor], Tensor], threads: int = 1, dtype: str = "int64") -> Any:
    g = Graph()
    g.output(build(g, g.input("ids", (6,), dtype)))
    return tilewright.compile(g, host(threads))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("build", OPERATORS)
def test_an_index_outside_is_an_error_that_names_it(build: Callable[[Graph, Tensor], Tensor], threads: int) -> None:
    """Foreign memory was returned, and a far index was a segmentation fault."""
    m = model(build, threads)
    arrays = {p.name: np.zeros(p.shape, p.dtype) for p in m.inputs}
    wanted = m.run(arrays)[0]
    for bad in (5, 100, *FAR):
        arrays["ids"] = np.array([0, 1, 2, bad, 4, 0])
        with pytest.raises(
            IndexOutsideError, match=r"expected an index from 0 to 4 .*; got -?\d+, which lies outside"
        ) as e:
            m.run(arrays)
        assert e.value.index in (bad, bad + 5)
        assert isinstance(e.value, ModelError)
    arrays["ids"] = np.zeros(6, np.int64)
    np.testing.assert_array_equal(m.run(arrays)[0], wanted)  # the next call is as good as ever


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_every_place_inside_is_read(dtype: str) -> None:
    """Negative indices count from the end where the operator has it so; an own operator's do not."""
    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    ids = np.array([0, 4, -1, -5, 2, 3], dtype)
    np.testing.assert_array_equal(model(gather, dtype=dtype).run({"x": x, "ids": ids})[0], x[ids])
    with pytest.raises(IndexOutsideError, match="got -1"):
        model(own).run({"x": np.zeros((5, 40), np.float32), "ids": np.array([0, -1, 0, 0, 0, 0])})


def test_a_side_that_is_not_taken_may_ask_for_anything() -> None:
    """A select that guards its load: nothing is read there, and nothing is wrong."""

    def build(g: Graph, ids: Tensor) -> Tensor:
        x = g.input("x", (5, 8))
        return g.compute((6, 8), lambda i, j: select(ids[i].ge(0), x[ids[i], j], -1.0))

    x = np.arange(40, dtype=np.float32).reshape(5, 8)
    ids = np.array([0, -7, 4, -(1 << 60), 2, 3])
    want = np.where(ids[:, None] >= 0, x[np.clip(ids, 0, 4)], -1)
    np.testing.assert_array_equal(model(build).run({"x": x, "ids": ids})[0], want)
    with pytest.raises(IndexOutsideError, match="got 5"):
        model(build).run({"x": x, "ids": np.array([0, -7, 5, 0, 0, 0])})


def bounds(g: Graph) -> int:
    """How many indices of the optimised graph are looked at."""
    return sum(
        getattr(e, "kind", "") == "bounded" for n in optimise(g).nodes if isinstance(n, Stage) for e in walk(n.body)
    )


def test_what_cannot_be_outside_is_not_looked_at() -> None:
    """Positions that operators found, remainders, clamped and constant indices."""
    g = Graph()
    x = g.input("x", (6, 50))
    g.output(ops.top_k(x, 3)[0])
    ids = g.input("ids", (6,), "int64")
    g.output(g.compute((6,), lambda i: x[i, ids[i] % 50]))
    g.output(ops.gather(x, g.constant(np.array([[3, -1], [0, 5]])), 0))
    first = ops.arg_max(x, 1, False)
    g.output(g.compute((6,), lambda i: x[i, first[i]]))
    assert bounds(g) == 0
    h = Graph()
    h.output(gather(h, h.input("ids", (6,), "int64")))
    assert bounds(h) == 1
    assert bound_indices(optimise(h)).nodes == optimise(h).nodes  # once


def test_threads_see_their_own_errors() -> None:
    """Of two calls, only the one with the wrong index fails."""
    m = model(gather)
    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    good = np.array([0, 1, 2, 3, 4, 0])
    for _ in range(50):
        with pytest.raises(IndexOutsideError):
            m.run({"x": x, "ids": np.array([0, 1, 2, 3, 4, 9])})
        np.testing.assert_array_equal(m.run({"x": x, "ids": good})[0], x[good])


def test_what_is_computed_once_is_looked_at_too() -> None:
    g = Graph()
    table = g.constant(np.arange(8.0, dtype=np.float32))
    which = g.compute((300, 9000), lambda i, j: i * 0 + j + 1 if False else (i + j) % 9)
    large = g.compute((300, 9000), lambda i, j: table[which[i, j]])
    g.output(ops.add(g.input("x", (300, 9000)), large))
    with pytest.raises(IndexOutsideError, match="expected an index from 0 to 7"):
        tilewright.compile(g, host(1))(np.zeros((300, 9000), np.float32))
