"""NumPy with its OpenBLAS."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.backends import NumpyOps
from benchmarks.common import Array, Side, aligned_copy
from benchmarks.peers.base import Peer, needed
from benchmarks.workloads import Workload


class NumpyPeer(Peer):
    """NumPy with its OpenBLAS. Single matrix products and transposes write into an array that is there."""

    name = "numpy"

    def __init__(self, threads: int) -> None:
        self.version = np.__version__
        control = needed("threadpoolctl")
        control.threadpool_limits(threads, user_api="blas")

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        values = [arrays[i.name] for i in workload.inputs]
        kept = aligned_copy(np.zeros(workload.shape, np.float32)) if workload.is_single else None
        ops, body = NumpyOps(kept), workload.body
        return Side(self.name, lambda: body(ops, *values), lambda: [np.asarray(body(ops, *values))])
