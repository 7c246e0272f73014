"""ONNX models to graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.graph import passes
from tilewright.graph.graph import Graph
from tilewright.graph.onnx import neural, simple, tensors  # noqa: F401  (they fill the registry)
from tilewright.graph.onnx.context import OPERATORS
from tilewright.graph.onnx.files import read_model
from tilewright.graph.onnx.folding import FOLD
from tilewright.graph.onnx.walk import Walk

if TYPE_CHECKING:
    from onnx import ModelProto


def import_onnx(
    source: str | os.PathLike[str] | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimise: bool = True,
    values: Mapping[str, object] | None = None,
) -> Graph:
    """Import an ONNX model.

    ``source`` is a path or a ``ModelProto``; ``shapes`` binds the inputs that have dynamic dimensions, by
    name. ``values`` gives inputs a constant value (a number, nested lists or an array), which are inputs of the graph no
    more: for those that a model needs to be known, such as the condition of an ``If``, a shape or axes. The graph is optimised
    (:func:`tilewright.graph.passes.optimise`) unless told otherwise.

    Raises :class:`ImportFailure` if the file is broken or an input is not bound or given a value that it cannot
    have, and :class:`UnsupportedError` naming every node that has no translation.
    """
    graph = Walk(read_model(source), shapes or {}, values or {}).run()
    return passes.optimise(graph) if optimise else graph


def supported_operators() -> list[str]:
    """Names of the operators of the default domain that are translated or folded. Operators that the standard defines by these
    are expanded, and so can be imported too."""
    return sorted({*OPERATORS, *FOLD, "If"})
