"""The onnx package's own node tests, run through the importer and an executor.

The tests use it with the oracle and with compiled kernels. By itself it tries every node test of the installed package and
prints how many pass, and for what reasons the others do not::

    python tests/onnx_node_tests.py
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from tilewright.graph.dtypes import SIZES, GraphError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.onnx import UnsupportedError, import_onnx, supported_operators

Executor = Callable[[Graph, Mapping[str, Any]], list[Any]]


def oracle(graph: Graph, inputs: Mapping[str, Any]) -> list[Any]:
    """The executor that evaluates the meaning of the graph."""
    return list(evaluate(graph, inputs))


@cache
def all_cases() -> tuple[Any, ...]:
    """All node tests, in the package's order; they take seconds to make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes overflowing examples
        return tuple(collect_testcases(None))


def _array(value: Any) -> Any:
    """A value of a case as an array, where it is a tensor."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def obstacle(case: Any) -> str | None:
    """Why a case is out of scope: values that are no tensors of a supported type, or operators that the importer does
    not know, nor the standard defines by others that it knows. None for a case that has to pass."""
    for inputs, outputs in case.data_sets:
        for a in map(_array, (*inputs, *outputs)):
            if not isinstance(a, np.ndarray):
                return "a value is a sequence or an absent optional, not a tensor"
            if a.dtype.name not in SIZES:
                return f"data type {'string' if a.dtype.kind in 'OUS' else a.dtype.name}"
    unknown = sorted({n.op_type for n in _nodes(case.model.graph)} - set(supported_operators()))
    if not unknown:
        return None
    try:  # the others may be defined by operators that are supported
        import_case(
            case, dict(zip([i.name for i in case.model.graph.input], map(_array, case.data_sets[0][0]), strict=False))
        )
    except UnsupportedError as e:
        missing = [n.split("(")[1].split(",")[0] for n in e.nodes if n.endswith("the operator is not supported")]
        return f"operator {missing[0]}" if missing else None
    except GraphError:
        return f"operator {unknown[0]}"
    return None


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
        values = dict(zip(names, map(_array, given), strict=False))
        graph = import_case(case, values)
        results = executor(graph, {n: values[n] for n in graph.inputs})
        assert len(results) == len(expected)
        for name, got, want in zip(graph.outputs, results, map(_array, expected), strict=True):
            assert graph.types[name].dtype == want.dtype.name
            assert got.shape == want.shape
            np.testing.assert_allclose(got.astype(want.dtype), want, rtol=case.rtol, atol=case.atol)


def failures(cases: Iterable[Any], executor: Executor) -> dict[str, str]:
    """Name and first line of the error of each case that fails."""
    out = {}
    for case in cases:
        try:
            run_case(case, executor)
        except (AssertionError, GraphError) as e:
            out[case.name] = " ".join(str(e).split())[:300]
    return out


def _kind(error: str) -> str:
    """An error without what is particular to one case."""
    inner = re.sub(r"^\d+ unsupported node\(s\): .*?\): ", "", error)
    return re.sub(r"'[^']*'", "…", re.sub(r"\([^()]*\)|\d+", "…", inner))[:70]


def main() -> int:
    """Try all node tests with the oracle; print the count and the reasons."""
    cases = all_cases()
    reasons: Counter[str] = Counter()
    inside = []
    for case in cases:
        reason = obstacle(case)
        if reason is None:
            inside.append(case)
        else:
            reasons[reason] += 1
    failed = failures(inside, oracle)
    reasons.update(_kind(e) for e in failed.values())
    print(f"passed {len(inside) - len(failed)} of {len(cases)}")
    for reason, count in reasons.most_common():
        print(f"{count:5}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
