"""Reading model files, with every way a file can be broken named in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.graph.onnx.context import ImportFailure

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


def require_onnx() -> None:
    """Raise an ImportError that says what to install where the ``onnx`` package is absent."""
    try:
        import onnx  # noqa: F401
    except ImportError as e:
        raise ImportError("importing ONNX models needs the onnx package: pip install tilewright[onnx]") from e


def read_model(source: str | os.PathLike[str] | ModelProto) -> ModelProto:
    """The model of a path or of an object, with external data loaded."""
    require_onnx()
    import onnx

    if isinstance(source, onnx.ModelProto):
        model, path = source, None
    else:
        path = Path(source)
        model = _parse(path)
    where = str(path) if path is not None else "model"
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ImportFailure(f"{where}: not an ONNX model (it has no graph)")
    if not model.graph.output:
        raise ImportFailure(f"{where}: the graph has no outputs")
    for tensor in (*_tensors(model.graph), *(t for f in model.functions for t in _node_tensors(f.node))):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if path is None:
                raise ImportFailure(f"tensor {tensor.name!r} is in an external file; import the model by its path")
            _load_external(tensor, path)
    return model


def _parse(path: Path) -> ModelProto:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
    from onnx import ModelProto

    try:
        data = path.read_bytes()
    except OSError as e:
        raise ImportFailure(f"{path}: cannot be read: {e.strerror or e}") from e
    if not data:
        raise ImportFailure(f"{path}: the file is empty")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as e:
        raise ImportFailure(f"{path}: not an ONNX model, or truncated ({len(data)} bytes do not parse)") from e
    return model


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("g"):
        yield from _tensors(attribute.g)
    for g in attribute.graphs:
        yield from _tensors(g)


def _load_external(tensor: TensorProto, model_path: Path) -> None:
    from onnx import TensorProto

    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    folder = model_path.parent.resolve()
    file = model_path.parent / location
    if not location or Path(location).is_absolute() or not file.resolve().is_relative_to(folder):
        raise ImportFailure(
            f"{model_path}: external data of {tensor.name!r} must lie in the model's folder; got {location!r}"
        )
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
        with file.open("rb") as f:
            f.seek(offset)
            data = f.read(length) if length >= 0 else f.read()
    except ValueError as e:
        raise ImportFailure(f"{model_path}: external data of {tensor.name!r} has a bad offset or length") from e
    except OSError as e:
        raise ImportFailure(
            f"{model_path}: external data of {tensor.name!r}: cannot read {location!r}: {e.strerror or e}"
        ) from e
    if 0 <= length != len(data):
        raise ImportFailure(
            f"{model_path}: external data file {location!r} is truncated: {tensor.name!r} needs {length} "
            f"bytes at {offset}; got {len(data)}"
        )
    tensor.raw_data = data
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]
