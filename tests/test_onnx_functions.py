"""Functions of a model and operators that the standard defines by others: defaults of attributes, nesting, operator sets, refusals
(fault 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from test_onnx_import import make_model, node  # noqa: E402
from tilewright.graph import evaluate  # noqa: E402
from tilewright.graph.onnx import ImportFailure, UnsupportedError, import_onnx  # noqa: E402

X = np.array([-4, -1, 2], np.float32)


def reference(inner: str, attribute: str, kind: int) -> Any:
    """A node ``r = inner(a)`` whose attribute refers to one of the function around it."""
    made = node(inner, "a", "r")
    made.attribute.add(name=attribute, ref_attr_name="slope", type=kind)
    return made


def function(name: str, nodes: list[Any], opset: int = 17, defaults: dict[str, Any] | None = None, **named: Any) -> Any:
    """A function of the domain ``custom`` from ``a`` to ``r``."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    attributes = [helper.make_attribute(k, v) for k, v in (defaults or {}).items()]
    return helper.make_function("custom", name, ["a"], ["r"], nodes, imports, attribute_protos=attributes, **named)


def call(name: str, functions: list[Any], opset: int = 17, **attributes: Any) -> Any:
    """A model that is one call of a function."""
    made = helper.make_node(name, ["x"], ["y"], domain="custom", **attributes)
    model = make_model([made], {"x": [3]}, ["y"], opset=opset, functions=functions)
    model.opset_import.append(helper.make_opsetid("custom", 1))
    return model


def result(model: Any, x: Any = X) -> Any:
    """What the model computes."""
    return evaluate(import_onnx(model), {"x": x})[0]


LEAKY = function("Leaky", [reference("LeakyRelu", "alpha", onnx.AttributeProto.FLOAT)], defaults={"slope": 0.5})


def test_defaults_of_function_attributes() -> None:
    """A slope that only the function gives, and one that the call gives instead."""
    np.testing.assert_allclose(result(call("Leaky", [LEAKY])), [-2, -0.5, 2], rtol=1e-6)
    np.testing.assert_allclose(result(call("Leaky", [LEAKY], slope=0.25)), [-1, -0.25, 2], rtol=1e-6)


def test_an_attribute_without_value_or_default_is_absent() -> None:
    """The operator's own default then holds."""
    made = function("Leaky", [reference("LeakyRelu", "alpha", onnx.AttributeProto.FLOAT)], attributes=["slope"])
    np.testing.assert_allclose(result(call("Leaky", [made])), [-0.04, -0.01, 2], rtol=1e-5)


def test_defaults_pass_through_nested_functions() -> None:
    """The outer function hands its own default to the inner one, which hands it to the node, inside a branch too."""
    inner = helper.make_node("Leaky", ["a"], ["r"], domain="custom")
    inner.attribute.add(name="slope", ref_attr_name="outer", type=onnx.AttributeProto.FLOAT)
    outer = function("Outer", [inner], defaults={"outer": 2.0})
    np.testing.assert_allclose(result(call("Outer", [outer, LEAKY])), [-8, -2, 2], rtol=1e-6)
    made = node("LeakyRelu", "a", "z")
    made.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    body = helper.make_graph([made], "b", [], [helper.make_tensor_value_info("z", 1, [3])])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=body),
    ]
    np.testing.assert_allclose(
        result(call("Choice", [function("Choice", nodes, defaults={"slope": 3.0})])), [-12, -3, 2]
    )


def test_a_function_has_its_own_operator_set() -> None:
    """Softmax before operator set 13 goes over all dimensions from axis 1 on."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for opset, other in ((11, 17), (17, 11)):
        made = helper.make_node("Soft", ["x"], ["y"], domain="custom")
        soft = function("Soft", [node("Softmax", "a", "r", axis=1)], opset=opset)
        model = make_model([made], {"x": [2, 3, 4]}, ["y"], opset=other, functions=[soft])
        model.opset_import.append(helper.make_opsetid("custom", 1))
        e = np.exp(x.astype(np.float64))
        want = e / e.sum(axis=(1, 2) if opset == 11 else 1, keepdims=True)
        np.testing.assert_allclose(result(model, x), want, rtol=1e-6)


@pytest.mark.parametrize("kind", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_without_periodic(kind: str) -> None:
    """The standard's default of ``periodic`` is 1."""
    for attributes in ({}, {"periodic": 0}):
        model = make_model(
            [node(kind, "n", "w", **attributes), node("Mul", "x w")], {"x": [10]}, ["y"], {"n": np.array(10)}
        )
        ones = np.ones(10, np.float32)
        want: Any = next(iter(ReferenceEvaluator(model).run(None, {"x": ones})))
        np.testing.assert_allclose(result(model, ones), want, rtol=1e-5, atol=1e-7)


