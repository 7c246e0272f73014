"""Convolutions over one, two or three spatial dimensions.

The input is padded by a stage of its own, so that every load of the contraction is plain affine. Grouped
convolutions get an axis for the group, and a view joins it with the channel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.graph.dtypes import GraphError
from tilewright.graph.expr import Expr
from tilewright.graph.graph import Tensor
from tilewright.graph.ops.core import reduction
from tilewright.graph.ops.elementwise import add
from tilewright.graph.ops.shape import crop, pad


def pad_spatial(x: Tensor, pads: Sequence[int], value: float | int = 0) -> Tensor:
    """Pad the spatial dimensions of (n, c, ...); ``pads`` is all the begins, then all the ends."""
    half = len(pads) // 2
    return pad(x, (0, 0, *pads[:half]), (0, 0, *pads[half:]), value)


def auto_pads(
    mode: str, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Explicit pads for ONNX's ``auto_pad`` of VALID, SAME_UPPER or SAME_LOWER."""
    if mode == "VALID":
        return [0] * (2 * len(size))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise GraphError(f"auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER; got {mode!r}")
    begin, end = [], []
    for n, k, s, d in zip(size, kernel, strides, dilations, strict=True):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        small, large = total // 2, total - total // 2
        begin.append(small if mode == "SAME_UPPER" else large)
        end.append(large if mode == "SAME_UPPER" else small)
    return begin + end


def per_dimension(given: Sequence[int] | None, rank: int, default: int, what: str) -> list[int]:
    """One number for each spatial dimension; with a default of 1, of at least 1."""
    out = [default] * rank if not given else [int(v) for v in given]
    if len(out) != rank:
        raise GraphError(f"{what}: expected {rank} numbers; got {out}")
    if default == 1 and out and min(out) < 1:
        raise GraphError(f"{what}: expected numbers of at least 1; got {out}")
    return out


def _add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return y
    if bias.type.size != y.shape[1]:
        raise GraphError(f"conv: expected a bias of {y.shape[1]} elements; got {bias.shape}")
    return add(y, y.graph.view(bias, (y.shape[1], *([1] * (y.rank - 2)))))


