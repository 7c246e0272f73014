"""A workload: tensors, and what is computed from them, said once for every side."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.backends import Array, CountOps, NumpyOps, OnnxOps, TorchOps, Value

if TYPE_CHECKING:  # other interpreters run workloads too, and have no Tilewright
    from tilewright.graph.graph import Graph

SEED = 0
Body = Callable[..., Value]
"""``body(ops, *tensors)``."""


@dataclass(frozen=True)
class Input:
    """A tensor that a workload reads: standard normal times ``scale``. A constant may be folded or packed by
    whoever compiles; anything else comes with each call."""

    name: str
    shape: tuple[int, ...]
    constant: bool = False
    scale: float = 1.0
    below: int = 0
    """If not 0, int64 numbers from 0 up to this instead."""
    read: int | None = None
    """How many of the elements are read, if not all."""


@dataclass(frozen=True)
class Workload:
    """One operator, float32, with one output."""

    name: str
    suite: str
    inputs: tuple[Input, ...]
    body: Body
    cap: int | None = None
    """What the suite's sizes were cut down to."""

    @cached_property
    def _counted(self) -> tuple[CountOps, tuple[int, ...]]:
        count = CountOps()
        return count, self.body(count, *(i.shape for i in self.inputs))

    @property
    def flops(self) -> int:
        """Operations of contractions (multiply and add count as two); of everything where there are none."""
        return self._counted[0].flops

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        return self._counted[1]

    @property
    def is_single(self) -> bool:
        """Whether one operator is all there is."""
        return self._counted[0].calls == 1

    @property
    def read_bytes(self) -> int:
        """Inputs once, constants too; of one of which few elements are read, no more than are."""
        sizes = ((8 if i.below else 4, math.prod(i.shape), i.read) for i in self.inputs)
        return sum(nbytes * (size if read is None else min(size, read)) for nbytes, size, read in sizes)

    @property
    def written_bytes(self) -> int:
        """The output once."""
        return 4 * math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """All that must move."""
        return self.read_bytes + self.written_bytes

    def arrays(self, seed: int = SEED) -> dict[str, Array]:
        """Values of every tensor, constants too, in order."""
        rng = np.random.default_rng(seed)
        return {
            i.name: rng.integers(0, i.below, i.shape)
            if i.below
            else rng.standard_normal(i.shape, dtype=np.float32) * np.float32(i.scale)
            for i in self.inputs
        }

    def reference(self, arrays: dict[str, Array]) -> Array:
        """What it means, in float64."""
        wide = [arrays[i.name].astype(np.int64 if i.below else np.float64) for i in self.inputs]
        return np.ascontiguousarray(self.body(NumpyOps(), *wide))

    def graph(self, arrays: dict[str, Array]) -> Graph:
        """A Tilewright graph (needs Tilewright)."""
        from benchmarks.backends.tilewright_ops import tilewright_graph

        kinds = ["int64" if i.below else None for i in self.inputs]
        tensors = [
            (i.name, i.shape, arrays[i.name] if i.constant else k) for i, k in zip(self.inputs, kinds, strict=True)
        ]
        return tilewright_graph(tensors, self.body)

    def torch_call(self, arrays: dict[str, Array]) -> Callable[[], Any]:
        """A call of PyTorch on tensors that share the arrays' memory (needs ``torch``)."""
        torch = importlib.import_module("torch")
        ops = TorchOps()
        tensors = [torch.from_numpy(arrays[i.name]) for i in self.inputs]
        body = self.body
        with torch.no_grad():
            view = not body(ops, *tensors).is_contiguous()

        def call() -> Any:
            with torch.no_grad():
                y = body(ops, *tensors)
                return y.contiguous() if view else y

        return call

    def onnx_model(self, arrays: dict[str, Array]) -> Any:
        """An ONNX ``ModelProto`` (needs ``onnx``); constants are initialisers, the output is ``y``."""
        onnx = importlib.import_module("onnx")
        helper: Any = onnx.helper
        made = OnnxOps({i.name: arrays[i.name] for i in self.inputs if i.constant})
        result = self.body(made, *(i.name for i in self.inputs))
        made.nodes[-1].output[list(made.nodes[-1].output).index(result)] = "y"
        used = {name for node in made.nodes for name in node.input}
        float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
        graph = helper.make_graph(
            made.nodes,
            self.name,
            [
                helper.make_tensor_value_info(i.name, int64 if i.below else float32, i.shape)
                for i in self.inputs
                if not i.constant
            ],
            [helper.make_tensor_value_info("y", float32, self.shape)],
            [onnx.numpy_helper.from_array(a, n) for n, a in made.weights.items() if n in used],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", made.OPSET)])
        model.ir_version = 9
        return model