def test_definitions_of_the_standard_inside_functions_and_branches() -> None:
    """An operator without a translation of its own, where nothing but the walk knows its types."""
    crop = helper.make_node("CenterCropPad", ["a", "s"], ["r"], axes=[0])
    size = helper.make_node("Constant", [], ["s"], value_ints=[1])
    np.testing.assert_array_equal(result(call("Crop", [function("Crop", [size, crop], opset=18)], opset=18)), X[1:2])


def test_optional_inputs_may_be_left_out() -> None:
    """An absent input of the call is absent in the body."""
    body = [node("Clip", "a low high", "r")]
    clip = helper.make_function("custom", "Bound", ["a", "low", "high"], ["r"], body, [helper.make_opsetid("", 17)])
    made = helper.make_node("Bound", ["x", "", "h"], ["y"], domain="custom")
    model = make_model([made], {"x": [3]}, ["y"], {"h": np.float32(1)}, functions=[clip])
    model.opset_import.append(helper.make_opsetid("custom", 1))
    np.testing.assert_array_equal(result(model), [-4, -1, 1])


def test_wrong_calls_are_refused() -> None:
    """By what the function has and what the call gives."""
    with pytest.raises(UnsupportedError, match="attribute 'beta': the function's attributes are slope"):
        import_onnx(call("Leaky", [LEAKY], beta=1.0))
    with pytest.raises(UnsupportedError, match=r"attribute slope: LeakyRelu expects type 1; got 2"):
        import_onnx(call("Leaky", [LEAKY], slope=1))
    lost = function("Leaky", [reference("LeakyRelu", "alpha", onnx.AttributeProto.FLOAT)])
    with pytest.raises(UnsupportedError, match="refers to 'slope', which the function does not declare"):
        import_onnx(call("Leaky", [lost]))
    many = call("Leaky", [LEAKY])
    many.graph.node[0].input.append("x")
    with pytest.raises(UnsupportedError, match="the function has 1 inputs; the call gives 2"):
        import_onnx(many)
    with pytest.raises(ImportFailure, match="function 'Leaky' of domain 'custom' is defined twice"):
        import_onnx(call("Leaky", [LEAKY, LEAKY]))


def test_functions_that_never_end_are_refused() -> None:
    """A function that calls itself, and two that call each other."""
    again = helper.make_node("A", ["a"], ["r"], domain="custom")
    other = helper.make_node("B", ["a"], ["r"], domain="custom")
    with pytest.raises(ImportFailure, match="function 'A' of domain 'custom' calls itself"):
        import_onnx(call("A", [function("A", [again])]))
    with pytest.raises(ImportFailure, match="function 'A' of domain 'custom' calls itself"):
        import_onnx(call("A", [function("A", [other]), function("B", [again])]))


def test_many_levels_of_functions() -> None:
    """A chain of calls works to a depth, and is refused by name beyond it."""

    def chain(depth: int) -> Any:
        made = [function("F0", [node("Neg", "a", "r")])]
        for k in range(1, depth):
            made.append(function(f"F{k}", [helper.make_node(f"F{k - 1}", ["a"], ["r"], domain="custom")]))
        return call(f"F{depth - 1}", made)

    np.testing.assert_array_equal(result(chain(90)), -X)
    with pytest.raises(ImportFailure, match="more than 100 deep"):
        import_onnx(chain(200))


def test_unsupported_nodes_inside_functions_are_named() -> None:
    """With the way to them."""
    body = [node("Det", "a", "b"), node("Fancy", "b", "r")]
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(call("Odd", [function("Odd", body)]))
    assert [n.split()[0] for n in caught.value.nodes] == ["Odd_0/Det_0", "Odd_0/Fancy_1"]
