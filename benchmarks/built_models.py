"""Well-known networks as ONNX models with seeded random weights, so that nothing has to be downloaded.

The architectures are the published ones at their usual sizes: ResNet-18 (He et al. 2015), MobileNetV2 (Sandler et al.
2018) and BERT-base (Devlin et al. 2018, from the sum of the embeddings on). Nodes are those that an export writes before
anyone has optimised it: convolutions and their batch normalisations are separate, projections are a product and an
addition, GELU is written with ``Erf``. Weights are scaled by their fan-in and the statistics of normalisations are
neither 0 nor 1, so that activations keep an ordinary size and nothing folds away by accident.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads.networks import MOBILE_BLOCKS

OPSET = 17
IR_VERSION = 8
Shape = tuple[int, ...]


@dataclass
class Net:
    """An ONNX graph under construction. Methods append nodes and return the name of the result."""

    name: str
    rng: np.random.Generator
    helper: Any = field(default_factory=lambda: importlib.import_module("onnx.helper"))
    numpy_helper: Any = field(default_factory=lambda: importlib.import_module("onnx.numpy_helper"))
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    inputs: list[tuple[str, Shape]] = field(default_factory=list)

    def input(self, name: str, shape: Shape) -> str:
        """A float32 input."""
        self.inputs.append((name, shape))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        out = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def weight(self, values: Any) -> str:
        """An initialiser."""
        name = f"w{len(self.weights)}"
        array = np.asarray(values)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        self.weights.append(self.numpy_helper.from_array(array, name))
        return name

    def normal(self, shape: Shape, scale: float) -> str:
        """Normal weights."""
        return self.weight(self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale))

    def between(self, low: float, high: float, n: int) -> Any:
        """``n`` uniform numbers."""
        return self.rng.uniform(low, high, n)

    def conv(self, x: str, ci: int, co: int, k: int, stride: int = 1, groups: int = 1, gain: float = 2.0) -> str:
        """A convolution without bias and its batch normalisation. ``gain`` 2 keeps the size of activations that a ReLU
        halves, 1 that of those that nothing follows."""
        fan_in = ci // groups * k * k
        w = self.normal((co, ci // groups, k, k), (gain / fan_in) ** 0.5)
        y = self.op("Conv", x, w, kernel_shape=[k, k], strides=[stride] * 2, pads=[k // 2] * 4, group=groups)
        scale, shift = self.between(0.8, 1.2, co), self.between(-0.2, 0.2, co)
        mean, variance = self.between(-0.1, 0.1, co), self.between(0.8, 1.2, co)
        return self.op("BatchNormalization", y, *(self.weight(a) for a in (scale, shift, mean, variance)), epsilon=1e-5)

    def dense(self, x: str, ci: int, co: int) -> str:
        """A product with weights and an added bias."""
        w, b = self.normal((ci, co), ci**-0.5), self.normal((co,), 0.02)
        return self.op("Add", self.op("MatMul", x, w), b)

    def classify(self, x: str, channels: int, classes: int) -> str:
        """Pooling over the image and a fully connected layer."""
        pooled = self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)
        w, b = self.normal((classes, channels), channels**-0.5), self.normal((classes,), 0.02)
        return self.op("Gemm", pooled, w, b, transB=1)

    def model(self, output: str, shape: Shape) -> Any:
        """The ``ModelProto``; its output is called ``y``."""
        helper, float32 = self.helper, importlib.import_module("onnx").TensorProto.FLOAT
        self.nodes.append(helper.make_node("Identity", [output], ["y"], name="result"))
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info(n, float32, s) for n, s in self.inputs],
            [helper.make_tensor_value_info("y", float32, shape)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        return model


def resnet18(image: int = 224, width: int = 64, classes: int = 1000) -> Any:
    """ResNet-18: a 7x7 stem and four stages of two basic blocks."""
    net = Net("resnet18", np.random.default_rng(18))
    x = net.op("Relu", net.conv(net.input("x", (1, 3, image, image)), 3, width, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for stage in range(4):
        co = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = net.op("Relu", net.conv(x, channels, co, 3, stride))
            y = net.conv(y, co, co, 3, gain=1.0)
            short = x if stride == 1 and channels == co else net.conv(x, channels, co, 1, stride, gain=1.0)
            x = net.op("Relu", net.op("Add", y, short))
            channels = co
    return net.model(net.classify(x, channels, classes), (1, classes))


def mobilenet_v2(
    image: int = 224, last: int = 1280, classes: int = 1000, blocks: Sequence[Shape] = MOBILE_BLOCKS
) -> Any:
    """MobileNetV2: inverted residuals with ReLU6 and linear bottlenecks."""
    net = Net("mobilenet_v2", np.random.default_rng(2))
    low, high = net.weight(np.float32(0)), net.weight(np.float32(6))

    def relu6(x: str) -> str:
        return net.op("Clip", x, low, high)

    x = relu6(net.conv(net.input("x", (1, 3, image, image)), 3, 32, 3, 2))
    channels = 32
    for expand, co, repeat, first_stride in blocks:
        for k in range(repeat):
            stride, wide = (first_stride if k == 0 else 1), channels * expand
            y = relu6(net.conv(x, channels, wide, 1)) if expand > 1 else x
            y = relu6(net.conv(y, wide, wide, 3, stride, groups=wide))
            y = net.conv(y, wide, co, 1, gain=1.0)
            x = net.op("Add", x, y) if stride == 1 and channels == co else y
            channels = co
    x = relu6(net.conv(x, channels, last, 1))
    return net.model(net.classify(x, last, classes), (1, classes))


def bert_base(length: int = 128, layers: int = 12, heads: int = 12, head: int = 64) -> Any:
    """The encoder of BERT on the sum of the embeddings ``x`` and an additive attention mask; post-layer normalisation,
    exact GELU."""
    width, inner = heads * head, 4 * heads * head
    net = Net("bert_base", np.random.default_rng(12))
    x, mask = net.input("x", (1, length, width)), net.input("mask", (1, 1, 1, length))
    split, join = net.weight(np.asarray([0, 0, heads, head])), net.weight(np.asarray([0, 0, width]))
    root, one, half = net.weight(np.float32(head**0.5)), net.weight(np.float32(1)), net.weight(np.float32(0.5))
    sqrt2 = net.weight(np.float32(2**0.5))

    def norm(t: str) -> str:
        scale, shift = net.weight(net.between(0.8, 1.2, width)), net.weight(net.between(-0.2, 0.2, width))
        return net.op("LayerNormalization", t, scale, shift, axis=-1, epsilon=1e-12)

    def in_heads(t: str, order: Sequence[int]) -> str:
        return net.op("Transpose", net.op("Reshape", net.dense(t, width, width), split), perm=list(order))

    x = norm(x)
    for _ in range(layers):
        q, k, v = (in_heads(x, order) for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = net.op("Add", net.op("Div", net.op("MatMul", q, k), root), mask)
        context = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
        context = net.op("Reshape", net.op("Transpose", context, perm=[0, 2, 1, 3]), join)
        x = norm(net.op("Add", net.dense(context, width, width), x))
        h = net.dense(x, width, inner)
        gelu = net.op("Add", net.op("Erf", net.op("Div", h, sqrt2)), one)
        gelu = net.op("Mul", net.op("Mul", h, gelu), half)
        x = norm(net.op("Add", net.dense(gelu, inner, width), x))
    return net.model(x, (1, length, width))


BUILT: dict[str, Callable[[], Any]] = {"resnet18": resnet18, "mobilenet_v2": mobilenet_v2, "bert_base": bert_base}


def built_path(name: str) -> Path:
    """The file of a built model, written to the user's folder for temporary files on first use (BERT-base has 340 MB).
    Its name holds the hash of this module, so an edited architecture is written anew."""
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"tilewright-models-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}-{version}.onnx"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(BUILT[name]().SerializeToString())
        unfinished.replace(path)
    return path
