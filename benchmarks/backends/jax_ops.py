"""JAX's words: NumPy's, but XLA's convolutions and pooling."""

from __future__ import annotations

import importlib
import math
from typing import Any

from benchmarks.backends.numpy_ops import NumpyOps
from benchmarks.backends.vocabulary import Value


class JaxOps(NumpyOps):
    """Traced JAX arrays: NumPy's words, but XLA's convolutions and pooling."""

    def __init__(self) -> None:
        self.lax: Any = importlib.import_module("jax").lax
        erf = importlib.import_module("jax.scipy.special").erf
        super().__init__(xp=importlib.import_module("jax.numpy"), erf=erf)

    def conv(
        self, x: Value, w: Value, b: Value = None, stride: int = 1, pad: int = 0, groups: int = 1, rank: int = 2
    ) -> Value:
        y = self.lax.conv_general_dilated(x, w, (stride,) * rank, [(pad, pad)] * rank, feature_group_count=groups)
        return y if b is None else y + b.reshape(-1, *[1] * rank)

    def _reduce(self, x: Value, start: float, f: Any, kernel: int, stride: int, pad: int) -> Value:
        pads = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
        return self.lax.reduce_window(x, start, f, (1, 1, kernel, kernel), (1, 1, stride, stride), pads)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value:
        return self._reduce(x, -math.inf, self.lax.max, kernel, stride, pad)

    def average_pool(self, x: Value, kernel: int) -> Value:
        return self._reduce(x, 0.0, self.lax.add, kernel, kernel, 0) / kernel**2
