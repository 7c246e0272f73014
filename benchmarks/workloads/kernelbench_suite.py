"""Single operators (level 1) and operators with what follows them (level 2) of KernelBench's problem list."""

from __future__ import annotations

from typing import Any

from benchmarks.backends import Ops, Value
from benchmarks.workloads.builder import Builder
from benchmarks.workloads.workload import Body, Input


def add_level_1(b: Builder) -> None:
    """Single operators."""

    def matmul(o: Ops, x: Value, y: Value) -> Value:
        return o.matmul(x, y)

    for name, x, y in (
        ("l1_01_square_matmul", (512, 512), (512, 512)),
        ("l1_02_matmul", (256, 1024), (1024, 512)),
        ("l1_03_batched_matmul", (8, 64, 128), (8, 128, 256)),
        ("l1_04_matrix_vector", (512, 32768), (32768, 1)),
        ("l1_06_matmul_large_k", (64, 16384), (16384, 64)),
        ("l1_07_matmul_small_k", (2048, 32), (32, 2048)),
        ("l1_08_matmul_irregular", (513, 185), (185, 371)),
        ("l1_09_matmul_tall_skinny", (2048, 16), (16, 2048)),
        ("l1_10_matmul_3d", (4, 128, 256), (256, 192)),
    ):
        b.given(name, [x, y], matmul)
    b.given(
        "l1_16_matmul_transposed_a",
        [(1024, 256), (1024, 512)],
        lambda o, x, y: o.matmul(x, y, transpose_a=True),
    )
    b.given("l1_19_relu", [(2048, 2048)], lambda o, x: o.relu(x))
    b.given("l1_23_softmax", [(256, 8192)], lambda o, x: o.softmax(x, 1))
    b.given("l1_26_gelu", [(2048, 2048)], lambda o, x: o.gelu(x))
    b.given("l1_36_rms_norm", [(4, 64, 64, 64)], lambda o, x: o.rms_norm(x, 1))
    normal = tuple(b.cut(d) for d in (16, 64, 64))
    b.add(
        "l1_40_layer_norm",
        [Input("x", (8, *normal)), Input("scale", normal, True), Input("bias", normal, True)],
        lambda o, x, scale, bias: o.layer_norm(x, scale, bias, 3),
    )
    b.given("l1_42_max_pool", [(2, 16, 96, 96)], lambda o, x: o.max_pool(x, 4, 1, 1))
    b.given("l1_45_average_pool", [(1, 16, 220, 220)], lambda o, x: o.average_pool(x, 11))
    b.given("l1_47_sum", [(8, 512, 511)], lambda o, x: o.sum(x, 1, keep=True))
    b.conv("l1_50_alexnet_conv", (2, 3, 112, 112), 96, 11, stride=4, pad=2, bias=True)
    b.conv("l1_63_conv", (1, 16, 96, 96), 64, 3)
    b.conv("l1_67_conv_1d", (1, 64, 4096), 64, 3)
    b.conv("l1_82_depthwise", (1, 64, 112, 112), 64, 3, depthwise=True)
    b.conv("l1_84_depthwise_asymmetric", (1, 128, 28, 56), 128, 3, depthwise=True)
    c, n = b.cut(64), b.cut(128)
    b.add(
        "l1_86_depthwise_separable",
        [
            Input("x", (1, c, b.cut(56), b.cut(56))),
            Input("w", (c, 1, 3, 3), True, 1 / 3),
            Input("v", (n, c, 1, 1), True, c**-0.5),
        ],
        lambda o, x, w, v: o.conv(o.conv(x, w, None, 1, 1, c), v),
    )
    b.conv("l1_87_pointwise", (1, 64, 112, 112), 128, 1)
    b.given("l1_88_new_gelu", [(2048, 2048)], lambda o, x: o.gelu(x, tanh=True))
    width, length, heads = b.cut(64), b.cut(256), b.cut(8)

    def attention(o: Ops, q: Value, k: Value, v: Value) -> Value:
        return o.reshape(o.attention(q, k, v, width**-0.5), (1, heads, length, width))

    b.given("l1_97_attention", [(8, 256, 64)] * 3, attention)


