"""OpenVINO, for operators and for models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Array, Side
from benchmarks.peers.base import Peer, call_inputs, needed
from benchmarks.serve import Lacking
from benchmarks.workloads import Workload


class OpenVinoPeer(Peer):
    """OpenVINO's CPU plugin: one stream, latency hint, float32, tensors that share our memory."""

    name = "openvino"

    def __init__(self, threads: int) -> None:
        self._ov: Any = needed("openvino")
        self.version = str(self._ov.__version__)
        self.threads = threads

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        needed("onnx")
        return self.model(workload.onnx_model(dict(arrays)).SerializeToString(), call_inputs(workload, arrays))

    def model(self, model: bytes | Path, feeds: Mapping[str, Array]) -> Side:
        """A model from a file or its bytes on given inputs."""
        core = self._ov.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        try:
            loaded = core.read_model(model if isinstance(model, bytes) else os.fspath(model))
            loaded.reshape({n: list(a.shape) for n, a in feeds.items()})
            request = core.compile_model(loaded, "CPU", settings).create_infer_request()
            for n, a in feeds.items():
                request.set_tensor(n, self._ov.Tensor(a, shared_memory=True))
            request.infer()
        except Exception as error:  # whatever it raises, the comparison goes on without it
            raise Lacking(f"{self.name}: {str(error)[:200]}") from error
        count = len(loaded.outputs)
        keep = dict(feeds)

        def results() -> list[Array]:
            return [np.array(request.get_output_tensor(k).data) for k in range(count)] if keep else []

        return Side(self.name, request.infer, results)
