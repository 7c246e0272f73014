"""Input values for a check: reproducible, and legal for what the workload does with them.

Floating-point inputs are sparse whole numbers in -2..2 (where every result can be compared exactly) or
normally distributed. Integer inputs stay where they may: an index inside the tensor it indexes, a divisor
above zero, a shift within the width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tilewright.graph.dtypes import INTS, SIZES, int_range, numpy_dtype
from tilewright.graph.expr import Expr, Load, Op
from tilewright.graph.graph import Array
from tilewright.graph.traverse import walk
from tilewright.graph.workload import Workload
from tilewright.measure.ranges import Ranges, dependencies
from tilewright.schedules.kernel import aligned_copy

INTEGERS: Final = "integers"
NORMAL: Final = "normal"
POSITIVE: Final = "positive"
SMALL: Final = "small"
RANDOM: Final = (NORMAL, POSITIVE, SMALL)
"""Random distributions in the order tried: the next one where most results of the last are not finite."""
_SPARSE = np.array([0, 0, 0, 0, -2, -1, 1, 2], dtype=np.int8)
_NARROWINGS = 64


def integer_ranges(workload: Workload, wide: bool) -> dict[str, tuple[int, int]]:
    """The values that each integer input may take, both ends included; ``wide``: more of the type where it is
    free."""
    depends = dependencies(workload)
    out: dict[str, tuple[int, int]] = {}
    for name, t, _ in workload.inputs:
        if t.dtype in INTS:
            low, high = int_range(t.dtype)
            bound = (1 << (8 * SIZES[t.dtype])) if wide and SIZES[t.dtype] == 1 else 100 if wide else 8
            out[name] = max(low, -bound), min(high, bound)
    for stage in workload.stages.values():
        for e in walk(stage.body):
            if isinstance(e, Op) and e.dtype in INTS and len(e.args) == 2:
                _restrict(e, depends, out)
    for _ in range(_NARROWINGS * max(1, len(out))):
        if not _narrow(workload, depends, out):
            break
    return out


def _inputs_of(e: Expr, depends: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*(depends.get(n.tensor, frozenset()) for n in walk(e) if isinstance(n, Load)))


def _restrict(e: Op, depends: Mapping[str, frozenset[str]], out: dict[str, tuple[int, int]]) -> None:
    """Divisors above zero, shift amounts within the width, small exponents."""
    for name in _inputs_of(e.args[1], depends):
        low, high = out[name]
        if e.kind in ("div", "floordiv", "mod", "fmod"):
            out[name] = max(1, low), max(1, high)
        elif e.kind in ("shl", "shr"):
            out[name] = 0, min(high, 8 * SIZES[e.dtype] - 1)
        elif e.kind == "pow":
            out[name] = 0, min(high, 3)


def _narrow(workload: Workload, depends: Mapping[str, frozenset[str]], out: dict[str, tuple[int, int]]) -> bool:
    """Narrow the inputs of the first index that may leave its tensor; False if there is none to narrow."""
    ranges = Ranges(workload, dict(out))
    for stage, load in ranges.loads():
        for position, size in zip(load.index, workload.types[load.tensor].shape, strict=True):
            names = _inputs_of(position, depends)
            low, high = ranges.of(stage, position)
            if not names or (low >= 0 and high <= size - 1):
                continue
            changed = False
            for name in names:
                old = out[name]
                # at first the whole tensor, then half of what was tried before
                outside = old[0] < 0 or old[1] > size - 1
                top = min(size - 1, int_range(workload.types[name].dtype)[1])
                out[name] = new = (0, top) if outside else (old[0] // 2, old[1] // 2)
                changed = changed or new != old
            if changed:
                return True
    return False


def generate(workload: Workload, kind: str, seed: int) -> dict[str, Array]:
    """Contiguous arrays for all inputs; equal arguments give equal values in every process."""
    ranges = integer_ranges(workload, kind != INTEGERS)
    out: dict[str, Array] = {}
    for k, (name, t, constant) in enumerate(workload.inputs):
        rng = np.random.default_rng([seed, k, len(kind)])
        value: Any
        if t.dtype == "bool":
            value = rng.integers(0, 2, t.shape, dtype=np.int8).astype(np.bool_)
        elif t.dtype in INTS:
            low, high = ranges[name]
            value = rng.integers(low, high, t.shape, dtype=numpy_dtype(t.dtype), endpoint=True)
        elif kind == INTEGERS:
            value = _SPARSE[rng.integers(0, len(_SPARSE), t.shape, dtype=np.int8)].astype(t.dtype)
        else:
            value = _random(rng, t.shape, t.dtype, kind)
            if constant and len(t.shape) > 1:
                # as trained weights are, so that layers keep the scale of their input
                value *= (t.size / max(t.shape)) ** -0.5
        out[name] = aligned_copy(value)
    return out


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, kind: str) -> Any:
    value: Any = np.asarray(rng.standard_normal(shape, dtype=np.float32 if dtype == "float32" else np.float64))
    if kind == POSITIVE:
        value = np.abs(value) + np.asarray(0.125, dtype)
    elif kind == SMALL:
        value = value * np.asarray(1 / 16, dtype)
    return value
