"""Importing ONNX models: folding, branches and functions, binding of shapes, and every refusal."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tilewright.graph import GraphError, evaluate, passes  # noqa: E402
from tilewright.graph.onnx import (  # noqa: E402
    ImportFailure,
    UnsupportedError,
    import_onnx,
    supported_operators,
)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_model(
    nodes: Sequence[Any],
    inputs: dict[str, Any],
    outputs: Sequence[str],
    constants: dict[str, Any] | None = None,
    opset: int = 17,
    **extra: Any,
) -> Any:
    """A model; ``inputs`` maps names to shapes, or to (type, shape)."""
    values = []
    for name, spec in inputs.items():
        kind, shape = spec if isinstance(spec, tuple) and isinstance(spec[1], list) else (FLOAT, spec)
        values.append(helper.make_tensor_value_info(name, kind, shape))
    graph = helper.make_graph(
        nodes,
        "g",
        values,
        [helper.make_tensor_value_info(o, 0, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    for o in graph.output:
        o.ClearField("type")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **extra)


def node(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """A node from space-separated names; ``_`` is an absent input."""
    return helper.make_node(kind, [i.replace("_", "") for i in inputs.split()], outputs.split(), **attributes)


def test_shape_arithmetic_folds_away() -> None:
    """Shape, Gather, Mul, Concat and Reshape of a dynamic input leave one view; empty pieces do no harm."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Gather", "s one", "c"),
        node("Mul", "n c", "nc"),
        node("Unsqueeze", "nc axes", "u"),
        node("Slice", "s two two", "nothing"),
        node("Concat", "u nothing minus", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    constants = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "two": np.array([2]),
        "axes": np.array([0]),
        "minus": np.array([-1]),
    }
    graph = import_onnx(make_model(nodes, {"x": ["n", 3, "w"]}, ["y"], constants), {"x": (2, 3, 5)})
    assert graph.types[graph.outputs[0]].shape == (6, 5)
    assert passes.count(graph) == {"reductions": 0, "maps": 0, "views": 1, "constant_bytes": 0}


def test_outputs_that_are_inputs_or_constants() -> None:
    """They keep their public names."""
    model = make_model([node("Identity", "x")], {"x": [2]}, ["y", "k", "x"], {"k": random(3)})
    graph = import_onnx(model)
    assert graph.output_names == ["y", "k", "x"]
    assert not graph.nodes
    same, fixed, again = evaluate(graph, {"x": random(2)})
    np.testing.assert_array_equal(np.asarray(same), np.asarray(again))
    np.testing.assert_array_equal(np.asarray(fixed, np.float32), random(3))


def test_initializers_may_be_inputs_too() -> None:
    """Before IR version 4 every initializer was also an input."""
    model = make_model([node("Add", "x w")], {"x": [2], "w": [2]}, ["y"], {"w": random(2)})
    assert import_onnx(model).inputs == ["x"]


def branch(value: float) -> Any:
    """A subgraph that adds ``value`` to the outer x."""
    constant = helper.make_node("Constant", [], ["k"], value_float=value)
    return helper.make_graph(
        [constant, node("Add", "x k", "out")], "b", [], [helper.make_tensor_value_info("out", FLOAT, [2])]
    )


def test_constant_condition_takes_its_branch() -> None:
    """The branch sees the names around it; a computed condition is refused."""
    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch(1.0), else_branch=branch(2.0))
    for condition, added in ((True, 1), (False, 2)):
        model = make_model([choose], {"x": [2]}, ["y"], {"c": np.array(condition)})
        got: Any = evaluate(import_onnx(model), {"x": random(2)})[0]
        np.testing.assert_allclose(got, random(2) + added, rtol=1e-6)
    with pytest.raises(UnsupportedError, match=r"\(If, .*input 0 \(condition\) must be a constant; .*--value c=…"):
        import_onnx(make_model([choose], {"x": [2], "c": (BOOL, [])}, ["y"]))


def test_functions_are_inlined() -> None:
    """Functions of the model, and operators that the standard defines by others."""
    body = [node("Mul", "a a", "s"), node("Add", "s a", "r")]
    function = helper.make_function("custom", "SquarePlus", ["a"], ["r"], body, [helper.make_opsetid("", 17)])
    call = helper.make_node("SquarePlus", ["x"], ["y"], domain="custom")
    model = make_model([call], {"x": [3]}, ["y"], functions=[function])
    model.opset_import.append(helper.make_opsetid("custom", 1))
    got: Any = evaluate(import_onnx(model), {"x": random(3)})[0]
    np.testing.assert_allclose(got, random(3) ** 2 + random(3), rtol=1e-6)
    crop = make_model([node("CenterCropPad", "x s", axes=[0])], {"x": [4, 3]}, ["y"], {"s": np.array([2])}, 18)
    got = evaluate(import_onnx(crop), {"x": random(4, 3)})[0]
    np.testing.assert_allclose(got, random(4, 3)[1:3], rtol=1e-6)


