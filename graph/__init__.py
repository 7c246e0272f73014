"""What to compute: tensors, index-notation stages, operators, importers and graph passes."""

from tilewright.graph import ops
from tilewright.graph.dtypes import GraphError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Tensor
from tilewright.graph.passes import optimise
from tilewright.graph.stage import Stage, TensorType, View

__all__ = ["Graph", "GraphError", "Stage", "Tensor", "TensorType", "View", "evaluate", "ops", "optimise"]
