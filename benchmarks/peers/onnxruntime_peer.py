"""onnxruntime, for operators and for models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import Array, Side, aligned_copy
from benchmarks.peers.base import Peer, call_inputs, needed
from benchmarks.serve import Lacking
from benchmarks.workloads import Workload


class OnnxRuntimePeer(Peer):
    """onnxruntime on the CPU with every graph optimisation; inputs and outputs are bound, so a call allocates
    nothing for them."""

    name = "onnxruntime"

    def __init__(self, threads: int) -> None:
        self._ort: Any = needed("onnxruntime")
        self.version = str(self._ort.__version__)
        self.threads = threads

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        needed("onnx")
        return self.model(workload.onnx_model(dict(arrays)).SerializeToString(), call_inputs(workload, arrays))

    def model(self, model: bytes | Path, feeds: Mapping[str, Array]) -> Side:
        """A model from a file or its bytes on given inputs."""
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = self._ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        source = model if isinstance(model, bytes) else os.fspath(model)
        try:
            session = self._ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            first = session.run(None, dict(feeds))
        except Exception as error:  # whatever it raises, the comparison goes on without it
            raise Lacking(f"{self.name}: {str(error)[:200]}") from error
        outputs = [aligned_copy(a) for a in first]
        binding = session.io_binding()
        for n, a in feeds.items():
            binding.bind_input(n, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        for o, a in zip(session.get_outputs(), outputs, strict=True):
            binding.bind_output(o.name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
        keep = dict(feeds)  # the binding holds addresses only

        def call() -> object:
            return session.run_with_iobinding(binding)

        return Side(self.name, call, lambda: outputs if keep else [])
