"""Einsum: one to many operands, every form of the notation, and the order of contraction (fault 18)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph import Graph, GraphError, evaluate, ops
from tilewright.graph.stage import Stage

ONE = tilewright.Target.host(threads=1)


def graph_of(equation: str, shapes: list[tuple[int, ...]], dtype: str = "float32") -> Graph:
    """A graph whose inputs ``x0``, ``x1``, … have the shapes."""
    g = Graph()
    g.output(ops.einsum(equation, *(g.input(f"x{k}", s, dtype) for k, s in enumerate(shapes))), "y")
    return g


def arrays_of(shapes: list[tuple[int, ...]]) -> dict[str, Any]:
    """Normal numbers for each input."""
    rng = np.random.default_rng(0)
    return {f"x{k}": np.asarray(rng.standard_normal(s), np.float32) for k, s in enumerate(shapes)}


def work(g: Graph) -> int:
    """Evaluations of bodies, of all stages."""
    return sum(s.points for s in g.nodes if isinstance(s, Stage))


CASES: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij->ji", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("...i->...", [(2, 3, 4)]),
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("i,i", [(5,), (5,)]),
    ("i,->i", [(5,), ()]),
    ("i j , k j -> k i", [(3, 4), (5, 4)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
    ("ij,jk,kl", [(3, 4), (4, 5), (5, 6)]),
    ("ij,jk,kl->l", [(3, 4), (4, 5), (5, 6)]),
    ("ij,jk,kl->", [(3, 4), (4, 5), (5, 6)]),
    ("i,j,k->kji", [(3,), (4,), (5,)]),
    ("ij,ij,ij->ij", [(3, 4), (3, 4), (3, 4)]),
    ("bij,bjk,bkl->bil", [(2, 3, 4), (2, 4, 5), (2, 5, 6)]),
    ("...ij,...jk,...kl->...il", [(2, 1, 3, 4), (7, 4, 5), (2, 7, 5, 6)]),
    ("...ij,jk,...kl", [(2, 3, 4), (4, 5), (5, 6)]),
    ("i...,...,j->j...i", [(3, 2, 4), (4,), (5,)]),
    ("iij,jk,k->i", [(3, 3, 4), (4, 5), (5,)]),
    ("ii,ij,jk,kl,lm,m->i", [(3, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7,)]),
    ("a,a,a,a,a,a,a->", [(5,)] * 7),
    (",i,->i", [(), (4,), ()]),
    (",,->", [(), (), ()]),
    ("i,i,j->", [(3,), (3,), (4,)]),
    ("Ab,bA,A->b", [(3, 4), (4, 3), (3,)]),
    ("ij,jk,kl->il", [(3, 1), (4, 5), (5, 6)]),
    ("ij,jk,k->i", [(3, 1), (1, 5), (5,)]),
    ("abcd,ae,bf,cg,dh->efgh", [(2, 3, 4, 5), (2, 3), (3, 4), (4, 5), (5, 6)]),
]


@pytest.mark.parametrize(("equation", "shapes"), CASES, ids=[f"{e} {len(s)}" for e, s in CASES])
def test_as_numpy_does(equation: str, shapes: list[tuple[int, ...]]) -> None:
    """The meaning, and the compiled kernels."""
    arrays = arrays_of(shapes)
    want = np.einsum(equation, *(a.astype(np.float64) for a in arrays.values()))
    graph = graph_of(equation, shapes)
    meaning: Any = evaluate(graph, arrays)[0]
    np.testing.assert_allclose(meaning, want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(tilewright.compile(graph, ONE).run(arrays)[0], want, rtol=2e-5, atol=2e-5)


def test_three_matrices_are_two_products() -> None:
    """n^3 work, not n^4, in the cheaper of the two orders."""
    n = 32
    assert work(graph_of("ij,jk,kl->il", [(n, n)] * 3)) == 2 * n**3
    left, right = work(graph_of("ij,jk,kl->il", [(2, n), (n, n), (n, n)])), 2 * (2 * n * n)
    assert left == right
    assert work(graph_of("ij,jk,kl->il", [(n, n), (n, n), (n, 2)])) == right


def test_sums_of_one_operand_come_first() -> None:
    """A letter that no other operand and not the result has costs its operand once."""
    n = 32
    assert work(graph_of("ij,jk,kl->l", [(n, n)] * 3)) == 3 * n * n


def test_many_operands_are_ordered_soon() -> None:
    """A chain of twelve matrices is eleven products; all at once would be n^13."""
    letters = "abcdefghijklm"
    equation = ",".join(a + b for a, b in pairwise(letters)) + "->am"
    assert work(graph_of(equation, [(8, 8)] * 12)) == 11 * 8**3


def test_two_operands_stay_one_stage() -> None:
    """Its axes are the result's, then what is summed, in order of appearance."""
    (stage,) = graph_of("bij,bjk->kbi", [(2, 3, 4), (2, 4, 5)]).nodes
    assert isinstance(stage, Stage)
    assert [e for _, e in stage.axes] == [5, 2, 3]
    assert [e for _, e in stage.reduce] == [4]


def test_integers() -> None:
    """Exactly."""
    graph = graph_of("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], "int64")
    arrays = {n: np.arange(np.prod(graph.types[n].shape)).reshape(graph.types[n].shape) for n in graph.inputs}
    np.testing.assert_array_equal(evaluate(graph, arrays)[0], np.einsum("ij,jk,kl->il", *arrays.values()))


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ii", [(3, 3), (3, 3)], "expected each output letter once; got 'ii'"),
        ("i1,j->ij", [(3, 3), (3,)], "expected letters and at most one '...' in each term; got 'i1'"),
        ("i..,j->ij", [(3, 3), (3,)], "expected letters and at most one"),
        ("i,j->j->i", [(3,), (3,)], "expected letters and at most one"),
        ("...i...", [(3, 3, 3)], "expected letters and at most one"),
        ("ij,jk,kl->il", [(3, 4), (4, 5)], "expected 3 operands; got 2"),
        ("ij,jk,kl->il", [(3, 4), (5, 5), (5, 6)], "expected one size for 'j'; got 4 and 5"),
        ("ij,jk,kl->iz", [(3, 4), (4, 5), (5, 6)], r"expected output letters that appear in an operand; got \['z'\]"),
        ("ijk,j,k", [(3, 4), (4,), (5,)], r"expected an operand of rank 3 for 'ijk'; got \(3, 4\)"),
    ],
)
def test_wrong_equations_are_refused(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    """By the term or letter."""
    with pytest.raises(GraphError, match=message):
        graph_of(equation, shapes)