def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    group: int = 1,
) -> Tensor:
    """Convolution of ``x`` (n, c, spatial...) with ``w`` (oc, c / group, kernel...); ``pads`` is all
    begins, then all ends."""
    rank = x.rank - 2
    if rank < 1 or w.rank != x.rank:
        raise GraphError(f"conv: expected input and weight of equal rank, at least 3; got {x.shape} and {w.shape}")
    s = per_dimension(strides, rank, 1, "conv strides")
    d = per_dimension(dilations, rank, 1, "conv dilations")
    xp = pad_spatial(x, per_dimension(pads, 2 * rank, 0, "conv pads"))
    n, c, *size = xp.shape
    oc, cg, *kernel = w.shape
    if group < 1 or c != cg * group or oc % group:
        raise GraphError(
            f"conv: expected {cg * group} input channels and outputs divisible by group {group}; "
            f"got input {x.shape} and weight {w.shape}"
        )
    out = [(z - (k - 1) * q - 1) // t + 1 for z, k, t, q in zip(size, kernel, s, d, strict=True)]
    if min(out) < 1:
        raise GraphError(f"conv: the kernel {kernel} with dilations {d} is larger than the padded input {size}")
    depthwise = cg == 1 and oc == group
    split = group > 1 and not depthwise
    per_group = oc // group

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        place = [o * t + k * q for o, k, t, q in zip(i[-rank:], r[1:], s, d, strict=True)]
        if split:
            return xp.at([i[0], i[1] * cg + r[0], *place]) * w.at([i[1] * per_group + i[2], *r])
        return xp.at([i[0], i[1] if depthwise and group > 1 else r[0], *place]) * w.at([i[1], *r])

    shape = (n, group, per_group, *out) if split else (n, oc, *out)
    y = reduction(x.graph, shape, (cg, *kernel), "sum", body, "conv")
    return _add_bias(x.graph.view(y, (n, oc, *out)), bias)


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    group: int = 1,
) -> Tensor:
    """The transpose of a convolution: ``x`` (n, c, spatial...), ``w`` (c, oc / group, kernel...).

    Written as a gather. With stride s, output position o + pad = s * a + b takes the kernel taps b, b + s,
    ..., so the stage has an axis for ``a`` (the coarse position) and one for ``b`` (the phase), and all loads
    stay affine.
    """
    rank = x.rank - 2
    if rank < 1 or w.rank != x.rank or w.shape[0] != x.shape[1] or group < 1 or x.shape[1] % group:
        raise GraphError(
            "conv_transpose: expected a weight of (channels, outputs, kernel...), channels divisible "
            f"by group {group}; got input {x.shape} and weight {w.shape}"
        )
    s = per_dimension(strides, rank, 1, "conv_transpose strides")
    d = per_dimension(dilations, rank, 1, "conv_transpose dilations")
    p = per_dimension(pads, 2 * rank, 0, "conv_transpose pads")
    extra = per_dimension(output_padding, rank, 0, "conv_transpose output_padding")
    n, c, *size = x.shape
    kernel = [(k - 1) * q + 1 for k, q in zip(w.shape[2:], d, strict=True)]
    out = [(z - 1) * t + k - p[j] - p[rank + j] + e
           for j, (z, t, k, e) in enumerate(zip(size, s, kernel, extra, strict=True))]  # fmt: skip
    if min(out) < 1:
        raise GraphError(f"conv_transpose: the output {out} is empty")
    taps = [-(-k // t) for k, t in zip(kernel, s, strict=True)]
    coarse = [-(-(p[j] + out[j]) // s[j]) for j in range(rank)]
    xp = pad_spatial(x, [t - 1 for t in taps] + [a - z for a, z in zip(coarse, size, strict=True)])
    phases = _phase_weights(w, d, s, taps)
    cg, per_group = c // group, w.shape[1]

    def body(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
        head, rest = (i[:3], i[3:]) if group > 1 else (i[:2], i[2:])
        channel = head[1] * cg + r[0] if group > 1 else r[0]
        place = [a + t for a, t in zip(rest[0::2], r[1:], strict=True)]
        kernel_index = [e for t, b in zip(r[1:], rest[1::2], strict=True) for e in (t, b)]
        return xp.at([head[0], channel, *place]) * phases.at([channel, head[-1], *kernel_index])

    head_shape = (n, group, per_group) if group > 1 else (n, per_group)
    fine = [e for a, t in zip(coarse, s, strict=True) for e in (a, t)]
    y = reduction(x.graph, (*head_shape, *fine), (cg, *taps), "sum", body, "conv_transpose")
    full = x.graph.view(y, (n, per_group * group, *(a * t for a, t in zip(coarse, s, strict=True))))
    return _add_bias(crop(full, {2 + j: (p[j], out[j], 1) for j in range(rank)}), bias)


def _phase_weights(w: Tensor, dilations: Sequence[int], strides: Sequence[int], taps: Sequence[int]) -> Tensor:
    """Weights as (c, oc, tap, phase, tap, phase...), taps reversed; dilation and the last partial tap are
    filled with 0."""
    rank = w.rank - 2
    g = w.graph
    shape = [e for t, s in zip(taps, strides, strict=True) for e in (t, s)]
    if w.value is not None:
        full = np.zeros((*w.shape[:2], *(t * s for t, s in zip(taps, strides, strict=True))), w.value.dtype)
        dilated = tuple(slice(0, (k - 1) * q + 1, q) for k, q in zip(w.shape[2:], dilations, strict=True))
        full[(slice(None), slice(None), *dilated)] = w.value
        blocks = full.reshape(*w.shape[:2], *shape)
        flip = tuple(slice(None, None, -1) if k % 2 == 0 else slice(None) for k in range(2 * rank))
        return g.constant(np.ascontiguousarray(blocks[(slice(None), slice(None), *flip)]), "conv_weight")
    for j, q in enumerate(dilations):
        if q > 1:  # (..., k, ...) -> (..., k, q, ...) filled with zeros -> (..., k * q, ...)
            pairs = g.view(w, (*w.shape[: j + 3], 1, *w.shape[j + 3 :]))
            after = [q - 1 if k == j + 3 else 0 for k in range(pairs.rank)]
            spread = pad(pairs, [0] * pairs.rank, after)
            w = g.view(spread, (*w.shape[: j + 2], w.shape[j + 2] * q, *w.shape[j + 3 :]))
            w = crop(w, {j + 2: (0, w.shape[j + 2] - q + 1, 1)})
    grow = [t * s - k for t, s, k in zip(taps, strides, w.shape[2:], strict=True)]
    w = pad(w, [0] * w.rank, [0, 0, *grow])
    w = g.view(w, (*w.shape[:2], *shape))
    return crop(w, {2 + 2 * j: (t - 1, t, -1) for j, t in enumerate(taps) if t > 1})
