"""How candidates are measured. A policy is declared, recorded, and part of what a time means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, final

CACHES: Final = ("hot", "cold", "rotating")
ALGORITHMS: Final = ("any", "direct")
TIMER: Final = "loop"
"""A machine-code loop between two readings of the monotonic clock."""
UNSAID_TOLERANCE: Final = 1e-4
"""What records were checked at that name no tolerance. It stays as it is, whatever the default becomes."""


@final
@dataclass(frozen=True, slots=True)
class Policy:
    """How each candidate is checked and timed. ``cache``, ``algorithms`` and ``tolerance`` are part of a record's key
    (:meth:`identity`): only records of the same two, and of the same tolerance or a smaller one, are found again.

    Raises ValueError for a value that makes no sense."""

    cache: str = "hot"
    """`hot`: the same buffers in every call. `cold`: the caches are flushed before every call. `rotating`:
    calls walk through copies of all tensors that together do not fit the last cache, while scratch stays
    warm."""
    min_time_s: float = 0.005
    """Sampling goes on for at least this many seconds."""
    max_time_s: float = 0.05
    """Sampling stops after this many seconds (a slow kernel still gets three samples, up to ten times
    this)."""
    min_samples: int = 8
    """Least number of samples, within `max_time_s`."""
    max_samples: int = 200
    """Most samples."""
    target_noise: float = 0.01
    """Sampling stops when the 95 % confidence interval of the median is within ± this share of it."""
    cutoff: float | None = 3.0
    """A candidate whose fastest sample takes more than this multiple of the best candidate's time is abandoned
    (None: never)."""
    tolerance: float = UNSAID_TOLERANCE
    """Largest error of an element of a float32 result, relative to the element, besides what rounding may add in sums of that
    length; of a float64 result, this times 2^-29."""
    build_timeout_s: float = 60.0
    """Most seconds to build a candidate. The limit in use adapts downwards to what builds take."""
    run_timeout_s: float = 60.0
    """Most seconds to check a candidate, and again to time it. Adapts downwards too."""
    seed: int = 0
    """Seed of the input values."""
    algorithms: str = "any"
    """`direct` forbids algorithms that magnify rounding errors (Winograd's convolutions); `any` allows them, with the bound
    of the error stated in the record."""

    def __post_init__(self) -> None:
        def expect(condition: bool, name: str, text: str) -> None:
            if not condition:
                raise ValueError(f"policy {name}: expected {text}; got {getattr(self, name)!r}")

        expect(self.cache in CACHES, "cache", f"one of {', '.join(CACHES)}")
        expect(self.algorithms in ALGORITHMS, "algorithms", f"one of {', '.join(ALGORITHMS)}")
        for name in ("max_time_s", "target_noise", "tolerance", "build_timeout_s", "run_timeout_s"):
            expect(getattr(self, name) > 0, name, "a number above 0")
        expect(0 <= self.min_time_s <= self.max_time_s, "min_time_s", f"0 to max_time_s ({self.max_time_s})")
        expect(self.min_samples >= 1, "min_samples", "at least 1")
        expect(self.max_samples >= self.min_samples, "max_samples", f"at least min_samples ({self.min_samples})")
        expect(self.cutoff is None or self.cutoff > 1, "cutoff", "a number above 1, or None")
        expect(self.seed >= 0, "seed", "at least 0")

    def identity(self) -> dict[str, str | float]:
        """The part of a policy that a record is keyed by: what says which times are comparable, and what was asked of the
        result. What is as it was before it could be chosen is left out, so that older records keep their key."""
        found: dict[str, str | float] = {"cache": self.cache, "timer": TIMER}
        if self.algorithms != "any":
            found["algorithms"] = self.algorithms
        if self.tolerance != UNSAID_TOLERANCE:
            found["tolerance"] = float(self.tolerance)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Policy:
        """The inverse of :meth:`to_dict`. Raises ValueError for an unknown field."""
        known = [f.name for f in fields(Policy)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise ValueError(f"policy: expected fields of {', '.join(known)}; got {', '.join(unknown)}")
        return Policy(**data)
