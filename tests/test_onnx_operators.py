"""Single operators with odd attributes, in old and new operator sets, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tilewright.graph import evaluate  # noqa: E402
from tilewright.graph.onnx import import_onnx  # noqa: E402


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CASES: list[tuple[str, str, dict[str, Any], dict[str, Any], int, dict[str, Any]]] = [
    # operator, inputs, arrays of graph inputs, constants, operator set, attributes
    ("Conv", "x w b", {"x": random(1, 4, 7, 9)}, {"w": random(6, 2, 3, 2), "b": random(6)}, 17,
     {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 3]}),
    ("Conv", "x w", {"x": random(2, 3, 8)}, {"w": random(4, 3, 3)}, 11,
     {"auto_pad": "SAME_LOWER", "strides": [2]}),
    ("Conv", "x w", {"x": random(1, 2, 5, 5, 5)}, {"w": random(3, 2, 2, 2, 2)}, 11, {"auto_pad": "VALID"}),
    ("ConvTranspose", "x w b", {"x": random(1, 4, 5, 4)}, {"w": random(4, 3, 3, 4), "b": random(6)}, 17,
     {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 2], "output_padding": [1, 2]}),
    ("ConvTranspose", "x w", {"x": random(1, 2, 5)}, {"w": random(2, 3, 3)}, 11,
     {"strides": [2], "dilations": [2]}),
    ("ConvTranspose", "x w", {"x": random(1, 2, 5)}, {"w": random(2, 3, 3)}, 11,
     {"strides": [2], "output_shape": [10]}),
    ("ConvTranspose", "x w", {"x": random(1, 2, 5)}, {"w": random(2, 3, 4)}, 11,
     {"strides": [2], "auto_pad": "SAME_UPPER"}),
    ("MaxPool", "x", {"x": random(1, 2, 7, 8)}, {}, 12,
     {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    ("MaxPool", "x", {"x": random(1, 2, 9)}, {}, 12, {"kernel_shape": [3], "dilations": [2], "pads": [1, 2]}),
    ("AveragePool", "x", {"x": random(1, 2, 7, 7)}, {}, 11,
     {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 1], "count_include_pad": 1}),
    ("AveragePool", "x", {"x": random(1, 2, 7, 7)}, {}, 11,
     {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"}),
    ("LpPool", "x", {"x": random(1, 2, 7)}, {}, 11, {"kernel_shape": [3], "p": 3}),
    ("Resize", "x _ s", {"x": random(1, 2, 4, 5)}, {"s": np.array([1, 1, 2, 3], np.float32)}, 13,
     {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ("Resize", "x _ _ z", {"x": random(1, 1, 7, 5)}, {"z": np.array([1, 1, 3, 11])}, 13,
     {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.5}),
    ("Resize", "x _ _ z", {"x": random(1, 1, 7, 5)}, {"z": np.array([1, 1, 10, 4])}, 13,
     {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}),
    ("Resize", "x _ _ z", {"x": random(1, 1, 7, 5)}, {"z": np.array([1, 1, 10, 4])}, 13,
     {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    ("Upsample", "x s", {"x": random(1, 2, 3, 4)}, {"s": np.array([1, 1, 2, 2], np.float32)}, 9,
     {"mode": "linear"}),
    ("Softmax", "x", {"x": random(2, 3, 4)}, {}, 11, {"axis": 1}),
    ("LogSoftmax", "x", {"x": random(2, 3, 4)}, {}, 13, {"axis": 1}),
    ("Gemm", "a b c", {"a": random(4, 3), "b": random(5, 4)}, {"c": random(5)}, 13,
     {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Pad", "x p v", {"x": random(2, 3)}, {"p": np.array([1, -1, 0, 2]), "v": np.float32(7)}, 13, {}),
    ("ReduceSum", "x", {"x": random(2, 3)}, {}, 13, {"noop_with_empty_axes": 1}),
    ("ReduceMean", "x", {"x": random(2, 3, 4)}, {}, 13, {"axes": [-1, 0], "keepdims": 0}),
    ("ReduceMean", "x a", {"x": random(2, 3, 4)}, {"a": np.array([1])}, 18, {}),
    ("Split", "x", {"x": random(6, 2)}, {}, 11, {"axis": 0, "split": [1, 5]}),
    ("Slice", "x", {"x": random(6, 5)}, {}, 9, {"starts": [1, -2], "ends": [9999, -1], "axes": [0, 1]}),
    ("Unsqueeze", "x", {"x": random(2, 3)}, {}, 11, {"axes": [0, -1]}),
    ("Squeeze", "x a", {"x": random(1, 2, 1)}, {"a": np.array([-1])}, 13, {}),
    ("Clip", "x", {"x": random(9)}, {}, 6, {"min": -0.5}),
    ("Clip", "x _ h", {"x": random(9)}, {"h": np.float32(0.5)}, 13, {}),
    ("InstanceNormalization", "x s b", {"x": random(2, 3, 4)}, {"s": random(3), "b": random(3)}, 17, {}),
    ("LayerNormalization", "x s b", {"x": random(2, 3, 4)}, {"s": random(3, 4), "b": random(3, 4)}, 17,
     {"axis": 1}),
    ("LRN", "x", {"x": random(2, 7, 3, 3)}, {}, 13, {"size": 3, "alpha": 0.3}),
    ("PRelu", "x s", {"x": random(2, 3, 4)}, {"s": random(3, 1)}, 16, {}),
    ("GatherND", "x i", {"x": random(2, 3, 4)}, {"i": np.array([[1], [-2]])}, 13, {"batch_dims": 1}),
    ("DepthToSpace", "x", {"x": random(1, 8, 2, 3)}, {}, 13, {"blocksize": 2, "mode": "CRD"}),
    ("CumSum", "x a", {"x": random(3, 4)}, {"a": np.int64(1)}, 14, {"exclusive": 1, "reverse": 1}),
    ("Einsum", "a b", {"a": random(2, 3, 4), "b": random(2, 4)}, {}, 13, {"equation": "bij,bj->ib"}),
    ("BatchNormalization", "x s b m v", {"x": random(2, 3, 4)},
     {"s": random(3), "b": random(3), "m": random(3), "v": np.abs(random(3)) + 1}, 15, {"epsilon": 0.01}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)])
def test_operator_agrees_with_onnxruntime(case: Any) -> None:
    """The oracle of the imported model and ONNX Runtime give the same."""
    kind, names, arrays, constants, opset, attributes = case
    outputs = ["y", "z"] if kind == "Split" else ["y"]
    graph = helper.make_graph(
        [helper.make_node(kind, [n.replace("_", "") for n in names.split()], outputs, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(evaluate(import_onnx(model), arrays), session.run(None, arrays), strict=True):
        value: Any = got
        assert value.shape == want.shape
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-5)
