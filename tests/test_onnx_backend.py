"""The onnx package's own node tests, through the importer and an executor (here the oracle).

``run_case`` takes the executor, so the same cases also check compiled kernels. Every case whose operators are
all in the registry must pass, but for those listed with a reason in ``onnx_backend_exceptions.toml``; an
exception that passes is stale and fails the test.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.case.node import collect_testcases  # noqa: E402

from tilewright.graph.dtypes import SIZES, GraphError  # noqa: E402
from tilewright.graph.evaluate import evaluate  # noqa: E402
from tilewright.graph.graph import Graph  # noqa: E402
from tilewright.graph.onnx import UnsupportedError, import_onnx, supported_operators  # noqa: E402
from tilewright.graph.onnx.files import expand_functions  # noqa: E402

Executor = Callable[[Graph, Mapping[str, Any]], list[Any]]
EXCEPTIONS: dict[str, str] = tomllib.loads(
    (Path(__file__).parent / "onnx_backend_exceptions.toml").read_text(encoding="utf-8")
)["exceptions"]


def oracle(graph: Graph, inputs: Mapping[str, Any]) -> list[Any]:
    """The executor that evaluates the meaning of the graph."""
    return list(evaluate(graph, inputs))


def operators(graph: Any) -> Iterator[str]:
    """Operator names of a graph and its subgraphs, with the domain unless it is the default one."""
    for node in graph.node:
        yield node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from operators(attribute.g)


def relevant(case: Any) -> bool:
    """Whether a case is in scope: operators of the registry on tensors of supported types."""
    supported = set(supported_operators())
    tensors = all(
        isinstance(a, np.ndarray) and a.dtype.name in SIZES
        for inputs, outputs in case.data_sets
        for a in (*inputs, *outputs)
    )
    return tensors and set(operators(expand_functions(case.model, supported).graph)) <= supported


def relevant_cases() -> list[Any]:
    """All cases in scope, in the package's order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes overflowing examples
        return [c for c in collect_testcases(None) if relevant(c)]


def import_case(case: Any, values: Mapping[str, Any]) -> Graph:
    """Import a case. Inputs that an operator needs at import (shapes, axes) are given as initializers: all
    inputs but the first, or all of them where the first is such a one."""
    names = list(values)
    empty = [n for n in names if values[n].size == 0]
    for constant in (empty, [*empty[: names[:1] == empty[:1]], *names[1:]], names):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        model.graph.initializer.extend(numpy_helper.from_array(values[n], n) for n in constant)
        try:
            return import_onnx(model)
        except UnsupportedError as e:
            if constant == names or not any("must be a constant" in n for n in e.nodes):
                raise
    raise AssertionError("no input to give as an initializer")


def run_case(case: Any, executor: Executor) -> None:
    """Import a case and compare ``executor(graph, inputs)`` with its expected outputs."""
    names = [i.name for i in case.model.graph.input]
    for given, expected in case.data_sets:
        values = dict(zip(names, given, strict=False))
        graph = import_case(case, values)
        results = executor(graph, {n: values[n] for n in graph.inputs})
        assert len(results) == len(expected)
        for name, got, want in zip(graph.outputs, results, expected, strict=True):
            assert graph.types[name].dtype == want.dtype.name
            assert got.shape == want.shape
            np.testing.assert_allclose(got.astype(want.dtype), want, rtol=case.rtol, atol=case.atol)


def failures(cases: list[Any], executor: Executor) -> dict[str, str]:
    """Name and first line of the error of each case that fails."""
    out = {}
    for case in cases:
        try:
            run_case(case, executor)
        except (AssertionError, GraphError) as e:
            out[case.name] = " ".join(str(e).split())[:300]
    return out


def test_node_cases(figure: Callable[[str], None]) -> None:
    """Every case in scope passes, but exactly the ones listed."""
    cases = relevant_cases()
    failed = failures(cases, oracle)
    passed = len(cases) - len(failed)
    figure(f"{passed} of {len(cases)} ONNX node tests passed (oracle)")
    new = {n: e for n, e in failed.items() if n not in EXCEPTIONS}
    assert not new, "\n".join(f"{n}: {e}" for n, e in new.items())
    stale = sorted(set(EXCEPTIONS) - set(failed))
    assert not stale, f"exceptions that pass or are out of scope: {stale}"
    assert passed >= 500


def test_reasons_are_given() -> None:
    """Each exception has a reason of more than a word."""
    short = [n for n, reason in EXCEPTIONS.items() if len(reason.split()) < 3]
    assert not short
