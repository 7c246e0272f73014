"""17 operators from common networks."""

from __future__ import annotations

from benchmarks.backends import Ops, Value
from benchmarks.workloads.builder import Builder
from benchmarks.workloads.workload import Input


def add_peers(b: Builder) -> None:
    """All of the suite."""

    def matmul(o: Ops, x: Value, y: Value) -> Value:
        return o.matmul(x, y)

    b.given("matmul_512", [(512, 512), (512, 512)], matmul)
    b.given("matmul_1024", [(1024, 1024), (1024, 1024)], matmul)
    b.linear("gemm_bias_gelu", 128, 768, 3072, lambda o, y: o.gelu(y, tanh=True), transposed=False)
    b.linear("gemv_4096", 1, 4096, 4096, lambda o, y: y, bias=False, transposed=False)
    b.given("batch_matmul_12", [(12, 128, 64), (12, 64, 128)], matmul)
    b.conv("conv_3x224_k7s2", (1, 3, 224, 224), 64, 7, stride=2, pad=3)
    b.conv("conv_64x56_k3_bias_relu", (1, 64, 56, 56), 64, 3, lambda o, y: o.relu(y), pad=1, bias=True)
    b.conv("conv_64x56_128_k3s2", (1, 64, 56, 56), 128, 3, stride=2, pad=1)
    b.conv("conv_512x7_k3", (1, 512, 7, 7), 512, 3, pad=1)
    b.conv("conv_256x14_1024_k1", (1, 256, 14, 14), 1024, 1)
    b.conv("depthwise_144x56_k3", (1, 144, 56, 56), 144, 3, pad=1, depthwise=True)
    b.given("softmax_512x1024", [(512, 1024)], lambda o, x: o.softmax(x, -1))
    rows = b.cut(768)
    b.add(
        "layernorm_512x768",
        [Input("x", (b.cut(512), rows)), Input("scale", (rows,), True), Input("bias", (rows,), True)],
        lambda o, x, scale, bias: o.layer_norm(x, scale, bias),
    )
    head = b.cut(64)
    b.given("attention_12x512x64", [(12, 512, 64)] * 3, lambda o, q, k, v: o.attention(q, k, v, head**-0.5))
    b.given(
        "elementwise_16M",
        [(4096, 4096)],
        lambda o, x: o.mul(o.gelu(o.add(o.mul(x, 1.5), 0.25), tanh=True), 0.75),
    )
    b.given("rowsum_4096", [(4096, 4096)], lambda o, x: o.sum(x, 1))
    b.given("transpose_4096", [(4096, 4096)], lambda o, x: o.transpose(x, (1, 0)))
