"""A schedule is data: it prints and parses, and what does not parse or apply is refused with what was
expected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import case, host, values
from tilewright.graph.expr import maximum
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.workload import Workload
from tilewright.schedules.apply import MAX_INSTRUCTIONS, apply
from tilewright.schedules.kernel import build
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
    parse,
    schedule,
)

NAMES = st.sampled_from(["t0", "t1", "t12_acc", "i0", "i0i1", "r2", "x"])
LOOPS = st.builds(lambda a, k: f"{a}.{k}", NAMES, st.integers(0, 9))
MANY = st.lists(LOOPS, max_size=5).map(tuple)
COUNTS = st.integers(0, 10**6)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Inline, NAMES),
    st.builds(At, NAMES, NAMES, st.one_of(LOOPS, st.just("tile"), st.just("root"))),
    st.builds(Split, NAMES, NAMES, st.lists(COUNTS, max_size=4).map(tuple)),
    st.builds(Order, NAMES, MANY),
    st.builds(Parallel, NAMES, COUNTS),
    st.builds(Vectorize, NAMES, LOOPS),
    st.builds(Unroll, NAMES, LOOPS),
    st.builds(Spread, NAMES, LOOPS),
    st.builds(Pack, NAMES, COUNTS, st.one_of(LOOPS, st.just("root")), MANY),
    st.builds(Stream, NAMES),
    st.builds(Prefetch, NAMES, LOOPS, COUNTS),
    st.builds(InPlace, NAMES),
    st.builds(Block, NAMES),
    st.builds(Divide, NAMES, NAMES, COUNTS),
    st.builds(RFactor, NAMES, NAMES, COUNTS),
)


@given(st.lists(STEPS, max_size=8))
def test_a_schedule_parses_back_from_its_text(steps: list[Step]) -> None:
    s = schedule(steps)
    assert parse(str(s)) == s


@given(st.lists(STEPS, max_size=4))
def test_blank_lines_and_comments_are_skipped(steps: list[Step]) -> None:
    text = "\n\n# a comment\n".join(f"  {s}   # why" for s in steps)
    assert parse(text).steps == tuple(steps)


@given(STEPS, STEPS)
def test_equal_steps_are_one_key_and_steps_of_a_kind_are_ordered(a: Step, b: Step) -> None:
    assert len({a, parse(str(a)).steps[0]}) == 1
    if type(a) is type(b):
        assert (a < b) + (b < a) + (a == b) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tile t0 i0 8", "schedule line 1: expected one of winograd, rfactor, inline, at, .*; got 'tile'"),
        ("split t0 i0 8\nsplit t0 i0 x", "schedule line 2: expected a whole number; got 'x'"),
        ("split t0 i0 -4", "expected a whole number; got '-4'"),
        ("vectorize t0", "'vectorize' expects a value for 'loop'"),
        ("inline", "'inline' expects a value for 'stage'"),
        ("inline t0 t1", "'inline' does not expect 't1'"),
        ("parallel t0 two", "expected a whole number; got 'two'"),
    ],
)
def test_text_that_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse(text)


def matmul(g: Graph, m: int = 20, n: int = 30, k: int = 17) -> Tensor:
    """``relu(a @ b)``."""
    a, b = g.input("a", (m, k)), g.input("b", (k, n))
    c = g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], reduce=(k,), reducer="sum")
    return g.compute((m, n), lambda i, j: maximum(c[i, j], 0.0))


def workload() -> Workload:
    """Of :func:`matmul`: stage t0 sums products, t1 is the activation."""
    rng = np.random.default_rng(0)
    return case(matmul, {"a": values(rng, (20, 17)), "b": values(rng, (17, 30))}).workload


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inline t9", "inline t9: expected a stage of"),
        ("inline t1", "it is the output of the workload"),
        ("inline t0", "expected a stage without a reduction"),
        ("unroll t9 i0.0", "unroll t9 i0.0: expected a stage of .*; got 't9'"),
        ("at t0 t7 tile", "at t0 t7 tile: expected stages of"),
        ("at t0 t1 i5.0", "at t0: expected a loop of .*, root or tile; got 'i5.0'"),
        ("at t0 t1 i0i1.0\nat t1 t0 tile", "computed inside itself"),
        ("split t1 q 4", "split t1 q 4: expected an axis of"),
        ("split t1 i0i1 0", "expected sizes of at least 1"),
        ("split t1 i0i1", "expected sizes of at least 1"),
        ("split t1 i0i1 12 8", "expected each size to be a multiple of the next; got 12, 8"),
        ("order t1 i0i1.1", "order t1 i0i1.1: expected the loops .*, each once"),
        ("split t1 i0i1 8\norder t1 i0i1.1 i0i1.0", "expected the loops of axis i0i1 from outer to inner"),
        ("vectorize t1 i1.0", "expected a loop of .*; got 'i1.0'"),
        ("split t1 i0i1 8 4\nvectorize t1 i0i1.1\nvectorize t1 i0i1.2", "expected at most one vector loop"),
        ("parallel t1 4", "parallel t1 4: the stage has only 1 loops"),
        ("parallel t1 1\nunroll t1 i0i1.0", "loop i0i1.0 is also unroll"),
        ("split t1 i0i1 10 5\nparallel t1 2", ""),  # divides: nothing to refuse
        ("split t1 i0i1 14 7\nparallel t1 2", "expected tile sizes of axis i0i1 that divide it"),
        ("split t1 i0i1 14\nunroll t1 i0i1.0", "expected a tile size that divides i0i1"),
        ("vectorize t1 i0i1.0", "expected at most 256 lanes; got 600"),
        ("stream t0_acc", "stream t0_acc: expected t0, which writes to memory"),
        ("spread t0_acc i1.0", "expected a loop of"),
        ("spread t0_acc r0.0", "expected an unrolled reduction loop"),
        ("parallel t0_acc 1", "loop r0.0 is a reduction; split it into a stage of partial results"),
        ("at t0 t1 root\nparallel t0 1", "it is computed inside t1; make the loops of that parallel"),
        ("split t0_acc r0 4\nunroll t0_acc r0.1\norder t0_acc r0.1 r0.0", "from outer to inner"),
        ("at t0 t1 i0.0\nsplit t0 i0 4", "expected the sizes .* of the loops outside"),
        ("at t0 t1 i1.0\nparallel t1 2\nat t0 t1 i0.0", "expected a place inside all 2 parallel loops"),
        ("at t0 t1 i1.1\nsplit t1 i1 8\nvectorize t1 i1.1", "expected a place outside the vector loop"),
        ("pack t0_acc 2 root i1.0 r0.0", "expected a sum of products with a factor 2"),
        ("pack t1 0 root i0i1.0", "expected a stage that sums products"),
        ("pack t0_acc 1 root i1.0", "expected the loops .* each once"),
        ("pack t0_acc 1 i0.0 r0.0 i1.0", ""),  # at a loop of the leader
        ("pack t0_acc 1 i0.0 r0.0", "expected the loops .* each once"),
        ("parallel t0 2\npack t0_acc 1 i0.0 r0.0 i1.0", "expected a place inside all parallel loops"),
        ("pack t0_acc 1 i7.0 r0.0 i1.0", "expected root or a loop of"),
        (
            "split t0_acc r0 4\npack t0_acc 1 root i1.0 r0.1 r0.0",
            "expected the loops of axis r0 from outer to inner",
        ),
    ],
)
def test_steps_that_do_not_apply_are_refused(text: str, message: str) -> None:
    if not message:
        apply(workload(), parse(text))
        return
    with pytest.raises(ScheduleError, match=message):
        apply(workload(), parse(text))


def test_a_reduced_axis_is_not_split_between_places() -> None:
    def centred(g: Graph) -> Tensor:
        x = g.input("x", (5, 16))
        s = g.compute((5, 1), lambda i, j, r: x[i, r], reduce=(16,), reducer="sum")
        d = g.compute((5, 16), lambda i, j: x[i, j] - s[i, 0])
        v = g.compute((5, 1), lambda i, j, r: d[i, r] * d[i, r], reduce=(16,), reducer="sum")
        return g.compute((5, 16), lambda i, j: d[i, j] * v[i, 0])

    w = case(centred, {"x": values(np.random.default_rng(0), (5, 16))}).workload
    steps = "at t0 t3 i0.0\nat t1 t3 i0.0\nat t2 t3 {}\nsplit t3 i1 4\n"
    apply(w, parse(steps.format("i0.0")))
    with pytest.raises(ScheduleError, match=r"at t2: expected a place outside the loops of \['i1'\], which it reduces"):
        apply(w, parse(steps.format("i1.0")))
    with pytest.raises(ScheduleError, match="it must be computed no further out than t0"):
        apply(w, parse("at t0 t3 i1.0\nat t1 t3 i0.0\nat t2 t3 i0.0\nsplit t3 i1 4"))


def test_a_program_too_large_to_compile_is_refused_at_once() -> None:
    text = "at t0 t1 tile\nsplit t1 i0 20\nsplit t1 i1 10\nunroll t1 i0.1\nunroll t1 i1.1\nunroll t0 r0.0"
    message = rf"expected a program of at most {MAX_INSTRUCTIONS} vector instructions; got about \d+"
    with pytest.raises(ScheduleError, match=message):
        build(workload(), parse(text), host())


def test_an_empty_schedule_is_legal() -> None:
    assert str(Schedule()) == ""
    assert apply(workload(), Schedule()).output.name == "t1"
