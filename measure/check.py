"""Correctness, before anything is timed: the output of a kernel against the unscheduled meaning in float64.

Two trials: sparse whole numbers, where the workload allows it, are compared exactly; random values with a
tolerance that knows the data type and how long the sums are. A schedule whose algorithm magnifies rounding errors
(:func:`tilewright.schedules.winograd.amplification`) is allowed the square root of its bound more, because errors of
many terms add up like random ones, and nothing of it is exact. Outputs and scratch are poisoned, inputs must
not change, and nothing outside the buffers may be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from tilewright.graph.dtypes import FLOATS, numpy_dtype
from tilewright.graph.evaluate import evaluate_nodes
from tilewright.graph.expr import COMPARE, ROUNDING, Const, Expr, Load, Op
from tilewright.graph.graph import Array
from tilewright.graph.traverse import walk
from tilewright.graph.workload import Workload
from tilewright.measure.harness import Bound, Harness
from tilewright.measure.inputs import INTEGERS, RANDOM, generate, integer_ranges
from tilewright.measure.ranges import Range, Ranges

POISONS: Final = (0xFF, 0xAB)
EPSILON: Final = {"float32": 2.0**-23, "float64": 2.0**-52}
_BLOCK = 1 << 20
_JUMPS = 1e-3
"""Share of elements that may differ where the result jumps (rounding, comparisons of computed values)."""


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """Input values and the result they must give."""

    kind: str
    inputs: dict[str, Array]
    digest: dict[str, bytes]
    """Hash of each input, to see that it was not changed."""
    expected: Array
    """In float64 for floating-point results."""
    exact: bool
    scale: float
    """Root mean square of the finite expected values."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """``error`` says what is wrong (None: nothing); ``max_error`` is the largest relative error seen."""

    max_error: float
    error: str | None
    damaged: bool = False
    """Memory that is not the kernel's was written to: the process is not to be trusted any more."""


def _digest(array: Array) -> bytes:
    bytes_of: Any = array.reshape(-1).view(np.uint8)
    return hashlib.blake2b(bytes_of, digest_size=16).digest()


def exact_possible(workload: Workload) -> bool:
    """Whether whole-number inputs give results that every order of evaluation computes exactly."""
    known: dict[str, Range] = dict(integer_ranges(workload, wide=False))
    known.update((n, (-2, 2)) for n, t, _ in workload.inputs if t.dtype in FLOATS)
    return Ranges(workload, known).exact()


def jumps(workload: Workload) -> bool:
    """Whether a rounding error can change the result by more than itself: computed values are rounded or
    compared."""
    given = {n for n, _, _ in workload.inputs}
    for stage in workload.stages.values():
        for e in walk(stage.body):
            if not isinstance(e, Op) or not any(_computed(a, given) for a in e.args):
                continue
            if e.kind in ROUNDING | COMPARE | {"mod", "fmod"} or (e.kind == "cast" and e.dtype not in FLOATS):
                return True
    return False


def _computed(e: Expr, given: set[str]) -> bool:
    return e.dtype in FLOATS and not isinstance(e, Const) and not (isinstance(e, Load) and e.tensor in given)


def reference(workload: Workload, inputs: dict[str, Array]) -> Array:
    """The meaning of the workload; intermediate tensors are freed as soon as they are not needed."""
    values: dict[str, Any] = {
        n: inputs[n].astype(np.float64) if t.dtype in FLOATS else inputs[n] for n, t, _ in workload.inputs
    }
    last = {s: k for k, node in enumerate(workload.nodes) for s in node.sources}
    for k, node in enumerate(workload.nodes):
        evaluate_nodes([node], values)
        for s in node.sources:
            if last[s] == k and s != workload.output:
                values.pop(s, None)
    result: Array = values[workload.output]
    return result


