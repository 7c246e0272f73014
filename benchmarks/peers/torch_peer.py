"""PyTorch as most people run it."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common import Array, Side
from benchmarks.peers.base import Peer, needed
from benchmarks.workloads import Workload


class TorchPeer(Peer):
    """PyTorch, eager, without gradients."""

    name = "torch"

    def __init__(self, threads: int) -> None:
        torch = needed("torch")
        self.version = str(torch.__version__)
        torch.set_num_threads(threads)

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        call = workload.torch_call(dict(arrays))
        return Side(self.name, call, lambda: [call().numpy()])
