"""Names defined once (fault 11); inputs with constant values, branches that nobody can decide, DequantizeLinear of constants and NumPy
scalars (fault 27)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

import tilewright  # noqa: E402
from test_cli import call, refused  # noqa: E402
from test_onnx_import import BOOL, FLOAT, INT64, make_model, node, random  # noqa: E402
from tilewright.graph import GraphError, evaluate  # noqa: E402
from tilewright.graph.onnx import ImportFailure, UnsupportedError, import_onnx  # noqa: E402

pytestmark = pytest.mark.workers

ONE = tilewright.Target.host(threads=1)


def run_both(model: Any, **arrays: Any) -> tuple[Any, Any]:
    """The first output of the graph's meaning, and of ONNX Runtime."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return evaluate(import_onnx(model), arrays)[0], session.run(None, arrays)[0]


# Names defined once


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", "x"), node("Neg", "x")], "'y' is defined twice: by node Relu_0 and by node Neg_1"),
        ([node("Relu", "x", "x"), node("Neg", "x")], "'x' is defined twice: by an input and by node Relu_0"),
        ([node("Neg", "x", "w"), node("Add", "x w")], "'w' is defined twice: by an initializer and by node Neg_0"),
        ([node("Split", "x", "y y", axis=0)], "'y' is defined twice: by node Split_0 and by node Split_0"),
    ],
)
def test_an_output_defined_twice(nodes: Any, message: str) -> None:
    """By another node, the same node, an input, an initializer."""
    with pytest.raises(ImportFailure, match=message):
        import_onnx(make_model(nodes, {"x": [2]}, ["y"], {"w": random(2)}))


def test_an_initializer_or_input_defined_twice() -> None:
    """With other values, which would win?"""
    model = make_model([node("Add", "x w")], {"x": [2]}, ["y"], {"w": random(2)})
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    with pytest.raises(ImportFailure, match="'w' is defined twice: by an initializer and by an initializer"):
        import_onnx(model)
    model = make_model([node("Relu", "x")], {"x": [2]}, ["y"])
    model.graph.input.append(helper.make_tensor_value_info("x", FLOAT, [3]))
    with pytest.raises(ImportFailure, match="input 'x' is defined twice"):
        import_onnx(model)


def test_names_in_functions_and_branches_are_defined_once_too() -> None:
    """A branch may not redefine what it sees; the two branches may share names."""
    f = helper.make_function(
        "custom", "F", ["a"], ["r"], [node("Neg", "a", "r"), node("Relu", "a", "r")], [helper.make_opsetid("", 17)]
    )
    model = make_model([helper.make_node("F", ["x"], ["y"], domain="custom")], {"x": [2]}, ["y"], functions=[f])
    model.opset_import.append(helper.make_opsetid("custom", 1))
    with pytest.raises(ImportFailure, match="'r' is defined twice"):
        import_onnx(model)
    body = helper.make_graph([node("Neg", "x", "k")], "b", [], [helper.make_tensor_value_info("k", FLOAT, [2])])
    choose = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    constants = {"c": np.array(True)}
    np.testing.assert_array_equal(
        evaluate(import_onnx(make_model([choose], {"x": [2]}, ["y"], constants)), {"x": random(2)})[0], -random(2)
    )
    with pytest.raises(ImportFailure, match="'k' is defined twice: by the graph around it and by node If_1/Neg_0"):
        import_onnx(make_model([node("Relu", "x", "k"), choose], {"x": [2]}, ["y"], constants))


# Inputs with values


def body(*nodes: Any) -> Any:
    """A branch whose output is ``out``."""
    return helper.make_graph(list(nodes), "b", [], [helper.make_tensor_value_info("out", FLOAT, [2])])


