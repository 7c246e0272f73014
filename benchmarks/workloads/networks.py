"""Whole networks (level 3 of KernelBench's problem list)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarks.backends import Ops, Value
from benchmarks.workloads.builder import Builder
from benchmarks.workloads.workload import Input

MOBILE_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Of MobileNet v2: expansion, output channels, repetitions, stride of the first."""


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


def add_resnet18(b: Builder) -> None:
    """ResNet-18, batch normalisation folded in."""
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


def add_mobilenet_v2(b: Builder) -> None:
    """MobileNet v2, batch normalisation folded in."""
    net = _Network()
    stem = _conv_step(net, 3, b.cut(32), 3, 2, act="relu6")
    blocks: list[tuple[list[Step], bool]] = []
    i = b.cut(32)
    for expand, full, repeats, first in MOBILE_BLOCKS:
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


def add_mini_gpt_block(b: Builder) -> None:
    """A pre-norm transformer block with causal attention."""
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
