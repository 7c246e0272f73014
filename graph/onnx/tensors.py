"""Operators that move, index or create elements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.graph import ops
from tilewright.graph.dtypes import FLOATS, SIZES, GraphError
from tilewright.graph.expr import cast, const
from tilewright.graph.folding import FOLD_LIMIT
from tilewright.graph.graph import Tensor
from tilewright.graph.onnx.context import Node, Result, dtype_name, operator
from tilewright.graph.ops.core import axis_number


@operator("Shape")
def _shape(n: Node) -> Result:
    shape = n.shape(0)
    return np.array(shape[slice(n.integer("start", 0), n.raw("end"))], np.int64)


@operator("Size")
def _size(n: Node) -> Result:
    return np.array(np.prod(n.shape(0), dtype=np.int64), np.int64)


@operator("Reshape")
def _reshape(n: Node) -> Result:
    shape = n.known_ints(1, "shape") if n.has(1) else n.ints("shape") or []
    return ops.reshape(n.tensor(0), shape, zero_copies=not n.flag("allowzero"))


@operator("Flatten")
def _flatten(n: Node) -> Result:
    return ops.flatten(n.tensor(0), n.integer("axis", 1))


@operator("Squeeze")
def _squeeze(n: Node) -> Result:
    return ops.squeeze(n.tensor(0), n.axes())


@operator("Unsqueeze")
def _unsqueeze(n: Node) -> Result:
    return ops.unsqueeze(n.tensor(0), n.axes() or [])


@operator("Transpose")
def _transpose(n: Node) -> Result:
    return ops.transpose(n.tensor(0), n.ints("perm"))


@operator("Concat")
def _concat(n: Node) -> Result:
    parts = [n.tensor(k) for k in range(len(n.inputs)) if 0 not in n.shape(k)]
    return ops.concat(parts, n.integer("axis", 1))


@operator("Split")
def _split(n: Node) -> Result:
    x = n.tensor(0)
    axis = axis_number(n.integer("axis", 0), x.rank, "axis")
    sizes = n.axes(1, "split")
    if sizes is None:
        size, parts = x.shape[axis], n.integer("num_outputs", len(n.proto.output))
        if not 1 <= parts <= size:
            raise GraphError(f"num_outputs: expected 1..{size}; got {parts}")
        step = -(-size // parts)
        sizes = [step] * (parts - 1) + [size - step * (parts - 1)]
    if 0 not in sizes:
        return ops.split(x, sizes, axis)
    filled = iter(ops.split(x, [z for z in sizes if z], axis))
    empty = [0 if k == axis else d for k, d in enumerate(x.shape)]
    return [next(filled) if z else np.zeros(empty, x.dtype) for z in sizes]


@operator("Slice")
def _slice(n: Node) -> Result:
    x = n.tensor(0)
    if n.opset < 10:
        kept = ops.slice_ranges(x.shape, n.ints("starts") or [], n.ints("ends") or [], n.ints("axes"))
    else:
        steps = n.known_ints(4, "steps") if n.has(4) else None
        axes = n.known_ints(3, "axes") if n.has(3) else None
        kept = ops.slice_ranges(x.shape, n.known_ints(1, "starts"), n.known_ints(2, "ends"), axes, steps)
    if all(kept.values()):
        return ops.crop(x, {a: (r[0], len(r), r.step) for a, r in kept.items()})
    return np.zeros([len(kept.get(a, range(d))) for a, d in enumerate(x.shape)], x.dtype)


@operator("Pad")
def _pad(n: Node) -> Result:
    x = n.tensor(0)
    mode = n.only("mode", "constant", "edge", "reflect", "wrap")
    pads = n.known_ints(1, "pads") if n.has(1) else n.ints("pads") or n.ints("paddings") or []
    value: Any = n.maybe(2) if n.has(2) else n.real("value", 0.0) if n.raw("value") is not None else 0
    axes = [a % x.rank for a in n.known_ints(3, "axes")] if n.has(3) else list(range(x.rank))
    if len(pads) != 2 * len(axes):
        raise GraphError(f"pads: expected {2 * len(axes)} numbers; got {pads}")
    before, after = [0] * x.rank, [0] * x.rank
    for k, a in enumerate(axes):
        before[a], after[a] = pads[k], pads[len(axes) + k]
    return ops.pad(x, before, after, value, mode)


@operator("Expand")
def _expand(n: Node) -> Result:
    return ops.expand(n.tensor(0), n.known_ints(1, "shape"))


@operator("Tile")
def _tile(n: Node) -> Result:
    return ops.tile(n.tensor(0), n.known_ints(1, "repeats"))


@operator("Gather")
def _gather(n: Node) -> Result:
    return ops.gather(n.tensor(0), n.tensor(1), n.integer("axis", 0))


@operator("GatherElements")
def _gather_elements(n: Node) -> Result:
    return ops.gather_elements(n.tensor(0), n.tensor(1), n.integer("axis", 0))


@operator("GatherND")
def _gather_nd(n: Node) -> Result:
    return ops.gather_nd(n.tensor(0), n.tensor(1), n.integer("batch_dims", 0))


@operator("ScatterND")
def _scatter_nd(n: Node) -> Result:
    x, indices = n.tensor(0), np.asarray(n.known(1, "indices"))
    depth = indices.shape[-1] if indices.ndim else 0
    sizes = np.array(x.shape[:depth])
    if depth > x.rank or ((indices < -sizes) | (indices >= sizes)).any():
        raise GraphError(f"indices: expected positions in {x.shape}; got {indices.tolist()}")
    flat: Any = np.arange(x.type.size).reshape(x.shape)
    target = flat[tuple(np.moveaxis(indices, -1, 0))] if depth else flat
    return ops.scatter_constant(x, n.tensor(2), target, n.text("reduction", "none"))


@operator("ScatterElements", "Scatter")
def _scatter_elements(n: Node) -> Result:
    x = n.tensor(0)
    indices: Any = n.known(1, "indices")
    place: list[Any] = list(np.indices(indices.shape))
    axis = axis_number(n.integer("axis", 0), x.rank, "axis")
    size = x.shape[axis]
    fits = indices.ndim == x.rank and all(a <= b for a, b in zip(indices.shape, x.shape, strict=True))
    if not fits or ((indices < -size) | (indices >= size)).any():
        raise GraphError(f"indices: expected positions in {x.shape}; got {indices.tolist()}")
    place[axis] = indices % x.shape[axis]
    flat: Any = np.arange(x.type.size).reshape(x.shape)
    return ops.scatter_constant(x, n.tensor(2), flat[tuple(place)], n.text("reduction", "none"))


@operator("DepthToSpace")
def _depth_to_space(n: Node) -> Result:
    return ops.depth_to_space(n.tensor(0), n.integer("blocksize", 1), n.only("mode", "DCR", "CRD") == "CRD")


@operator("SpaceToDepth")
def _space_to_depth(n: Node) -> Result:
    return ops.space_to_depth(n.tensor(0), n.integer("blocksize", 1), n.only("mode", "DCR", "CRD") == "CRD")


@operator("Trilu")
def _trilu(n: Node) -> Result:
    k = int(n.known_number(1, "k")) if n.has(1) else 0
    return ops.trilu(n.tensor(0), n.flag("upper", True), k)


@operator("OneHot")
def _one_hot(n: Node) -> Result:
    depth = int(n.known_number(1, "depth"))
    off, on = ops.split(n.tensor(2), [1, 1])
    indices = n.tensor(0)
    if indices.dtype != "int64":
        indices = ops.cast(indices, "int64")
    return ops.one_hot(indices, depth, ops.reshape(off, ()), ops.reshape(on, ()), n.integer("axis", -1))


@operator("TopK")
def _top_k(n: Node) -> Result:
    k = int(n.known_number(1, "k")) if n.has(1) else n.integer("k", 1)
    values, where = ops.top_k(n.tensor(0), k, n.integer("axis", -1), n.flag("largest", True))
    return [values, where]


@operator("EyeLike")
def _eye_like(n: Node) -> Result:
    if len(n.shape(0)) != 2:
        raise GraphError(f"expected a matrix; got shape {n.shape(0)}")
    dtype = n.dtype(0) if n.raw("dtype") is None else dtype_name(n.integer("dtype", 1))
    rows, columns = n.shape(0)
    return ops.eye(n.graph, rows, columns, n.integer("k", 0), dtype)


@operator("ConstantOfShape")
def _constant_of_shape(n: Node) -> Result:
    from onnx import numpy_helper

    value = n.raw("value")
    fill = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    shape = n.known_ints(0, "shape")
    if any(d < 0 for d in shape) or fill.size != 1:
        raise GraphError(f"expected sizes of at least 0 and one value; got {shape} and {fill.size} values")
    return np.broadcast_to(fill.reshape(()), shape)  # one element in memory, whatever the shape


@operator("Range")
def _range(n: Node) -> Result:
    if n.known_number(2, "delta") == 0:
        raise GraphError("delta: expected a number other than 0")
    start, limit, delta = (n.known_number(k, what) for k, what in enumerate(("start", "limit", "delta")))
    dtype = n.dtype(0)
    size = max(0, math.ceil((limit - start) / delta))
    if size * np.dtype(dtype).itemsize <= FOLD_LIMIT or dtype not in SIZES:
        return np.asarray(np.arange(start, limit, delta, dtype=dtype))
    wide = "float64" if dtype in FLOATS else "int64"
    return n.graph.compute(
        (size,), lambda i: cast(cast(i, wide) * const(delta, wide) + const(start, wide), dtype), name="range"
    )  # fmt: skip


@operator("Constant")
def _constant(n: Node) -> Result:
    from onnx import numpy_helper

    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        v = n.raw(name)
        if v is None:
            continue
        if name == "value":
            return np.asarray(numpy_helper.to_array(v))
        return np.asarray(v, dtype=np.float32 if "float" in name else np.int64)
    raise GraphError("expected an attribute value, value_float(s) or value_int(s)")


@operator("Resize", "Upsample")
def _resize(n: Node) -> Result:
    x = n.tensor(0)
    axes = n.ints("axes") or list(range(x.rank))
    roi: list[float] | None = None
    sizes: list[int] | None = None
    if n.proto.op_type == "Upsample" or n.opset < 11:
        scales = [float(s) for s in (n.known(1, "scales") if n.has(1) else n.raw("scales"))]
        sampling = ops.Sampling(n.text("mode", "nearest"), "asymmetric", "floor")
    else:
        if n.has(3) and np.size(n.known(3, "sizes")):
            sizes, scales = n.known_ints(3, "sizes"), []
        else:
            scales = [float(s) for s in np.asarray(n.known(2, "scales")).reshape(-1)]
        coordinates = n.text("coordinate_transformation_mode", "half_pixel")
        sampling = ops.Sampling(
            n.text("mode", "nearest"), coordinates, n.text("nearest_mode", "round_prefer_floor"),
            n.real("cubic_coeff_a", -0.75), n.flag("exclude_outside"), n.real("extrapolation_value", 0.0),
            n.flag("antialias"),
        )  # fmt: skip
        if coordinates == "tf_crop_and_resize":
            roi = [float(v) for v in np.asarray(n.known(1, "roi")).reshape(-1)]
    return _resized(n, x, axes, sizes, scales, sampling, roi)


def _resized(
    n: Node, x: Tensor, axes: list[int], sizes: list[int] | None, scales: list[float], s: ops.Sampling,
    roi: list[float] | None,
) -> Tensor:  # fmt: skip
    policy = n.only("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    old = [x.shape[axis_number(a, x.rank, "axes")] for a in axes]
    if roi is not None and len(roi) != 2 * len(axes):
        raise GraphError(f"roi: expected {2 * len(axes)} numbers; got {roi}")
    linear = replace(s, mode="linear") if s.mode == "bilinear" else s
    if sizes is None:
        if len(scales) != len(axes):
            raise GraphError(f"scales: expected {len(axes)} numbers; got {scales}")
        return ops.resize(
            x, [int(np.floor(d * f)) for d, f in zip(old, scales, strict=True)], scales, linear, axes, roi
        )
    if len(sizes) != len(axes):
        raise GraphError(f"sizes: expected {len(axes)} numbers; got {sizes}")
    if policy != "stretch":
        ratios = [z / d for z, d in zip(sizes, old, strict=True)]
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        sizes = [int(np.floor(d * ratio + 0.5)) for d in old]
        return ops.resize(x, sizes, [ratio] * len(old), linear, axes, roi)
    return ops.resize(x, sizes, None, linear, axes, roi)
