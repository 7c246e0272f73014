"""The operators that are compared: names, shapes, which tensors are constant, and what they compute.

``peers`` is a list of 17 operators from common networks; ``kernelbench`` follows the problem list of
KernelBench (https://github.com/ScalingIntelligence/KernelBench, MIT), reduced to sizes that take a CPU
1 to 20 ms. The problems are written from their names and shapes.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.backends import (
    Array,
    CountOps,
    NumpyOps,
    OnnxOps,
    Ops,
    TorchOps,
    Value,
    tilewright_graph,
)
from tilewright.graph.graph import Graph

SUITES = ("peers", "kernelbench")
SEED = 0
Body = Callable[..., Value]
"""``body(ops, *tensors)``."""


@dataclass(frozen=True)
class Input:
    """A tensor that a workload reads: standard normal times ``scale``. A constant may be folded or packed by
    whoever compiles; anything else comes with each call."""

    name: str
    shape: tuple[int, ...]
    constant: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Workload:
    """One operator, float32, with one output."""

    name: str
    suite: str
    inputs: tuple[Input, ...]
    body: Body

    @cached_property
    def _counted(self) -> tuple[CountOps, tuple[int, ...]]:
        count = CountOps()
        return count, self.body(count, *(i.shape for i in self.inputs))

    @property
    def flops(self) -> int:
        """Operations of contractions (multiply and add count as two); of everything where there are none."""
        return self._counted[0].flops

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        return self._counted[1]

    @property
    def is_single(self) -> bool:
        """Whether one operator is all there is."""
        return self._counted[0].calls == 1

    @property
    def nbytes(self) -> int:
        """Inputs once and the output once."""
        return 4 * (sum(math.prod(i.shape) for i in self.inputs) + math.prod(self.shape))

    def arrays(self, seed: int = SEED) -> dict[str, Array]:
        """Values of every tensor, constants too, in order."""
        rng = np.random.default_rng(seed)
        return {i.name: rng.standard_normal(i.shape, dtype=np.float32) * np.float32(i.scale) for i in self.inputs}

    def reference(self, arrays: dict[str, Array]) -> Array:
        """What it means, in float64."""
        wide = [arrays[i.name].astype(np.float64) for i in self.inputs]
        return np.ascontiguousarray(self.body(NumpyOps(), *wide))

    def graph(self, arrays: dict[str, Array]) -> Graph:
        """A Tilewright graph."""
        tensors = [(i.name, i.shape, arrays[i.name] if i.constant else None) for i in self.inputs]
        return tilewright_graph(tensors, self.body)

    def torch_call(self, arrays: dict[str, Array]) -> Callable[[], Any]:
        """A call of PyTorch on tensors that share the arrays' memory (needs ``torch``)."""
        torch = importlib.import_module("torch")
        ops = TorchOps()
        tensors = [torch.from_numpy(arrays[i.name]) for i in self.inputs]
        body = self.body
        with torch.no_grad():
            view = not body(ops, *tensors).is_contiguous()

        def call() -> Any:
            with torch.no_grad():
                y = body(ops, *tensors)
                return y.contiguous() if view else y

        return call

    def onnx_model(self, arrays: dict[str, Array]) -> Any:
        """An ONNX ``ModelProto`` (needs ``onnx``); constants are initialisers, the output is ``y``."""
        onnx = importlib.import_module("onnx")
        helper: Any = onnx.helper
        made = OnnxOps({i.name: arrays[i.name] for i in self.inputs if i.constant})
        result = self.body(made, *(i.name for i in self.inputs))
        made.nodes[-1].output[list(made.nodes[-1].output).index(result)] = "y"
        used = {name for node in made.nodes for name in node.input}
        float32 = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            made.nodes,
            self.name,
            [helper.make_tensor_value_info(i.name, float32, i.shape) for i in self.inputs if not i.constant],
            [helper.make_tensor_value_info("y", float32, self.shape)],
            [onnx.numpy_helper.from_array(a, n) for n, a in made.weights.items() if n in used],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", made.OPSET)])
        model.ir_version = 9
        return model