def speech(fast: Any = None, slow: Any = None, sr: Any = (INT64, [])) -> Any:
    """A model that branches on a sampling rate: ``x + 1`` at 16000 and ``-x`` elsewhere."""
    nodes = [
        node("Equal", "sr rate", "c"),
        helper.make_node(
            "If", ["c"], ["y"], name="choose",
            then_branch=fast or body(node("Add", "x one", "out")), else_branch=slow or body(node("Neg", "x", "out")),
        ),
    ]  # fmt: skip
    return make_model(nodes, {"x": [2], "sr": sr}, ["y"], {"rate": np.int64(16000), "one": np.float32(1)})


@pytest.mark.parametrize("value", [16000, np.int64(16000), [16000], np.array(16000), 16000.0])
def test_a_value_decides_a_branch(value: Any) -> None:
    """The input is none any more."""
    graph = import_onnx(speech(), values={"sr": value})
    assert graph.inputs == ["x"]
    got: Any = evaluate(graph, {"x": random(2)})[0]
    np.testing.assert_allclose(got, random(2) + 1)
    other: Any = evaluate(import_onnx(speech(), values={"sr": 8000}), {"x": random(2)})[0]
    np.testing.assert_array_equal(other, -random(2))


def test_values_of_every_kind() -> None:
    """Shapes, axes, lists for several dimensions, booleans; an initializer that is an input too is a default."""
    model = make_model([node("Reshape", "x s")], {"x": [2, 3], "s": (INT64, ["n"])}, ["y"])
    assert import_onnx(model, values={"s": [3, 2]}).types["reshape"].shape == (3, 2)
    model = make_model([node("ReduceSum", "x a", keepdims=0)], {"x": [2, 3], "a": (INT64, [1])}, ["y"])
    got: Any = evaluate(import_onnx(model, values={"a": 1}), {"x": random(2, 3)})[0]
    np.testing.assert_allclose(got, random(2, 3).sum(1), rtol=1e-6)
    model = make_model([node("Add", "x k")], {"x": [2, 3], "k": [2, 3]}, ["y"])
    for flat in (np.arange(6), np.arange(6, dtype=np.float32).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]):
        got = evaluate(import_onnx(model, values={"k": flat}), {"x": random(2, 3)})[0]
        np.testing.assert_allclose(got, random(2, 3) + np.arange(6).reshape(2, 3), rtol=1e-6)
    model = make_model([node("Where", "c x k")], {"x": [2], "c": (BOOL, []), "k": [2]}, ["y"], {"k": random(2)})
    np.testing.assert_array_equal(
        evaluate(import_onnx(model, values={"c": False, "k": [7, 8]}), {"x": random(2)})[0], [7, 8]
    )
    np.testing.assert_array_equal(evaluate(import_onnx(model, values={"c": False}), {"x": random(2)})[0], random(2))


def test_a_value_fixes_a_named_dimension() -> None:
    """As a shape does."""
    model = make_model([node("Add", "x k")], {"x": ["n"], "k": ["n"]}, ["y"])
    assert import_onnx(model, values={"k": [1.0, 2.0, 3.0]}).types["x"].shape == (3,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1}, "value for unknown input 'rate': the model's inputs are x, sr"),
        ({"sr": 1.5}, r"value of input 'sr': expected numbers of type int64; got 1.5"),
        ({"sr": [1, 2]}, r"value of input 'sr': expected the shape \[\]; got \(2,\)"),
        ({"sr": "fast"}, "value of input 'sr': expected numbers; got 'fast'"),
        ({"sr": 1e30}, "value of input 'sr': expected numbers of type int64"),
        ({"x": [1, 2, 3]}, r"input 'x': expected a shape that fits \[2\]; got \(3,\)"),
        ({"x": 1e300}, "value of input 'x'"),
    ],
)
def test_wrong_values_are_refused(values: Any, message: str) -> None:
    """With what was expected."""
    with pytest.raises(ImportFailure, match=message):
        import_onnx(speech(), values=values)