def test_every_unsupported_node_is_named() -> None:
    """One error lists all, with name, operator, domain and reason, but not the nodes that depend on them."""
    nodes = [
        helper.make_node("Loop", ["_", "_", "x"], ["a"], name="again", body=branch(0.0)),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("Fancy", ["b"], ["c"], name="odd", domain="com.example"),
        helper.make_node("Gelu", ["x"], ["d"], name="rough", approximate="sine"),
        helper.make_node("Reshape", ["x", "s"], ["e"]),
        helper.make_node("Add", ["c", "d"], ["y"], name="sum"),
    ]
    model = make_model(nodes, {"x": [2], "s": (INT64, [1])}, ["y", "e"], opset=20)
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    assert isinstance(caught.value, GraphError)
    assert [n.split()[0] for n in caught.value.nodes] == ["again", "odd", "rough", "Reshape_4"]
    text = str(caught.value)
    assert "4 unsupported node(s)" in text
    assert "odd (Fancy, domain 'com.example'): the operator is not supported" in text
    assert "attribute approximate: expected 'none' or 'tanh'; got 'sine'" in text
    assert "input 1 (shape) must be a constant; it is computed at run time" in text


def test_unused_extra_outputs_are_ignored_and_used_ones_refused() -> None:
    """Training outputs have no meaning here."""
    vectors = {n: np.ones(3, np.float32) for n in "sbmv"}
    model = make_model(
        [node("BatchNormalization", "x s b m v", "y m2 v2", training_mode=1)],
        {"x": [2, 3, 4]},
        ["y"],
        vectors,
    )
    with pytest.raises(UnsupportedError, match="only inference is supported"):
        import_onnx(model)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, r"'x' has dynamic dimensions \[batch, 3, \?\]: bind them with --shape x=1,3,N; input 'z' has"),
        ({"x": (1, 3)}, r"input 'x': expected a shape of 3 dimensions \[batch, 3, \?\]; got \(1, 3\)"),
        ({"x": (1, 4, 5)}, r"input 'x': expected a shape that fits \[batch, 3, \?\]; got \(1, 4, 5\)"),
        ({"x": (1, 3, 0)}, r"input 'x': expected sizes of at least 1; got \(1, 3, 0\)"),
        ({"w": (1,)}, r"shape for unknown input 'w': the model's inputs are x, z"),
    ],
)  # fmt: skip
def test_shapes_must_be_bound(shapes: Any, message: str) -> None:
    """The error names the input, its dimensions and what to write."""
    model = make_model([node("Relu", "x")], {"x": ["batch", 3, None], "z": ["batch"]}, ["y"])
    with pytest.raises(ImportFailure, match=message):
        import_onnx(model, shapes)


def test_symbols_are_shared_between_inputs() -> None:
    """A named size given for one input holds for the others."""
    model = make_model([node("Add", "x z")], {"x": ["n", 3], "z": ["n", 1]}, ["y"])
    graph = import_onnx(model, {"x": (5, 3)})
    assert graph.types["z"].shape == (5, 1)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.STRING, "string"),
    ],
)
def test_other_data_types_are_refused(kind: int, text: str) -> None:
    """By the name of the input."""
    with pytest.raises(ImportFailure, match=f"input 'x': data type {text} is not supported"):
        import_onnx(make_model([node("Relu", "x")], {"x": (kind, [2])}, ["y"]))


def test_sequences_and_half_constants_are_refused() -> None:
    """A sequence input, and a float16 weight."""
    model = make_model([node("Relu", "x")], {"x": [2]}, ["y"])
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, [2]))
    with pytest.raises(ImportFailure, match="input 'x': expected a tensor; got sequence"):
        import_onnx(model)
    model = make_model([node("Add", "x w")], {"x": [2]}, ["y"], {"w": np.ones(2, np.float16)})
    with pytest.raises(UnsupportedError, match="w: data type float16 is not supported"):
        import_onnx(model)


