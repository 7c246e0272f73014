"""Measured candidates as arrays: features, prior, time and the workload each row belongs to.

A time is meaningful only within its workload, so every row carries its workload's content hash: samples
cannot be mixed up silently, and evaluation can hold out whole workloads. A failed candidate is a row whose
time is infinite: it is evidence, and ordering by time already places it last.
"""

import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

FAILED = float("inf")
"""The time of a candidate that did not compile, crashed, hung or computed a wrong result."""
MIN_OK = 8
"""Fewer successful rows than this only scale the prior."""
MIN_GATE = 4
"""Telling failures apart needs at least this many successes and this many failures."""


class DatasetError(ValueError):
    """Rows that cannot be a training set."""


_ARRAYS = {"x": np.float32, "prior_ns": np.float64, "time_ns": np.float64, "group": np.str_}


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """N measured candidates; the arrays are private read-only copies.

    Arguments: `x` (N, F) float32 features, `prior_ns` (N,) analytic estimates, `time_ns` (N,) measured
    medians with `FAILED` for failures, `group` (N,) workload hashes, `schema_digest` of the schema that
    made the columns.
    """

    x: NDArray[np.float32]
    prior_ns: NDArray[np.float64]
    time_ns: NDArray[np.float64]
    group: NDArray[np.str_]
    schema_digest: str

    def __post_init__(self) -> None:
        for name, dtype in _ARRAYS.items():
            array: NDArray[Any] = np.array(getattr(self, name), dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.x.ndim != 2:
            raise DatasetError(f"x: expected an (N, F) matrix, got shape {self.x.shape}")
        for name in ("prior_ns", "time_ns", "group"):
            shape = getattr(self, name).shape
            if shape != self.x.shape[:1]:
                raise DatasetError(f"{name}: expected {len(self.x)} values, one a row, got shape {shape}")
        _check(np.logical_and.reduce(np.isfinite(self.x), axis=1), "x", "finite features", self.x)
        finite_prior = np.isfinite(self.prior_ns) & (self.prior_ns > 0)
        _check(finite_prior, "prior_ns", "finite times > 0", self.prior_ns)
        _check(self.time_ns > 0, "time_ns", "times > 0, inf for a failure", self.time_ns)
        _check(np.char.str_len(self.group) > 0, "group", "a workload hash", self.group)

    @classmethod
    def empty(cls, schema_digest: str, width: int) -> "Dataset":
        """No rows yet, of `width` features."""
        none = np.empty(0)
        return cls(np.empty((0, width), np.float32), none, none, np.empty(0, np.str_), schema_digest)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which rows ran and were right."""
        return np.isfinite(self.time_ns)

    def workloads(self) -> tuple[str, ...]:
        """The workloads of the rows, each once, sorted."""
        return tuple(str(name) for name in np.unique(self.group))

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "Dataset":
        """The rows chosen by a mask or by indices."""
        return Dataset(self.x[rows], self.prior_ns[rows], self.time_ns[rows], self.group[rows], self.schema_digest)

    def append(self, x: ArrayLike, prior_ns: ArrayLike, time_ns: ArrayLike, group: str) -> "Dataset":
        """A new data set with a batch of candidates of one workload added."""
        rows = np.asarray(x, np.float32)
        more = Dataset(
            rows, np.asarray(prior_ns, np.float64), np.asarray(time_ns, np.float64),
            np.full(len(rows), group), self.schema_digest,
        )  # fmt: skip
        return Dataset.concat((self, more))

    @staticmethod
    def concat(parts: Iterable["Dataset"]) -> "Dataset":
        """All rows of `parts` in order; parts made with different feature schemas are refused."""
        sets = tuple(parts)
        if not sets:
            raise DatasetError("concat: expected at least one data set, got none")
        first = sets[0]
        for number, part in enumerate(sets):
            if part.schema_digest != first.schema_digest:
                raise DatasetError(
                    f"concat: data set {number} has feature schema {part.schema_digest}, expected "
                    f"{first.schema_digest} as in data set 0; compute its features again"
                )
            if part.x.shape[1] != first.x.shape[1]:
                raise DatasetError(
                    f"concat: data set {number} has {part.x.shape[1]} features, expected {first.x.shape[1]}"
                )
        return Dataset(
            np.concatenate([part.x for part in sets]),
            np.concatenate([part.prior_ns for part in sets]),
            np.concatenate([part.time_ns for part in sets]),
            np.concatenate([part.group for part in sets]),
            first.schema_digest,
        )

    def without_duplicates(self) -> "Dataset":
        """One row for each distinct (workload, features), in order of first appearance.

        Its time is the lower median of the repeats. As a failure is infinite, that also settles a flaky
        candidate: it counts as failed when more than half of its measurements failed.
        """
        if not len(self):
            return self
        codes = np.unique(self.group, return_inverse=True)[1].astype(np.int64)
        # Adding 0.0 turns -0.0 into 0.0, which is equal but has other bytes.
        features = (self.x + 0.0).view(np.uint8)
        key = np.concatenate([codes.view(np.uint8).reshape(len(self), -1), features], axis=1)
        packed = np.ascontiguousarray(key).view(np.dtype((np.void, key.shape[1]))).ravel()
        _, first, inverse, count = np.unique(packed, True, True, True)  # index, inverse, counts
        by_key_and_time = np.lexsort((self.time_ns, inverse))
        middle = by_key_and_time[np.cumsum(count) - count + (count - 1) // 2]
        order = np.argsort(first)
        kept = self.take(first[order])
        return Dataset(kept.x, kept.prior_ns, self.time_ns[middle[order]], kept.group, self.schema_digest)

    def to_npz(self) -> bytes:
        """All arrays, as NumPy writes them; the schema digest is kept beside it."""
        packed = io.BytesIO()
        np.savez(packed, **{name: getattr(self, name) for name in _ARRAYS})
        return packed.getvalue()

    @classmethod
    def from_npz(cls, content: bytes, schema_digest: str) -> "Dataset":
        """The inverse of `to_npz`; nothing is unpickled, and no array is larger than `content`. Raises ValueError."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            for name in _ARRAYS:
                _check_size(arrays.zip.open(f"{name}.npy"), len(content))
            return cls(**{name: arrays[name] for name in _ARRAYS}, schema_digest=schema_digest)

    def folds(self, count: int = 5) -> Iterator[tuple["Dataset", "Dataset"]]:
        """(train, test) pairs; each workload is held out exactly once (GroupKFold), never split between
        both.

        With fewer workloads than `count`, each workload is its own fold.
        """
        from sklearn.model_selection import GroupKFold  # slow to import, and only evaluation needs it

        present = len(self.workloads())
        if count < 2 or present < 2:
            raise DatasetError(
                f"folds: expected at least 2 folds and 2 workloads, got {count} folds and {present} workloads"
            )
        for train, test in GroupKFold(min(count, present)).split(self.x, groups=self.group):
            yield self.take(train), self.take(test)


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """What a ranker has seen."""

    rows: int
    failed: int
    workloads: int
    features: int
    schema_digest: str

    @classmethod
    def of(cls, data: "Dataset") -> Self:
        """Of a data set."""
        failed = int((~data.ok).sum())
        return cls(len(data), failed, len(data.workloads()), data.x.shape[1], data.schema_digest)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a model of time / prior is trained on: rows that ran, log ratios centred in each workload."""

    x: NDArray[np.float32]
    target: NDArray[np.float64]
    weight: NDArray[np.float64]
    """sqrt(best time of the workload / time)."""
    offset: float
    """Mean over the workloads of what centring took away."""
    gate_worthwhile: bool
    """Enough successes and failures to tell them apart."""
    seed: int

    @classmethod
    def of(cls, data: Dataset, seed: int) -> Self:
        """From a data set; failures are left out."""
        ok = data.ok
        log_time, group = np.log(data.time_ns[ok]), data.group[ok]
        ratio = log_time - np.log(data.prior_ns[ok])
        target, behind = np.empty_like(ratio), np.empty_like(ratio)
        medians = []
        for name in np.unique(group):
            rows = group == name
            medians.append(float(np.median(ratio[rows])))
            target[rows] = ratio[rows] - medians[-1]
            behind[rows] = log_time[rows] - log_time[rows].min()
        offset = float(np.mean(medians)) if medians else 0.0
        enough = min(int(ok.sum()), int((~ok).sum())) >= MIN_GATE
        return cls(data.x[ok], target, np.exp(-0.5 * behind), offset, enough, seed)

    def random_weights(self, members: int) -> Iterator[NDArray[np.float64]]:
        """A Bayesian bootstrap: random weights for all rows, once a member; nothing below `MIN_OK` rows."""
        rng = np.random.default_rng(self.seed)
        for _ in range(members if len(self.x) >= MIN_OK else 0):
            weight = self.weight * rng.exponential(size=len(self.x))
            yield weight / weight.mean()

    def random_rows(self, members: int) -> Iterator[NDArray[np.intp]]:
        """The same by drawing rows, for learners that are slow with weights; twice as many as there are."""
        rng = np.random.default_rng(self.seed)
        for _ in range(members if len(self.x) >= MIN_OK else 0):
            yield rng.choice(len(self.x), 2 * len(self.x), p=self.weight / self.weight.sum())


def _check(good: NDArray[np.bool_], name: str, expected: str, values: NDArray[np.generic]) -> None:
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise DatasetError(f"{name}: expected {expected} in every row, got {values[row]!s} in row {row}")


def _check_size(part: IO[bytes], most: int) -> None:
    """Refuse an array that says it has more bytes than there are, before memory is taken for it."""
    with part:
        version = np.lib.format.read_magic(part)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(part)
        if math.prod(shape) * dtype.itemsize > most:
            raise ValueError(f"array: expected at most {most} bytes, got shape {shape} of {dtype}")