def add_level_2(b: Builder) -> None:
    """Convolutions and matrix products with an epilogue."""

    def conv_bias(o: Ops, y: Value, bias: Value) -> Value:
        return o.add(o.relu(y), bias)

    b.conv("l2_01_conv_relu_bias", (1, 32, 56, 56), 64, 3, conv_bias, bias=True, extra=[(64, 1, 1)])

    def linear(name: str, body: Body, **more: Any) -> None:
        b.linear(name, 256, 512, 512, body, **more)

    linear("l2_09_sub_mul_relu", lambda o, y: o.relu(o.mul(o.sub(y, 2.0), 1.5)))
    linear("l2_12_mul_leaky_relu", lambda o, y: o.leaky_relu(o.mul(y, 2.0), 0.1))
    linear("l2_29_mish_mish", lambda o, y: o.mish(o.mish(y)))
    linear("l2_63_relu_div", lambda o, y: o.div(o.relu(y), 2.0))
    linear("l2_76_add_relu", lambda o, y, e: o.relu(o.add(y, e)), bias=False, extra=[(512,)])
    linear("l2_86_div_gelu", lambda o, y: o.gelu(o.div(y, 10.0)))
    linear(
        "l2_95_add_swish_tanh_gelu_hardtanh",
        lambda o, y, e: o.clip(o.gelu(o.tanh(o.silu(o.add(y, e)))), -1.0, 1.0),
        extra=[(512,)],
    )
    linear("l2_99_gelu_softmax", lambda o, y: o.softmax(o.gelu(y), 1))
    linear("l2_53_scale_hardtanh_gelu", lambda o, y: o.gelu(o.clip(o.mul(y, 0.5), -2.0, 2.0)))
    linear(
        "l2_81_swish_div_clamp_tanh_clamp",
        lambda o, y: o.clip(o.tanh(o.clip(o.div(o.silu(y), 2.0), -1.0, 1.0)), -1.0, 1.0),
    )
    norm = [(512,), (512,)]
    g8, g16, g32 = (b.groups(n, b.cut(512)) for n in (8, 16, 32))
    linear(
        "l2_62_group_norm_leaky_relu_sum",
        lambda o, y, s, e: o.mul(o.leaky_relu(o.group_norm(y, g32, s, e), 0.01), 2.0),
        extra=norm,
    )
    linear(
        "l2_88_group_norm_swish_mul_swish",
        lambda o, y, s, e, m: o.silu(o.mul(o.silu(o.group_norm(y, g16, s, e)), m)),
        extra=[*norm, (512,)],
    )
    b.linear(
        "l2_37_swish_sum_group_norm",
        512,
        128,
        512,
        lambda o, y, a, s, e: o.group_norm(o.add(o.silu(y), a), g8, s, e),
        extra=[(512,), *norm],
    )
    b.linear("l2_40_scale_residual", 512, 512, 512, lambda o, y: o.add(o.mul(y, 0.5), y))
    b.linear("l2_59_swish_scale", 16, 2048, 2048, lambda o, y: o.mul(o.silu(y), 2.0))
    b.linear(
        "l2_45_gemm_sigmoid_gemm_log_sum_exp",
        512,
        128,
        256,
        lambda o, y, w, e: o.log_sum_exp(o.linear(o.sigmoid(y), w, e), 1),
        extra=[(64, 256), (64,)],
    )
    x = (2, 8, 64, 64)
    b.conv("l2_57_conv_relu_hard_swish", x, 64, 3, lambda o, y: o.hard_swish(o.relu(y)), bias=True)
    b.conv("l2_69_conv_hard_swish_relu", x, 64, 3, lambda o, y: o.relu(o.hard_swish(y)), bias=True)
    b.conv("l2_71_conv_div_leaky_relu", x, 64, 3, lambda o, y: o.leaky_relu(o.div(y, 2.0), 0.01), bias=True)
    b.conv(
        "l2_46_conv_sub_tanh_sub_pool",
        (1, 32, 56, 56),
        64,
        3,
        lambda o, y: o.average_pool(o.sub(o.tanh(o.sub(y, 0.5)), 0.2), 2),
        bias=True,
    )
