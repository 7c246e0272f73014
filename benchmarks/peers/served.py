"""Peers that run in a process of their own, because their number of threads is settled when they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from benchmarks.common import Array, Side
from benchmarks.peers.base import Peer
from benchmarks.remote import Remote
from benchmarks.workloads import Workload


class ServedPeer(Peer):
    """A library behind a pipe."""

    module: ClassVar[str]
    """The program at the other end."""

    def __init__(self, threads: int) -> None:
        environment = {"OMP_NUM_THREADS": str(threads), **self.environment(threads)}
        self._remote = Remote(self.name, self.module, ["--threads", str(threads)], env=environment)
        self.version = self._remote.version

    def environment(self, threads: int) -> dict[str, str]:
        """Variables that the library reads when it is loaded."""
        return {}

    def side(self, workload: Workload, arrays: Mapping[str, Array]) -> Side:
        self._remote.prepare(workload, arrays)
        return self._remote.side()

    def close(self) -> None:
        self._remote.close()


class JaxPeer(ServedPeer):
    """JAX through XLA. Its threads are those of the cores it finds, so its process is kept on as many."""

    name = "jax"
    module = "benchmarks.peers.jax_side"

    def environment(self, threads: int) -> dict[str, str]:
        return {
            "JAX_PLATFORMS": "cpu",
            "NPROC": str(threads),
            "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}",
        }


class InductorPeer(ServedPeer):
    """``torch.compile`` with constant weights and every choice measured; needs a C++ compiler. Its number of threads
    is written into the code it generates and keeps."""

    name = "inductor"
    module = "benchmarks.peers.inductor_side"
