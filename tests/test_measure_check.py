"""The check before timing: which inputs are legal, what is exact, and that no wrong kernel passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright.graph.dtypes import numpy_dtype
from tilewright.graph.expr import binary, cast, select, unary
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.workload import Workload, canonical
from tilewright.measure.check import Reference, Verdict, exact_possible, jumps
from tilewright.measure.harness import GUARD, Guarded, Harness
from tilewright.measure.inputs import INTEGERS, NORMAL, POSITIVE, generate, integer_ranges
from tilewright.measure.policy import Policy
from tilewright.measure.ranges import Ranges
from tilewright.schedules.kernel import build
from tilewright.schedules.lower import module
from tilewright.schedules.steps import Schedule
from tilewright.schedules.target import Target

TARGET = Target.host(threads=1)
TOLERANCE = Policy().tolerance


def workload(g: Graph, out: Tensor, constants: tuple[str, ...] = ()) -> Workload:
    return canonical(g.nodes, out.name, g.types, constants)[0]


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> Workload:
    g = Graph()
    a, b = g.input("a", (m, k), dtype), g.input("b", (k, n), dtype)
    return workload(g, g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], reduce=(k,), reducer="sum"))


def double(n: int, dtype: str = "float32") -> Workload:
    g = Graph()
    x = g.input("x", (n,), dtype)
    return workload(g, g.compute((n,), lambda i: x[i] + x[i]))


def gather(rows: int, count: int, index: str = "int64") -> Workload:
    g = Graph()
    table, at = g.input("table", (rows, 4)), g.input("at", (count,), index)
    return workload(g, g.compute((count, 4), lambda i, j: table[cast(at[i], "int64"), j]))


def check(w: Workload, text: str | None = None, tolerance: float = TOLERANCE) -> Verdict:
    """The verdict about the default schedule, or about a kernel written by hand."""
    built = build(w, Schedule(), TARGET)
    harness = Harness(built, module([built.lowered]) if text is None else text)
    return Reference(w, 0).check(harness, tolerance)[0]


def kernel(body: str) -> str:
    """A module with a kernel of ``%x`` (input), ``%y`` (output) and a body that returns."""
    return f"""
define void @kernel.prepare(ptr %args) {{
  ret void
}}
define void @kernel(ptr %args) {{
entry:
  %x = load ptr, ptr %args, align 8
  %slot = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %slot, align 8
{body}
}}
"""


def doubling(n: int, extra: str = "", value: str = "%v", first: int = 0, step: int = 1) -> str:
    """``y[i] = 2 * x[i]`` from ``first`` to n, with a fault put in."""
    return kernel(f"""
  br label %loop
