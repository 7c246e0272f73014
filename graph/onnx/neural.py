"""Convolutions, pooling and normalisation."""

from __future__ import annotations

from tilewright.graph import ops
from tilewright.graph.dtypes import GraphError
from tilewright.graph.onnx.context import Node, Result, operator
from tilewright.graph.ops.conv import auto_pads, per_dimension


@operator("Conv")
def _conv(n: Node) -> Result:
    x, w = n.tensor(0), n.tensor(1)
    rank = x.rank - 2
    kernel = n.ints("kernel_shape")
    if kernel is not None and tuple(kernel) != w.shape[2:]:
        raise GraphError(f"kernel_shape: expected {w.shape[2:]} as the weight has; got {kernel}")
    strides = per_dimension(n.ints("strides"), rank, 1, "strides")
    dilations = per_dimension(n.ints("dilations"), rank, 1, "dilations")
    pads = n.ints("pads")
    mode = n.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", ""):
        pads = auto_pads(mode, x.shape[2:], w.shape[2:], strides, dilations)
    return ops.conv(x, w, n.maybe(2), strides, dilations, pads, n.integer("group", 1))


@operator("ConvTranspose")
def _conv_transpose(n: Node) -> Result:
    x, w = n.tensor(0), n.tensor(1)
    if w.rank != x.rank:
        raise GraphError(f"expected a weight of rank {x.rank}; got shape {w.shape}")
    rank = x.rank - 2
    strides = per_dimension(n.ints("strides"), rank, 1, "strides")
    dilations = per_dimension(n.ints("dilations"), rank, 1, "dilations")
    extra = per_dimension(n.ints("output_padding"), rank, 0, "output_padding")
    pads = n.ints("pads")
    shape, mode = n.ints("output_shape"), n.text("auto_pad", "NOTSET")
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        shape = [d * s for d, s in zip(x.shape[2:], strides, strict=True)]
    if shape is not None:
        if len(shape) < rank:
            raise GraphError(f"output_shape: expected {rank} numbers; got {shape}")
        begin, end = [], []
        for k in range(rank):
            whole = (x.shape[2 + k] - 1) * strides[k] + extra[k] + (w.shape[2 + k] - 1) * dilations[k] + 1
            total = whole - shape[-rank:][k]
            if total < 0:  # a larger output than the kernels reach: zeros at the end
                extra[k] -= total
                total = 0
            small, large = total // 2, total - total // 2
            begin.append(small if mode == "SAME_UPPER" else large)
            end.append(large if mode == "SAME_UPPER" else small)
        pads = begin + end
    return ops.conv_transpose(x, w, n.maybe(2), strides, dilations, pads, extra, n.integer("group", 1))


def _window(n: Node) -> ops.Window:
    kernel = n.ints("kernel_shape")
    if kernel is None:
        raise GraphError("expected the attribute kernel_shape")
    return ops.Window(kernel, n.ints("strides"), n.ints("dilations"), n.ints("pads"), n.flag("ceil_mode"),
                      n.text("auto_pad", "NOTSET"))  # fmt: skip


@operator("MaxPool")
def _max_pool(n: Node) -> Result:
    x, window = n.tensor(0), _window(n)
    y = ops.max_pool(x, window)
    if not n.wants(1):
        return [y]
    return [y, ops.max_pool_indices(x, window, y, n.flag("storage_order"))]


@operator("AveragePool")
def _average_pool(n: Node) -> Result:
    return ops.average_pool(n.tensor(0), _window(n), n.flag("count_include_pad"))


@operator("LpPool")
def _lp_pool(n: Node) -> Result:
    return ops.lp_pool(n.tensor(0), _window(n), n.integer("p", 2))


@operator("GlobalLpPool")
def _global_lp_pool(n: Node) -> Result:
    return ops.global_lp_pool(n.tensor(0), n.integer("p", 2))


@operator("BatchNormalization")
def _batch_norm(n: Node) -> Result:
    if n.flag("training_mode") or n.wants(1):
        raise GraphError("training_mode or its extra outputs are used; only inference is supported")
    scale, bias, mean, var = (n.tensor(k) for k in range(1, 5))
    return [ops.batch_norm(n.tensor(0), scale, bias, mean, var, n.real("epsilon", 1e-5))]


@operator("LayerNormalization")
def _layer_norm(n: Node) -> Result:
    y, mean, inverse = ops.layer_norm(
        n.tensor(0), n.maybe(1), n.maybe(2), n.integer("axis", -1), n.real("epsilon", 1e-5)
    )  # fmt: skip
    return [y, mean, inverse][: len(n.proto.output)]


@operator("RMSNormalization")
def _rms_norm(n: Node) -> Result:
    return ops.rms_norm(n.tensor(0), n.tensor(1), n.integer("axis", -1), n.real("epsilon", 1e-5))


@operator("InstanceNormalization")
def _instance_norm(n: Node) -> Result:
    return ops.instance_norm(n.tensor(0), n.tensor(1), n.tensor(2), n.real("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(n: Node) -> Result:
    groups = n.integer("num_groups", 1)
    per_group = n.opset < 21
    return ops.group_norm(n.tensor(0), n.tensor(1), n.tensor(2), groups, n.real("epsilon", 1e-5), per_group)


@operator("MeanVarianceNormalization")
def _mean_variance_norm(n: Node) -> Result:
    return ops.mean_variance_norm(n.tensor(0), n.ints("axes") or [0, 2, 3])


@operator("LRN")
def _lrn(n: Node) -> Result:
    return ops.lrn(n.tensor(0), n.integer("size", 1), n.real("alpha", 1e-4), n.real("beta", 0.75), n.real("bias", 1.0))
