"""The libraries we are compared with, one small class each. A peer that is not installed, or that lacks an
operator, says so with `Lacking`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.peers.base import Peer as Peer
from benchmarks.peers.numpy_peer import NumpyPeer as NumpyPeer
from benchmarks.peers.onnxruntime_peer import OnnxRuntimePeer as OnnxRuntimePeer
from benchmarks.peers.openvino_peer import OpenVinoPeer as OpenVinoPeer
from benchmarks.peers.served import InductorPeer as InductorPeer
from benchmarks.peers.served import JaxPeer as JaxPeer
from benchmarks.peers.torch_peer import TorchPeer as TorchPeer
from benchmarks.serve import Lacking as Lacking

PEERS: Mapping[str, type[Peer]] = {
    p.name: p for p in (NumpyPeer, TorchPeer, InductorPeer, OnnxRuntimePeer, OpenVinoPeer, JaxPeer)
}


def make_peers(wanted: Sequence[str], threads: int) -> tuple[list[Peer], dict[str, str]]:
    """The peers that are here, set to ``threads``, and why the others are not."""
    found: list[Peer] = []
    absent: dict[str, str] = {}
    for name in wanted:
        try:
            found.append(PEERS[name](threads))
        except Lacking as error:
            absent[name] = str(error)
    return found, absent


@contextmanager
def open_peers(wanted: Sequence[str], threads: int) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """The same, closed at the end."""
    found, absent = make_peers(wanted, threads)
    with ExitStack() as stack:
        for peer in found:
            stack.callback(peer.close)
        yield found, absent
