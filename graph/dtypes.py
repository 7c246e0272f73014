"""The data types a tensor may have, and how each is stored."""

from __future__ import annotations

import numpy as np

#: Storage bytes of each supported type. ``bool`` is stored as one byte, as NumPy and ONNX do.
SIZES: dict[str, int] = {
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "bool": 1,
}
FLOATS = frozenset({"float32", "float64"})
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64", "bool"})
INTS = frozenset(SIZES) - FLOATS - {"bool"}


class GraphError(ValueError):
    """A graph, stage or expression that has no meaning; the text says what was expected and what came."""


def check_dtype(name: str) -> str:
    """Return ``name`` if it is a supported data type, else raise :class:`GraphError` naming the supported ones."""
    if name not in SIZES:
        raise GraphError(f"data type: expected one of {', '.join(SIZES)}; got {name!r}")
    return name


def is_float(dtype: str) -> bool:
    """True for the floating-point types."""
    return dtype in FLOATS


def numpy_dtype(dtype: str) -> np.dtype:  # type: ignore[type-arg,unused-ignore]
    """The NumPy type that stores ``dtype``."""
    return np.dtype(np.bool_ if dtype == "bool" else dtype)


def int_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)