class _Builder:
    """Makes workloads; with a ``cap``, every size is cut down to about that, so that a test is quick."""

    def __init__(self, suite: str, cap: int | None) -> None:
        self.suite = suite
        self.cap = cap
        self.made: list[Workload] = []

    def cut(self, n: int) -> int:
        """A size under the cap; odd sizes stay odd."""
        return n if self.cap is None else min(n, self.cap + n % 2)

    def groups(self, n: int, channels: int) -> int:
        """A number of groups that divides the channels."""
        return n if self.cap is None else math.gcd(n, channels)

    def add(self, name: str, inputs: Sequence[Input], body: Body) -> None:
        """One workload, with sizes as they are."""
        self.made.append(Workload(name, self.suite, tuple(inputs), body))

    def given(self, name: str, shapes: Sequence[Sequence[int]], body: Body) -> None:
        """One whose tensors all come with the call."""
        inputs = [Input("abcdefgh"[k], tuple(self.cut(d) for d in s)) for k, s in enumerate(shapes)]
        self.add(name, inputs, body)

    def linear(
        self,
        name: str,
        m: int,
        k: int,
        n: int,
        body: Body,
        bias: bool = True,
        extra: Sequence[tuple[int, ...]] = (),
        transposed: bool = True,
    ) -> None:
        """A matrix times constant weights, then ``body(ops, y, *extra)``; extra tensors are constant."""
        m, k, n = self.cut(m), self.cut(k), self.cut(n)
        inputs = [Input("x", (m, k)), Input("w", (n, k) if transposed else (k, n), True, k**-0.5)]
        inputs += [Input("bias", (n,), True)] if bias else []
        inputs += [Input(f"e{j}", tuple(self.cut(d) for d in s), True) for j, s in enumerate(extra)]

        def whole(o: Ops, x: Value, w: Value, *rest: Value) -> Value:
            y = o.linear(x, w, rest[0] if bias else None, transposed)
            return body(o, y, *rest[bias:])

        self.add(name, inputs, whole)

    def conv(
        self,
        name: str,
        x: tuple[int, ...],
        out: int,
        kernel: int,
        body: Body = lambda o, y: y,
        stride: int = 1,
        pad: int = 0,
        bias: bool = False,
        depthwise: bool = False,
        extra: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """A convolution with constant weights, then ``body(ops, y, *extra)``."""
        x, out, rank = tuple(self.cut(d) for d in x), self.cut(out), len(x) - 2
        w = (out, 1 if depthwise else x[1], *[kernel] * rank)
        inputs = [Input("x", x), Input("w", w, True, math.prod(w[1:]) ** -0.5)]
        inputs += [Input("bias", (out,), True)] if bias else []
        inputs += [Input(f"e{j}", tuple(self.cut(d) for d in s), True) for j, s in enumerate(extra)]

        def whole(o: Ops, x_: Value, w_: Value, *rest: Value) -> Value:
            y = o.conv(x_, w_, rest[0] if bias else None, stride, pad, out if depthwise else 1, rank)
            return body(o, y, *rest[bias:])

        self.add(name, inputs, whole)


def _peers(b: _Builder) -> None:
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


def _level_1(b: _Builder) -> None:
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


def _level_2(b: _Builder) -> None:
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


class _Network:
    """A network's constants in order, each asked for by shape while the body is written down."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []

    def weight(self, *shape: int, scale: float | None = None) -> int:
        """The position of a new constant; by default scaled so that activations keep their size."""
        scale = math.prod(shape[1:]) ** -0.5 if scale is None else scale
        self.inputs.append(Input(f"w{len(self.inputs)}", shape, True, scale))
        return len(self.inputs) - 1


Step = Callable[[Ops, Value, Sequence[Value]], Value]


def _conv_step(net: _Network, i: int, o: int, k: int, s: int = 1, groups: int = 1, act: str = "") -> Step:
    """Convolution with folded batch normalisation, and an activation."""
    w = net.weight(o, i // groups, k, k, scale=math.sqrt((2 if act else 1) / (i // groups * k * k)))
    b = net.weight(o, scale=0.1)

    def step(ops: Ops, x: Value, ws: Sequence[Value]) -> Value:
        y = ops.conv(x, ws[w], ws[b], s, k // 2, groups)
        return ops.relu(y) if act == "relu" else ops.clip(y, 0.0, 6.0) if act else y

    return step


def _classify(net: _Network, i: int, o: int) -> Step:
    w, b = net.weight(o, i), net.weight(o)
    return lambda ops, x, ws: ops.linear(ops.mean(x, (2, 3)), ws[w], ws[b])


def _resnet18(b: _Builder) -> None:
    net = _Network()
    stem = _conv_step(net, 3, b.cut(64), 7, 2, act="relu")
    blocks: list[tuple[Step, Step, Step | None]] = []
    i = b.cut(64)
    for full, s in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        o = b.cut(full)
        first, second = _conv_step(net, i, o, 3, s, act="relu"), _conv_step(net, o, o, 3)
        blocks.append((first, second, _conv_step(net, i, o, 1, s) if s != 1 or i != o else None))
        i = o
    head = _classify(net, i, b.cut(1000))

    def body(o: Ops, x: Value, *ws: Value) -> Value:
        x = o.max_pool(stem(o, x, ws), 3, 2, 1)
        for first, second, down in blocks:
            y = second(o, first(o, x, ws), ws)
            x = o.relu(o.add(y, x if down is None else down(o, x, ws)))
        return head(o, x, ws)

    size = b.cut(96) if b.cap is None else 4 * b.cap
    b.add("l3_09_resnet18", [Input("x", (1, 3, size, size)), *net.inputs], body)


def _mobilenet_v2(b: _Builder) -> None:
    net = _Network()
    stem = _conv_step(net, 3, b.cut(32), 3, 2, act="relu6")
    blocks: list[tuple[list[Step], bool]] = []
    i = b.cut(32)
    plan = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expand, full, repeats, first in plan:
        for k in range(repeats):
            o, h, s = b.cut(full), i * expand, first if k == 0 else 1
            steps = [_conv_step(net, i, h, 1, act="relu6")] if expand != 1 else []
            steps += [_conv_step(net, h, h, 3, s, h, "relu6"), _conv_step(net, h, o, 1)]
            blocks.append((steps, s == 1 and i == o))
            i = o
    last = _conv_step(net, i, b.cut(1280), 1, act="relu6")
    head = _classify(net, b.cut(1280), b.cut(1000))

    def body(o: Ops, x: Value, *ws: Value) -> Value:
        x = stem(o, x, ws)
        for steps, residual in blocks:
            y = x
            for step in steps:
                y = step(o, y, ws)
            x = o.add(y, x) if residual else y
        return head(o, last(o, x, ws), ws)

    size = b.cut(96) if b.cap is None else 4 * b.cap
    b.add("l3_20_mobilenet_v2", [Input("x", (1, 3, size, size)), *net.inputs], body)


def _mini_gpt_block(b: _Builder) -> None:
    t, d, heads = b.cut(128), b.cut(256), 4
    net = _Network()
    pairs = [(net.weight(n, k), net.weight(n)) for n, k in ((3 * d, d), (d, d), (4 * d, d), (d, 4 * d))]
    norms = [(net.weight(d), net.weight(d)) for _ in range(2)]

    def body(o: Ops, x: Value, *ws: Value) -> Value:
        def linear(k: int, value: Value) -> Value:
            return o.linear(value, ws[pairs[k][0]], ws[pairs[k][1]], rank=3)

        def norm(k: int, value: Value) -> Value:
            return o.layer_norm(value, ws[norms[k][0]], ws[norms[k][1]])

        def head(value: Value) -> Value:
            return o.transpose(o.reshape(value, (1, t, heads, d // heads)), (0, 2, 1, 3))

        q, k, v = (head(part) for part in o.split(linear(0, norm(0, x)), 3, 2))
        y = o.attention(q, k, v, (d // heads) ** -0.5, t)
        x = o.add(x, linear(1, o.reshape(o.transpose(y, (0, 2, 1, 3)), (1, t, d))))
        return o.add(x, linear(3, o.gelu(linear(2, norm(1, x)), tanh=True)))

    b.add("l3_44_mini_gpt_block", [Input("x", (1, t, d)), *net.inputs], body)


def suite(name: str, cap: int | None = None) -> dict[str, Workload]:
    """The workloads of a suite by name; ``cap`` cuts sizes down. Raises ValueError for an unknown suite."""
    if name not in SUITES:
        raise ValueError(f"suite: expected one of {', '.join(SUITES)}; got {name!r}")
    b = _Builder(name, cap)
    if name == "peers":
        _peers(b)
    else:
        for part in (_level_1, _level_2, _resnet18, _mobilenet_v2, _mini_gpt_block):
            part(b)
    return {w.name: w for w in b.made}
