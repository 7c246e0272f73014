"""A value that a user gives an input instead of a shape: it takes the input's data type and shape, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.graph.graph import Array
from tilewright.graph.onnx.context import ImportFailure

if TYPE_CHECKING:
    from onnx import ValueInfoProto


def given_value(
    info: ValueInfoProto, dims: Sequence[int | str] | None, value: object, shape: Sequence[int] | None
) -> Array:
    """``value`` (a number, nested lists, an array) as an array of the input's type. Its shape is ``shape`` or fits ``dims``; the
    elements may also come as one number or as a flat list, in row-major order. Raises ImportFailure, also for numbers
    that the type does not have."""
    raw = np.asarray(value)
    if raw.dtype.kind not in "biuf":
        raise ImportFailure(f"value of input {info.name!r}: expected numbers; got {value!r:.60}")
    wanted = _shape(dims, raw, shape)
    if wanted is None or prod(wanted) != raw.size or (raw.shape != wanted and raw.ndim > 1):
        text = ", ".join(str(d) for d in (shape if shape is not None else dims or ()))
        raise ImportFailure(f"value of input {info.name!r}: expected the shape [{text}]; got {raw.shape}")
    return _typed(info, raw).reshape(wanted)


def _shape(dims: Sequence[int | str] | None, raw: Array, shape: Sequence[int] | None) -> tuple[int, ...] | None:
    if shape is not None:
        return tuple(int(d) for d in shape)
    if dims is None or len(dims) == raw.ndim:
        return raw.shape
    fixed = [d for d in dims if isinstance(d, int)]
    if len(fixed) < len(dims) - 1 and raw.size != 1:
        return None  # more than one size is open
    rest = raw.size // max(1, prod(fixed))
    return tuple(d if isinstance(d, int) else 1 if raw.size == 1 else rest for d in dims)


def _typed(info: ValueInfoProto, raw: Any) -> Array:
    from onnx import TensorProto, helper

    element = info.type.tensor_type.elem_type
    if element in (TensorProto.UNDEFINED, TensorProto.STRING):
        raise ImportFailure(f"value of input {info.name!r}: an input of that data type takes no numbers")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element))
    with np.errstate(all="ignore"):
        typed: Any = raw.astype(dtype)
    exact = dtype.kind not in "biu" or np.array_equal(typed.astype(np.float64), raw.astype(np.float64))
    if not exact or (dtype.kind == "f" and (np.isinf(typed) & ~np.isinf(raw)).any()):
        raise ImportFailure(
            f"value of input {info.name!r}: expected numbers of type {dtype.name}; got {raw.tolist()!r:.80}"
        )
    return np.asarray(typed)
