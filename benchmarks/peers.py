"""The libraries we are compared with, one small class each. A peer that is not installed, or that lacks an
operator, says so with `Lacking`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from benchmarks.backends import JaxOps, NumpyOps
from benchmarks.common import Array, Side, aligned_copy
from benchmarks.workloads import Workload


class Lacking(Exception):
    """What a peer cannot do here; the text says what and why."""


class Peer(Protocol):
    """A library, set to a number of threads."""

    name: str
    version: str

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        """A workload ready to run. Raises Lacking."""
        ...


def _module(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Lacking(f"{package} is not installed ({error})") from error


def _inputs(workload: Workload, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What comes with a call."""
    return {i.name: arrays[i.name] for i in workload.inputs if not i.constant}


class NumpyPeer:
    """NumPy with its OpenBLAS. Single matrix products and transposes write into an array that is there."""

    name = "numpy"

    def __init__(self, threads: int) -> None:
        self.version = np.__version__
        control = _module("threadpoolctl", "threadpoolctl")
        control.threadpool_limits(threads, user_api="blas")

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        values = [arrays[i.name] for i in workload.inputs]
        kept = aligned_copy(np.zeros(workload.shape, np.float32)) if workload.is_single else None
        ops, body = NumpyOps(kept), workload.body
        return Side(self.name, lambda: body(ops, *values), lambda: [np.asarray(body(ops, *values))])


class TorchPeer:
    """PyTorch, eager, without gradients."""

    name = "torch"

    def __init__(self, threads: int) -> None:
        torch = _module("torch", "torch")
        self.version = str(torch.__version__)
        torch.set_num_threads(threads)

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        call = workload.torch_call(dict(arrays))
        return Side(self.name, call, lambda: [call().numpy()])


class OnnxRuntimePeer:
    """onnxruntime on the CPU with every graph optimisation; inputs and outputs are bound, so a call allocates
    nothing for them."""

    name = "onnxruntime"

    def __init__(self, threads: int) -> None:
        self._ort: Any = _module("onnxruntime", "onnxruntime")
        self.version = str(self._ort.__version__)
        self.threads = threads

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        _module("onnx", "onnx")
        return self.model(workload.onnx_model(dict(arrays)).SerializeToString(), _inputs(workload, arrays))

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


class OpenVinoPeer:
    """OpenVINO's CPU plugin: one stream, latency hint, float32, tensors that share our memory."""

    name = "openvino"

    def __init__(self, threads: int) -> None:
        self._ov: Any = _module("openvino", "openvino")
        self.version = str(self._ov.__version__)
        self.threads = threads

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        _module("onnx", "onnx")
        return self.model(workload.onnx_model(dict(arrays)).SerializeToString(), _inputs(workload, arrays))

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


class JaxPeer:
    """JAX through XLA. Its number of threads is the number of CPUs this process may use, so it takes part only
    where that is the number asked for."""

    name = "jax"

    def __init__(self, threads: int) -> None:
        jax: Any = _module("jax", "jax")
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        if threads != usable:
            raise Lacking(f"jax has no setting for {threads} threads (this process may use {usable} CPUs)")
        self.version = str(jax.__version__)
        self._jax = jax

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        ops, body = JaxOps(), workload.body
        values = [self._jax.device_put(arrays[i.name]) for i in workload.inputs]
        compiled = self._jax.jit(lambda *a: body(ops, *a))

        def call() -> Any:
            return compiled(*values).block_until_ready()

        call()
        return Side(self.name, call, lambda: [np.asarray(call())])


PEERS: Mapping[str, type[NumpyPeer | TorchPeer | OnnxRuntimePeer | OpenVinoPeer | JaxPeer]] = {
    p.name: p for p in (NumpyPeer, TorchPeer, OnnxRuntimePeer, OpenVinoPeer, JaxPeer)
}


def make_peers(wanted: list[str], threads: int) -> tuple[list[Peer], dict[str, str]]:
    """The peers that are here, set to ``threads``, and why the others are not."""
    found: list[Peer] = []
    absent: dict[str, str] = {}
    for name in wanted:
        try:
            found.append(PEERS[name](threads))
        except Lacking as error:
            absent[name] = str(error)
    return found, absent