loop:
  %i = phi i64 [ {first}, %entry ], [ %next, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %in = load float, ptr %px
  %v = fadd float %in, %in
  %py = getelementptr float, ptr %y, i64 %i
  store float {value}, ptr %py
  %next = add i64 %i, {step}
  %more = icmp slt i64 %next, {n}
  br i1 %more, label %loop, label %done
done:
{extra}
  ret void""")


# ---------------------------------------------------------------- correct kernels pass


@pytest.mark.parametrize(
    "w",
    [
        matmul(7, 9, 33),
        matmul(5, 6, 17, "float64"),
        double(100),
        double(100, "int32"),
        double(50, "int8"),
        gather(5, 40),
        gather(5, 40, "int32"),
    ],
    ids=["matmul", "matmul64", "double", "int32", "int8", "gather", "gather32"],
)
def test_the_default_schedule_is_correct(w: Workload) -> None:
    verdict = check(w)
    assert verdict.error is None
    assert verdict.max_error < 1e-5


def maths(function: str) -> Workload:
    g = Graph()
    x = g.input("x", (300,))
    return workload(g, g.compute((300,), lambda i: unary(function, x[i])))


@pytest.mark.parametrize("function", ["exp", "log", "sqrt", "tanh", "erf", "rsqrt", "sigmoid"])
def test_functions_with_a_domain_agree_where_they_are_defined(function: str) -> None:
    verdict = check(maths(function))
    assert verdict.error is None
    assert verdict.max_error < 1e-4


def test_results_that_are_mostly_undefined_take_positive_inputs() -> None:
    g = Graph()
    x = g.input("x", (64, 3))
    y = g.compute((64,), lambda i, k: unary("log", x[i, k]), reduce=(3,), reducer="sum")
    trial = Reference(workload(g, y), 0).trials[-1]
    assert trial.kind == POSITIVE
    assert np.isfinite(trial.expected).all()


def test_a_correct_handwritten_kernel_passes() -> None:
    assert check(double(100), doubling(100)).error is None


# ---------------------------------------------------------------- wrong kernels never pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (doubling(99), "1 of 100 elements are wrong; element 99 .* got nan"),
        (doubling(100, first=1), "1 of 100 elements are wrong; element 0 "),
        (doubling(100, step=2), "50 of 100 elements are wrong; element 1 "),
        (doubling(100, value="%in"), "integers inputs: .* elements are wrong"),
        (kernel("  ret void"), "100 of 100 elements are wrong"),
        (doubling(101), "wrote outside its buffers: buffer t0 of 400 bytes: 4 bytes behind it .* byte 400"),
        (doubling(100, "  %o = getelementptr i8, ptr %y, i64 -1\n  store i8 7, ptr %o"),
         "wrote outside its buffers: .* 1 bytes before it .* byte -1"),
        (doubling(100, "  store float 9.0, ptr %x"), "input x0 was changed by the kernel"),
    ],
    ids=["last", "first", "half", "value", "nothing", "behind", "before", "input"],
)  # fmt: skip
def test_a_wrong_kernel_is_found(text: str, expected: str) -> None:
    verdict = check(double(100), text)
    assert verdict.error is not None
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(verdict.error)
    assert verdict.damaged == ("wrote" in expected or "changed" in expected)


def test_a_small_error_in_one_element_is_found_by_the_exact_trial() -> None:
    extra = "  %v0 = load float, ptr %y\n  %v1 = fadd float %v0, 0x3EB0000000000000\n  store float %v1, ptr %y"
    verdict = check(double(100), doubling(100, extra))
    assert verdict.error is not None
    assert verdict.error.startswith("integers inputs")


# ---------------------------------------------------------------- the comparison


def compare(change: Callable[[np.ndarray], None], w: Workload, tolerance: float = TOLERANCE) -> Verdict:
    """The verdict about the expected result after a change, for random inputs."""
    reference = Reference(w, 0)
    trial = reference.trials[-1]
    dtype = numpy_dtype(w.types[w.output].dtype)
    with np.errstate(all="ignore"):
        got = np.array(trial.expected).astype(dtype)
    change(got.reshape(-1))
    return reference.compare(got, trial, tolerance)


def test_rounding_is_tolerated_and_a_wrong_element_is_not() -> None:
    w = matmul(32, 32, 64)

    def rounding(x: np.ndarray) -> None:
        x *= np.float32(1 + 1e-6)

    def wrong(x: np.ndarray) -> None:
        x[17] += 0.01

    assert compare(rounding, w).error is None
    assert compare(rounding, w).max_error == pytest.approx(1e-6, rel=1)
    found = compare(wrong, w)
    assert found.error is not None
    assert "1 of 1024 elements are wrong; element 17 of the flat output" in found.error


def test_float64_is_held_to_more_than_float32() -> None:
    def small(x: np.ndarray) -> None:
        x *= 1 + 1e-7

    assert compare(small, matmul(8, 8, 8)).error is None
    assert compare(small, matmul(8, 8, 8, "float64")).error is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_wrong_where_a_finite_one_is_expected(value: float) -> None:
    def spoil(x: np.ndarray) -> None:
        x[3] = value

    assert compare(spoil, matmul(8, 8, 8)).error is not None


def test_nan_must_be_where_it_is_expected() -> None:
    w = maths("log")

    def finite(x: np.ndarray) -> None:
        x[np.isnan(x)] = 0.0

    assert compare(lambda x: None, w).error is None
    assert compare(finite, w).error is not None


def test_what_float32_cannot_hold_is_infinite() -> None:
    g = Graph()
    x = g.input("x", (400,))
    w = workload(g, g.compute((400,), lambda i: unary("exp", x[i] * 60.0)))
    assert compare(lambda x: None, w).error is None
    assert check(w).error is None


def test_a_jump_may_differ_in_a_few_elements_only() -> None:
    g = Graph()
    x = g.input("x", (5000,))
    w = workload(g, g.compute((5000,), lambda i: unary("floor", x[i] * 3.7)))
    assert jumps(w)

    def few(x: np.ndarray) -> None:
        x[:2] += 1

    def many(x: np.ndarray) -> None:
        x[:50] += 1

    assert compare(few, w).error is None
    assert compare(many, w).error is not None


def test_a_comparison_of_inputs_is_no_jump() -> None:
    g = Graph()
    x = g.input("x", (50,))
    w = workload(g, g.compute((50,), lambda i: select(x[i].lt(0.0), x[i] * 0.5, x[i])))
    assert not jumps(w)


# ---------------------------------------------------------------- inputs


def test_inputs_are_reproducible_and_depend_on_the_seed() -> None:
    w = matmul(4, 5, 6)
    first, again, other = generate(w, NORMAL, 1), generate(w, NORMAL, 1), generate(w, NORMAL, 2)
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert not np.array_equal(first["x0"], other["x0"])
    assert all(a.ctypes.data % 64 == 0 for a in first.values())


def test_whole_number_inputs_are_sparse_and_small() -> None:
    x = generate(matmul(64, 64, 64), INTEGERS, 0)["x0"]
    assert set(np.unique(x)) == {-2, -1, 0, 1, 2}
    assert 0.3 < np.mean(x == 0) < 0.7


@pytest.mark.parametrize("wide", [False, True])
def test_an_index_stays_in_its_tensor(wide: bool) -> None:
    assert integer_ranges(gather(5, 40), wide) == {"x1": (0, 4)}


def test_an_index_that_is_computed_stays_in_its_tensor() -> None:
    g = Graph()
    table, at = g.input("table", (100,)), g.input("at", (20,), "int64")
    w = workload(g, g.compute((20,), lambda i: table[at[i] * 3 + 5]))
    low, high = integer_ranges(w, True)["x1"]
    assert low >= 0
    assert high > 0
    assert high * 3 + 5 <= 99


def test_a_negative_index_that_wraps_is_understood() -> None:
    g = Graph()
    table, at = g.input("table", (10,)), g.input("at", (20,), "int64")
    w = workload(g, g.compute((20,), lambda i: table[select(at[i].lt(0), at[i] + 10, at[i])]))
    assert integer_ranges(w, True)["x1"] == (0, 9)


def test_an_index_through_another_stage_is_found() -> None:
    g = Graph()
    table, at = g.input("table", (10,)), g.input("at", (20,), "int32")
    index = g.compute((20,), lambda i: cast(at[i], "int64"))
    w = workload(g, g.compute((20,), lambda i: table[index[i]]))
    assert list(integer_ranges(w, True).values()) == [(0, 9)]
    assert check(w).error is None


def test_divisors_are_positive_and_shifts_within_the_width() -> None:
    g = Graph()
    a, b, c = (g.input(n, (20,), "int32") for n in "abc")
    w = workload(g, g.compute((20,), lambda i: binary("shl", binary("div", a[i], b[i]), c[i])))
    ranges = integer_ranges(w, True)
    names = [n for n, _, _ in w.inputs]
    assert ranges[names[1]][0] >= 1
    assert ranges[names[2]][0] >= 0
    assert ranges[names[2]][1] <= 31


# ---------------------------------------------------------------- exactness


def test_what_is_exact() -> None:
    assert exact_possible(matmul(4, 4, 1000))
    assert exact_possible(double(4, "int32"))
    assert not exact_possible(maths("exp"))


def test_sums_too_long_for_the_mantissa_are_not_exact() -> None:
    assert not exact_possible(matmul(1, 1, 1 << 23))  # 4 * 2^23 > 2^24
    assert exact_possible(matmul(1, 1, 1 << 23, "float64"))


def test_a_division_or_a_fraction_is_not_exact() -> None:
    g = Graph()
    x = g.input("x", (8,))
    assert not exact_possible(workload(g, g.compute((8,), lambda i: x[i] / 2.0)))
    assert not exact_possible(workload(g, g.compute((8,), lambda i: x[i] * 0.5)))


def test_ranges_follow_stages() -> None:
    w = matmul(4, 4, 10)
    assert Ranges(w, {"x0": (-2, 2), "x1": (0, 3)}).tensors[w.output] == (-60, 60)


# ---------------------------------------------------------------- buffers and cache


def test_guard_bands_report_where_they_were_hit() -> None:
    buffer = Guarded(100, turn=3)
    assert buffer.address % 64 == 0
    assert buffer.damage() is None
    buffer.data[:] = 1
    assert buffer.damage() is None
    buffer._after[GUARD - 1] = 0
    assert buffer.damage() == f"1 bytes behind it were written to, the first at byte {100 + GUARD - 1}"


def test_a_reference_is_computed_once_for_all_processes_of_a_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = matmul(6, 6, 6)
    first = Reference(w, 0, tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("tilewright.measure.check.evaluate_nodes", refuse)
    second = Reference(w, 0, tmp_path)
    for a, b in zip(first.trials, second.trials, strict=True):
        np.testing.assert_array_equal(a.expected, b.expected)
