"""NumPy meaning of the operators that compute shapes. Arrays here may be empty, which tensors of a graph
may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.onnx.context import Node, dtype_name


def _axes(n: Node) -> tuple[int, ...] | None:
    axes = n.axes()
    return None if axes is None else tuple(axes)


def _slice(n: Node, x: Any) -> Any:
    if n.opset < 10:
        starts, ends, axes, steps = n.ints("starts") or [], n.ints("ends") or [], n.ints("axes"), None
    else:
        starts, ends = n.known_ints(1, "starts"), n.known_ints(2, "ends")
        axes = n.known_ints(3, "axes") if n.has(3) else None
        steps = n.known_ints(4, "steps") if n.has(4) else None
    cut = [slice(None)] * x.ndim
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[k] if axes is not None else k
        step = steps[k] if steps is not None else 1
        stop = None if step < 0 and end < -x.shape[axis] else end
        cut[axis] = slice(start, stop, step)
    return x[tuple(cut)]


def _unsqueeze(n: Node, x: Any) -> Any:
    return np.expand_dims(x, tuple(n.axes() or ()))


def _reshape(n: Node, x: Any, *_: Any) -> Any:
    want = n.known_ints(1, "shape") if n.has(1) else n.ints("shape") or []
    if not n.flag("allowzero"):
        want = [x.shape[k] if d == 0 else d for k, d in enumerate(want)]
    return x.reshape(want)


def _divide(_: Node, a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)  # integers truncate towards zero
    return (np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))).astype(a.dtype)


def _cast(n: Node, x: Any) -> Any:
    return x.astype(dtype_name(n.integer("to", 0)))


def _dequantize(n: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    """``(x - zero) * scale``: one scale for all of ``x``, for each position of an axis, or for each block along it."""
    block = n.integer("block_size", 0)
    wanted = n.integer("output_dtype", 0)
    dtype = np.dtype(dtype_name(wanted)) if wanted else scale.dtype
    if zero is not None and zero.shape != scale.shape:
        raise GraphError(f"zero point: expected the scale's shape {scale.shape}; got {zero.shape}")

    def spread(a: Any) -> Any:
        if a.size == 1 and a.ndim < 2:
            return a.reshape(())
        axis = n.integer("axis", 1)
        if not -x.ndim <= axis < x.ndim:
            raise GraphError(f"axis: expected -{x.ndim}..{x.ndim - 1}; got {axis}")
        axis %= x.ndim
        if not block:
            if a.shape != (x.shape[axis],):
                raise GraphError(f"scale: expected a number or shape ({x.shape[axis]},); got {a.shape}")
            return a.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
        blocks = tuple(-(-d // block) if k == axis else d for k, d in enumerate(x.shape))
        if a.shape != blocks:
            raise GraphError(f"scale: expected shape {blocks} for blocks of {block}; got {a.shape}")
        return np.repeat(a, block, axis).take(range(x.shape[axis]), axis)

    wide = np.float64 if x.dtype.name in ("int32", "uint32") else np.float32
    centred = x.astype(wide) - (0 if zero is None else spread(zero).astype(wide))
    return (centred * spread(scale).astype(wide)).astype(dtype)


def _reduce(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(n: Node, x: Any, *_: Any) -> Any:
        axes = n.axes()
        if not axes and n.flag("noop_with_empty_axes"):
            return x
        return f(x, axis=tuple(axes) if axes else None, keepdims=n.flag("keepdims", True)).astype(x.dtype)

    return run


#: ``(node, *arrays) -> array``; operators that are not here are evaluated through their stages.
FOLD: dict[str, Callable[..., Any]] = {
    "Add": lambda n, a, b: a + b,
    "Sub": lambda n, a, b: a - b,
    "Mul": lambda n, a, b: a * b,
    "Div": _divide,
    "Cast": _cast,
    "CastLike": lambda n, x, like: x.astype(like.dtype),
    "Concat": lambda n, *parts: np.concatenate(parts, n.integer("axis", 1)),
    "Equal": lambda n, a, b: np.equal(a, b),
    "DequantizeLinear": _dequantize,
    "Expand": lambda n, x, _: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(n.known_ints(1, "shape")))),
    "Gather": lambda n, x, i: np.take(x, i, axis=n.integer("axis", 0)),
    "Identity": lambda n, x: x,
    "NonZero": lambda n, x: np.array(np.nonzero(np.atleast_1d(x)), np.int64),
    "Not": lambda n, x: np.logical_not(x),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Slice": lambda n, x, *_: _slice(n, x),
    "Squeeze": lambda n, x, *_: np.squeeze(x, _axes(n)),
    "Transpose": lambda n, x: np.transpose(x, n.ints("perm")),
    "Unsqueeze": lambda n, x, *_: _unsqueeze(n, x),
    "Where": lambda n, c, a, b: np.where(c, a, b),
}
