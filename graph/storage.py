"""Where tensors lie: some stages only move data that could have been put in its place to begin with.

A view shares the storage of its source. A contiguous slice lies inside its source. Where tensors are joined along an axis
that is contiguous in the result, each part can be written by its own producer into its place, and the joining stage
has nothing left to do. All three are offsets between tensors; a tensor that lies in no other is a *root*.

A part can be put in place only if a kernel writes it (an input or a constant lies where its owner put it), if it lies in
no other joined tensor yet, if the model needs no more memory at once for it, if nothing but the parts themselves lies
in the range it takes (a slice of a larger tensor brings that tensor along), and if its place is at a multiple of
:data:`ALIGN` bytes, which kernels rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from tilewright.graph.expr import Load
from tilewright.graph.graph import Graph
from tilewright.graph.moves import joined_parts, slice_offset
from tilewright.graph.stage import Stage, View

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Place:
    """``offset`` bytes into the storage of ``root``."""

    root: str
    offset: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The place of every tensor that does not lie at the start of its own storage, and the stages that need no kernel."""

    places: Mapping[str, Place]
    absent: frozenset[str]
    parts: Mapping[str, tuple[str, ...]]
    """For each joined tensor that needs no kernel, the roots whose producers fill it."""
    source: Mapping[str, str]
    """For each view and slice, the tensor it is taken from, which is neither."""

    def of(self, tensor: str) -> Place:
        """Where ``tensor`` lies."""
        return self.places.get(tensor, Place(tensor, 0))

    def writers(self, tensor: str) -> list[str]:
        """The tensors that kernels (or the caller) write before ``tensor`` is complete."""
        out: list[str] = []
        waiting = [self.source.get(tensor, tensor)]
        while waiting:
            t = waiting.pop()
            if t in self.parts:
                waiting += [self.source.get(p, p) for p in self.parts[t]]
            else:
                out.append(t)
        return out


def storage(graph: Graph) -> Storage:
    """The places of all tensors of a graph, decided greedily in the order of its nodes."""
    return _Planner(graph).run()


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.producers()
        self.inside: dict[str, tuple[str, int]] = {}
        """Each tensor that lies in another one, and the element of that one where it begins."""
        self.source: dict[str, str] = {}
        self.parts: dict[str, tuple[str, ...]] = {}
        self.absent: set[str] = set()
        self.position: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.seen_outside = {self._viewed(o) for o in graph.outputs}

    def run(self) -> Storage:
        types = self.graph.types
        joins: list[tuple[Stage, list[tuple[str, int]]]] = []
        for n in self.graph.nodes:
            if isinstance(n, View):
                self._slice(n.output, n.source, 0)
                continue
            first = slice_offset(n, types)
            if first is not None and isinstance(n.body, Load):
                if n.output not in self.seen_outside and n.type.dtype == types[n.body.tensor].dtype:
                    self._slice(n.output, n.body.tensor, first)
                    self.absent.add(n.output)
                continue
            parts = joined_parts(n, types)
            if parts is not None:
                joins.append((n, parts))
        for n, parts in reversed(joins):  # a joined tensor that is a part itself takes its place before it is filled
            self._join(n, parts)
        places: dict[str, Place] = {}
        for t in self.inside:
            root, first = self._root(t)
            places[t] = Place(root, first * types[t].nbytes // max(1, types[t].size))
        return Storage(places, frozenset(self.absent), self.parts, self.source)

    def _viewed(self, t: str) -> str:
        n = self.nodes.get(t)
        while isinstance(n, View):
            t = n.source
            n = self.nodes.get(t)
        return t

    def _slice(self, tensor: str, source: str, first: int) -> None:
        self.inside[tensor] = source, first
        self.source[tensor] = self.source.get(source, source)

    def _root(self, t: str) -> tuple[str, int]:
        first = 0
        while t in self.inside:
            t, more = self.inside[t]
            first += more
        return t, first

    def _join(self, s: Stage, parts: list[tuple[str, int]]) -> None:
        """Put the parts of ``s`` into their places, if all of them can be."""
        ranges: dict[str, int] = {}
        element = s.type.nbytes // max(1, s.type.size)
        for t, at in parts:
            root, first = self._root(t)
            if not self._movable(root, s) or ranges.setdefault(root, at - first) != at - first:
                return
        spans = sorted((at, at + self.graph.types[r].size) for r, at in ranges.items())
        end = 0
        for low, high in spans:
            if low != end:  # a gap would stay unwritten, an overlap would be written twice
                return
            end = high
        base = self._root(s.output)[1]
        if end != s.type.size or any((base + at) * element % ALIGN for at in ranges.values()):
            return
        before = self._peak()
        self.inside |= {root: (s.output, at) for root, at in ranges.items()}
        if self._peak() > before:
            for root in ranges:
                del self.inside[root]
            return
        self.parts[s.output] = tuple(ranges)
        self.absent.add(s.output)

    def _peak(self) -> int:
        """The most bytes alive at one node. A joined tensor takes its whole storage from its first part on: joining must not make
        a model need more memory than it did, as its data would lie further from the processor."""
        if not self.position:
            self.position = {n.output: k for k, n in enumerate(self.graph.nodes)}
            self.last = {
                t: max((self.position[n.output] for n in c), default=-1) for t, c in self.graph.consumers().items()
            }
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for t, k in self.position.items():
            root = self._root(t)[0]
            first[root] = min(k, first.get(root, k))
            last[root] = max(k, self.last[t], last.get(root, k))
        change = [0] * (len(self.position) + 1)
        for root, k in first.items():
            if root in self.position:
                change[k] += self.graph.types[root].nbytes
                change[last[root] + 1] -= self.graph.types[root].nbytes
        return max(accumulate(change), default=0)

    def _movable(self, root: str, into: Stage) -> bool:
        n = self.nodes.get(root)
        return isinstance(n, Stage) and root not in self.seen_outside and root != into.output