@final
class Reference:
    """The trials of a workload, computed once. ``folder`` keeps results for the runner's next process."""

    def __init__(self, workload: Workload, seed: int, folder: Path | None = None) -> None:
        self.workload = workload
        self._seed = seed
        self._folder = folder
        self.jumps = jumps(workload)
        floats = {t.dtype for t in workload.types.values()} & FLOATS
        self._float = "float32" if "float32" in floats else "float64"
        self._length = 1 + sum(math.prod(e for _, e in s.reduce) for s in workload.stages.values() if s.reduce)
        trials = [self._trial(INTEGERS, True)] if exact_possible(workload) else []
        self.trials: tuple[Trial, ...] = (*trials, self._random())

    def _random(self) -> Trial:
        """Random values of the first distribution that gives mostly finite results."""
        for kind in RANDOM:
            trial = self._trial(kind, False)
            if _finite_share(trial.expected, self._float) >= 0.5:
                return trial
        return self._trial(RANDOM[0], False)

    def _trial(self, kind: str, exact: bool) -> Trial:
        inputs = generate(self.workload, kind, self._seed)
        expected: Any = self._load(kind)
        if expected is None:
            expected = reference(self.workload, inputs)
            self._save(kind, expected)
        scale = 0.0
        if expected.dtype.kind == "f":
            with np.errstate(all="ignore"):
                finite = expected[np.isfinite(expected) & (np.abs(expected) < 1e30)]
                scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
        return Trial(kind, inputs, {n: _digest(a) for n, a in inputs.items()}, expected, exact, scale)

    def _file(self, kind: str) -> Path | None:
        return self._folder / f"{self.workload.hash}-{self._seed}-{kind}.npy" if self._folder else None

    def _load(self, kind: str) -> Array | None:
        file = self._file(kind)
        if file is None or not file.exists():
            return None
        found: Array = np.load(file, allow_pickle=False)
        return found

    def _save(self, kind: str, expected: Any) -> None:
        file = self._file(kind)
        if file is not None:
            part = file.with_suffix(f".{os.getpid()}.part")
            with contextlib.suppress(OSError):  # it spares other workers the work: without room for it, they do it
                with part.open("wb") as stream:
                    np.save(stream, expected, allow_pickle=False)
                part.replace(file)

    # ------------------------------------------------------------ one candidate

    def check(self, harness: Harness, tolerance: float, amplification: float = 1.0) -> tuple[Verdict, Bound]:
        """Run a kernel on every trial. The buffers of the last (random) one are returned, for timing."""
        worst = 0.0
        for trial, poison in zip(self.trials, POISONS[-len(self.trials) :], strict=True):
            bound = harness.bind(trial.inputs)
            bound.poison(poison)
            harness.prepare(bound)
            harness.run(bound)
            verdict = self.judge(trial, bound, tolerance, amplification)
            worst = max(worst, verdict.max_error)
            if verdict.error is not None:
                break
        return Verdict(worst, verdict.error, verdict.damaged), bound

    def judge(self, trial: Trial, bound: Bound, tolerance: float, amplification: float = 1.0) -> Verdict:
        """What is to be said of buffers after a call."""
        damage = bound.damage()
        if damage is not None:
            return Verdict(math.inf, f"wrote outside its buffers: {damage}", True)
        for name, digest in trial.digest.items():
            if _digest(bound.inputs[name]) != digest:
                trial.inputs.update(generate(self.workload, trial.kind, self._seed))
                return Verdict(math.inf, f"input {name} was changed by the kernel", True)
        verdict = self.compare(bound.output, trial, tolerance, amplification)
        if verdict.error is not None:
            return Verdict(verdict.max_error, f"{trial.kind} inputs: {verdict.error}")
        return verdict

    def compare(self, got: Any, trial: Trial, tolerance: float, amplification: float = 1.0) -> Verdict:
        """Compare an output with the expected one, block by block."""
        dtype = self.workload.types[self.workload.output].dtype
        expected: Any = trial.expected
        flat, want = got.reshape(-1), expected.reshape(-1)
        if dtype not in FLOATS:
            stored = flat.view(np.uint8) if dtype == "bool" else flat
            want = want.astype(np.bool_).view(np.uint8) if dtype == "bool" else want.astype(numpy_dtype(dtype))
            limit = 0 if (trial.exact and amplification == 1.0) or not self.jumps else max(2, int(_JUMPS * flat.size))
            return _count(stored != want, stored, want, limit, "equal values")
        ratio = EPSILON[self._float] / EPSILON["float32"]
        exact = trial.exact and amplification == 1.0
        relative = 0.0 if exact else tolerance * ratio
        rounding = 0.0 if exact else 32 * EPSILON[self._float] * math.sqrt(self._length * amplification)
        return self._floats(flat, want, trial, relative, rounding, numpy_dtype(dtype))

    def _floats(self, got: Any, want: Any, trial: Trial, relative: float, rounding: float, dtype: Any) -> Verdict:
        absolute = rounding * trial.scale
        squares, reference_squares, worst, wrong = 0.0, 0.0, 0.0, 0
        first = -1
        with np.errstate(all="ignore"):
            for start in range(0, got.size, _BLOCK):
                g = got[start : start + _BLOCK].astype(np.float64)
                w = want[start : start + _BLOCK]
                difference = np.abs(g - w)
                bad = ~(difference <= relative * np.abs(w) + absolute)
                if bad.any() or not np.isfinite(w).all():
                    # NaN equals NaN, infinity equals infinity, and what float32 cannot hold is infinite there
                    kept = w.astype(dtype)
                    same = (np.isnan(kept) & np.isnan(g)) | (np.isinf(kept) & (kept == g))
                    difference = np.where(same, 0, difference)
                    bad &= ~same
                    w = np.where(np.isfinite(kept), w, 0)
                if bad.any():
                    first = start + int(np.argmax(bad)) if first < 0 else first
                    wrong += int(np.count_nonzero(bad))
                scaled = difference / np.maximum(np.abs(w), trial.scale if trial.scale > 0 else 1)
                worst = max(worst, float(np.max(np.where(np.isnan(scaled), np.inf, scaled))))
                squares += float(np.dot(difference, difference))
                reference_squares += float(np.dot(w, w))
        norm = math.sqrt(squares / reference_squares) if reference_squares > 0 else math.sqrt(squares)
        worst = max(worst, norm if not math.isnan(norm) else math.inf)
        limit = 0 if not rounding or not self.jumps else max(2, int(_JUMPS * got.size))
        if wrong > limit:
            text = _at(first, got, want, f"within {relative:.2g} of the value plus {absolute:.2g}")
            return Verdict(worst, f"{wrong} of {got.size} elements are wrong; {text}")
        whole = relative + rounding
        if whole and not wrong and norm > whole:
            return Verdict(worst, f"relative error of the whole: expected at most {whole:.2g}; got {norm:.3g}")
        return Verdict(0.0 if wrong and not math.isfinite(worst) else worst, None)


def _finite_share(expected: Any, dtype: str) -> float:
    if expected.dtype.kind != "f":
        return 1.0
    with np.errstate(all="ignore"):
        return float(np.mean(np.isfinite(expected.astype(dtype))))


def _at(first: int, got: Any, want: Any, how: str) -> str:
    expected, found = want[first].item(), got[first].item()
    return f"element {first} of the flat output: expected {expected!r} ({how}); got {found!r}"


def _count(bad: Any, got: Any, want: Any, limit: int, how: str) -> Verdict:
    wrong = int(np.count_nonzero(bad))
    if wrong <= limit:
        return Verdict(0.0, None)
    return Verdict(math.inf, f"{wrong} of {got.size} elements are wrong; {_at(int(np.argmax(bad)), got, want, how)}")