def test_values_and_shapes_of_a_graph_are_refused() -> None:
    """They would change nothing."""
    graph = import_onnx(speech(), values={"sr": 1})
    with pytest.raises(GraphError, match="the inputs of a graph are bound already"):
        tilewright.load(graph, values={"sr": 1})
    with pytest.raises(GraphError, match="the inputs of a graph are bound already"):
        tilewright.compile(graph, ONE, shapes={"x": (3,)})


def test_an_undecided_branch_names_what_to_give_and_what_it_cannot_do() -> None:
    """One error: the branch with the input that decides it, and the nodes of both sides that have no translation."""
    fast, slow = body(node("Det", "x", "out")), body(node("Fancy", "x", "h"), node("Neg", "h", "out"))
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(speech(fast, slow))
    assert [n.split()[0] for n in caught.value.nodes] == [
        "choose", "choose/else_branch/Fancy_0", "choose/then_branch/Det_0",
    ]  # fmt: skip
    assert "must be a constant; it is computed at run time from sr: give sr a value (--value sr=…)" in str(caught.value)
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(speech(fast, slow), values={"sr": 16000})
    assert [n.split()[0] for n in caught.value.nodes] == ["choose/Det_0"]


def test_nodes_inside_a_loop_are_named() -> None:
    """And inside a branch whose condition has no translation itself."""
    inner = helper.make_graph(
        [node("Fancy", "v", "w"), node("Identity", "c", "d")], "b",
        [helper.make_tensor_value_info(n, 1, None) for n in "icv"], [helper.make_tensor_value_info(n, 1, None) for n in "dw"],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["", "", "x"], ["a"], body=inner),
        node("Odd", "a", "q"),
        helper.make_node("If", ["q"], ["y"], then_branch=body(node("Det", "x", "out")), else_branch=body(node("Neg", "x", "out"))),
    ]  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(make_model(nodes, {"x": [2]}, ["y"]))
    assert [n.split()[0] for n in caught.value.nodes] == [
        "Loop_0",
        "Loop_0/body/Fancy_0",
        "Odd_1",
        "If_2/then_branch/Det_0",
    ]


def test_values_on_the_command_line(tmp_path: Path) -> None:
    """Every command that takes an ONNX file takes ``--value``; a compiled model has its inputs."""
    path, store = tmp_path / "speech.onnx", tmp_path / "r.sqlite"
    onnx.save(speech(), str(path))
    given = ("--value", "sr=16000", "--threads", "1", "--store", store)
    refused(call("run", path, "--threads", "1", "--store", store), 2, "--value sr=…")
    assert call("tune", path, *given, "--time", "20s", "--trials", "2").exit_code == 0
    assert call("best", path, *given).exit_code == 0
    compiled = tmp_path / "m.tw"
    assert call("compile", path, *given, "-o", compiled).exit_code == 0
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    for model, options in ((path, given), (compiled, ())):
        done = call("run", model, *options, "--input", f"x={tmp_path / 'x.npy'}")
        assert "mean 2.5  min 2  max 3" in done.output
    assert call("bench", path, *given, "--time", "0.1s").exit_code == 0
    refused(call("run", compiled, "--value", "sr=1"), 2, "is compiled already, for its shapes, values and threads")
    refused(call("bench", compiled, "--shape", "x=2"), 2, "is compiled already, for its shapes, values and threads")
    for text in ("sr", "sr=", "=1", "sr=fast", "sr=1,,2"):
        refused(call("run", path, "--value", text), 2, "expected NAME=NUMBER")
    refused(call("run", path, "--value", "sr=1", "--value", "sr=2"), 2, "input 'sr' is given twice")
    refused(call("run", path, "--value", "sr=1.5"), 2, "expected numbers of type int64")
    refused(call("run", path, "--value", "sr=true,false"), 2, "expected the shape []")


# Constants in few bits