def test_broken_files(tmp_path: Path) -> None:
    """Missing, a folder, empty, not protobuf, truncated, and without a graph."""
    path = tmp_path / "model.onnx"
    with pytest.raises(ImportFailure, match="cannot be read: No such file"):
        import_onnx(path)
    with pytest.raises(ImportFailure, match="cannot be read: Is a directory"):
        import_onnx(tmp_path)
    data = make_model([node("Add", "x w")], {"x": [64]}, ["y"], {"w": random(64)}).SerializeToString()
    for content, message in (
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n not a model", "not an ONNX model"),
        (data[: len(data) // 2], "not an ONNX model, or truncated"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), r"not an ONNX model \(it has no graph\)"),
    ):
        path.write_bytes(content)
        with pytest.raises(ImportFailure, match=message) as caught:
            import_onnx(path)
        assert "\n" not in str(caught.value)


def test_ill_formed_graphs() -> None:
    """Undefined tensors, missing outputs, damaged weights."""
    with pytest.raises(ImportFailure, match="reads 'ghost', which nothing before it defines"):
        import_onnx(make_model([node("Add", "x ghost")], {"x": [2]}, ["y"]))
    with pytest.raises(ImportFailure, match="output 'z' is not computed by any node"):
        import_onnx(make_model([node("Relu", "x")], {"x": [2]}, ["z"]))
    with pytest.raises(ImportFailure, match="the graph has no outputs"):
        import_onnx(make_model([node("Relu", "x")], {"x": [2]}, []))
    model = make_model([node("Add", "x w")], {"x": [2]}, ["y"], {"w": random(2)})
    model.graph.initializer[0].raw_data = b"\0\0\0"
    with pytest.raises(ImportFailure, match="initializer 'w' cannot be read"):
        import_onnx(model)


def external_model(tmp_path: Path, location: str, length: int = 8) -> Path:
    """A model whose weight lies in another file."""
    model = make_model([node("Add", "x w")], {"x": [2]}, ["y"], {"w": np.zeros(2, np.float32)})
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "4"), ("length", str(length))):
        weight.external_data.add(key=key, value=value)
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_external_data(tmp_path: Path) -> None:
    """Read at its offset from the model's own folder, and from nowhere else."""
    path = external_model(tmp_path, "weights.bin")
    with pytest.raises(ImportFailure, match=r"external data of 'w': cannot read 'weights.bin': No such file"):
        import_onnx(path)
    data = np.array([9, 1, 2], np.float32).tobytes()
    (path.parent / "weights.bin").write_bytes(data)
    got: Any = evaluate(import_onnx(path), {"x": np.zeros(2, np.float32)})[0]
    np.testing.assert_array_equal(got, [1, 2])
    with pytest.raises(ImportFailure, match="import the model by its path"):
        import_onnx(onnx.load(path, load_external_data=False))
    with pytest.raises(ImportFailure, match="is truncated: 'w' needs 80 bytes at 4; got 8"):
        import_onnx(external_model(tmp_path, "weights.bin", 80))
    outside = tmp_path / "secret.bin"
    outside.write_bytes(data)
    os.symlink(outside, path.parent / "link.bin")
    for location in ("../secret.bin", str(outside), "link.bin", "", "a/../../secret.bin"):
        with pytest.raises(ImportFailure, match="must lie in the model's folder"):
            import_onnx(external_model(tmp_path, location))


def test_without_the_onnx_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "onnx":
            raise ImportError("No module named 'onnx'")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install tilewright\[onnx\]"):
        import_onnx("model.onnx")


def test_supported_operators_are_listed() -> None:
    """For documentation and error texts."""
    names = supported_operators()
    assert names == sorted(set(names))
    assert {"Conv", "If", "MatMul", "NonZero"} <= set(names)
    assert len(names) > 130


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (node("Add", "x"), r"expected input 1 \(B\); it is absent"),
        (node("Concat", "x x"), "expected attribute axis; it is absent"),
        (node("Softmax", "x", axis=0.5), "attribute axis: expected type 2 of the standard; got 1"),
        (node("Softmax", "x", axis=5), r"softmax: expected an axis of -2..1; got 5"),
        (node("Split", "x", num_outputs=9), r"num_outputs: expected 1..2; got 9"),
        (node("Cast", "x", to=99), "expected a data type of ONNX; got 99"),
        (node("Cast", "x", to=10), "data type: expected one of float32, .*; got 'float16'"),
        (node("EyeLike", "k"), r"expected a matrix; got shape \(1,\)"),
        (node("BitwiseNot", "x"), "bitnot: expected integers; got float32"),
        (node("Relu", "x", "y c"), "output 'c' is used and has no translation"),
        (node("TopK", "x k", "y a", axis=1), r"top_k: expected k of 1..3; got 7"),
        (node("ScatterElements", "x i x"), r"indices: expected positions in \(2, 3\); got \[\[7\]\]"),
        (node("NonZero", "x"), "its inputs must be a constant"),
    ],
)
def test_malformed_nodes_are_refused(made: Any, message: str) -> None:
    """By the attribute or input, never with a raw Python error."""
    constants = {"k": np.array([7]), "i": np.array([[7]])}
    with pytest.raises(UnsupportedError, match=message):
        import_onnx(make_model([made], {"x": [2, 3]}, ["y"], constants, opset=18))
