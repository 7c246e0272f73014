"""Importing ONNX models. Only the ``onnx`` package is needed, and only when a model is imported."""

from tilewright.graph.onnx.context import ImportFailure, UnsupportedError
from tilewright.graph.onnx.importer import import_onnx, supported_operators

__all__ = ["ImportFailure", "UnsupportedError", "import_onnx", "supported_operators"]