@pytest.mark.parametrize(
    ("array", "scale", "zero", "attributes"),
    [
        (np.array([[-128, 0, 127], [1, 2, 3]], np.int8), np.float32(0.5), np.int8(3), {}),
        (np.array([[-128, 0, 127], [1, 2, 3]], np.int8), np.array([0.5, 2], np.float32), np.array([3, -1], np.int8), {"axis": 0}),
        (np.array([[255, 0, 127], [1, 2, 3]], np.uint8), np.array([0.5, 2, 4], np.float32), None, {"axis": -1}),
        (np.array([2**30 + 1, -7], np.int32), np.float32(0.25), None, {}),
        (np.arange(-6, 6, dtype=np.int8).reshape(2, 6), np.array([[1, 2, 3], [4, 5, 6]], np.float32), None,
         {"axis": 1, "block_size": 2}),
        (np.arange(4, dtype=np.int16), np.float32(3), np.int16(1), {}),
    ],
)  # fmt: skip
def test_constants_in_few_bits_are_folded(array: Any, scale: Any, zero: Any, attributes: Any) -> None:
    """DequantizeLinear by tensor, by axis and by block, as ONNX Runtime does it."""
    constants = {"q": array, "s": scale} | ({} if zero is None else {"z": zero})
    dequantise = node("DequantizeLinear", "q s" + ("" if zero is None else " z"), "w", **attributes)
    model = make_model([dequantise, node("Add", "x w")], {"x": list(array.shape)}, ["y"], constants, opset=21)
    model.ir_version = 10
    got, want = run_both(model, x=np.zeros(array.shape, np.float32))
    np.testing.assert_array_equal(got, want)


def test_small_float_and_four_bit_constants() -> None:
    """Types that no tensor of a graph has are folded too."""
    import ml_dtypes

    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4):
        q = np.array([1, 2, 3, 7]).astype(dtype)
        model = make_model([node("DequantizeLinear", "q s", "w"), node("Add", "x w")], {"x": [4]}, ["y"], opset=21)
        model.graph.initializer.extend(
            [numpy_helper.from_array(q, "q"), numpy_helper.from_array(np.array(0.5, np.float32), "s")]
        )
        got: Any = evaluate(import_onnx(model), {"x": np.zeros(4, np.float32)})[0]
        np.testing.assert_array_equal(got, [0.5, 1, 1.5, 3.5])


def test_wrong_scales_are_refused() -> None:
    """By their shape."""
    constants = {"q": np.zeros((2, 3), np.int8), "s": np.ones(2, np.float32), "z": np.zeros(3, np.int8)}
    for text, message in (
        ("q s", r"scale: expected a number or shape \(3,\)"),
        ("q s z", "zero point: expected the scale's shape"),
    ):
        model = make_model(
            [node("DequantizeLinear", text, "w"), node("Add", "x w")], {"x": [2, 3]}, ["y"], constants, opset=21
        )
        with pytest.raises(UnsupportedError, match=message):
            import_onnx(model)


# Scalars


def test_numpy_scalars_are_arrays_of_rank_0() -> None:
    """A number of the right type goes where an array of rank 0 is meant, and nowhere else."""
    model = make_model([node("Mul", "x k")], {"x": [3], "k": []}, ["y"])
    executable = tilewright.compile(model, ONE)
    x = np.array([1, 2, 3], np.float32)
    for k in (np.float32(2), np.array(2, np.float32)):
        np.testing.assert_array_equal(executable(x, k)[0], [2, 4, 6])
    np.testing.assert_array_equal(executable.run({"x": x, "k": np.float32(3)})[0], [3, 6, 9])
    for wrong in (np.float64(2), np.int64(2)):
        with pytest.raises(tilewright.ModelError, match=r"input 'k': expected float32 of shape \(\)"):
            executable(x, wrong)
    with pytest.raises(
        tilewright.ModelError, match=r"input 'x': expected float32 of shape \(3,\); got float32 of shape \(\)"
    ):
        executable(np.float32(1), np.float32(1))
