"""Running maxima and minima with flags: NaN of any element is kept, infinities and zeros are no NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers import Case, case, each_target, run
from tilewright.graph import ops
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.ops.pool import Window
from tilewright.schedules.kernel import build
from tilewright.schedules.steps import parse
from tilewright.schedules.target import Target

ROWS, COLUMNS = 6, 41
REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda a: ops.reduce_max(a, [1]),
    "min": lambda a: ops.reduce_min(a, [1]),
}
FORMS = {
    "spread": "split t0_acc r0 32 8\nunroll t0_acc r0.1\nspread t0_acc r0.1\nvectorize t0_acc r0.2",
    "lanes": "split t0_acc r0 8\nvectorize t0_acc r0.1",
    "rows": "split t0 i0 4\nvectorize t0 i0.1\nsplit t0_acc r0 2\nunroll t0_acc r0.1\norder t0_acc r0.0 r0.1 i0.1",
    "blocks": "split t0 i0 4\nvectorize t0 i0.1\nsplit t0_acc r0 8\norder t0_acc r0.0 r0.1 i0.1",
    "scalars": "",
}


def rows(name: str, dtype: str) -> tuple[Case, np.ndarray]:
    """A reduction of rows, and its input."""
    a = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(dtype)
    return case(lambda g: REDUCE[name](g.input("a", a.shape, dtype)), {"a": a}, exact=True), a


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(REDUCE))
def test_nan_anywhere_is_kept(name: str, dtype: str, form: str) -> None:
    c, a = rows(name, dtype)
    original = a.copy()
    pick = np.max if name == "max" else np.min
    (key,) = c.arrays
    for column in range(COLUMNS):
        changed = original.copy()
        changed[1, column] = np.nan
        changed[2, column] = -np.nan  # of the other sign
        changed[3, column] = np.inf
        changed[4, column] = -np.inf
        changed[5] = -np.inf if column % 2 else np.inf
        got, _ = run(Case(c.workload, {key: changed}, c.expected, True), FORMS[form])
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, pick(changed, axis=1, keepdims=True))


@pytest.mark.parametrize("stride", [1, 2])
def test_windows(stride: int) -> None:
    """Several rows of outputs, whose windows overlap; windows two apart share their vectors."""
    a = np.random.default_rng(1).standard_normal((1, 3, 12, 40)).astype(np.float32)

    def make(g: Graph) -> Tensor:
        return ops.max_pool(g.input("a", a.shape), Window((3, 3), (stride, stride)))

    c = case(make, {"a": a}, exact=True)
    (key,) = c.arrays
    split = "split t0 i2 2\nsplit t0 i3 8\norder t0 i1.0 i2.0 i3.0 i2.1 i3.1\nunroll t0 i2.1\nvectorize t0 i3.1"
    for row, column in ((0, 0), (5, 17), (11, 39), (4, 8)):
        changed = a.copy()
        changed[0, 1, row, column] = np.nan
        windows = np.lib.stride_tricks.sliding_window_view(changed, (3, 3), (2, 3))[:, :, ::stride, ::stride]
        got, _ = run(Case(c.workload, {key: changed}, c.expected, True), split)
        np.testing.assert_array_equal(got, windows.max(axis=(4, 5)))


@each_target
def test_only_few_accumulators_have_flags(target: Target) -> None:
    """Others would have no registers left."""
    c, _ = rows("max", "float32")
    for form, expected in (("split t0_acc r0 32 8", True), ("split t0_acc r0 64 8", False)):
        steps = form + "\nunroll t0_acc r0.1\nspread t0_acc r0.1\nvectorize t0_acc r0.2"
        wide = case(lambda g: ops.reduce_max(g.input("a", (4, 256)), [1]), {"a": np.zeros((4, 256), np.float32)})
        text = "".join(build(wide.workload, parse(steps), target).lowered.functions)
        assert ("llvm.umax.v8i32" in text) == expected
    assert c.workload.output
