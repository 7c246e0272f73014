"""Fusion: which stages become one kernel. Greedy for now: a reduction takes its padding and cheap prologue, and everything
element-wise after it that keeps in step; reductions over shared rows (softmax, normalisation) are taken together; what is left
are injective chains.

A group hands on exactly one tensor: it may grow over a diamond, and is cut where an intermediate is needed elsewhere.
Stages that only move data that can be put in its place by whoever writes it (``graph/storage.py``) are in no group.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.graph.expr import Const, Var
from tilewright.graph.folding import constant_tensors
from tilewright.graph.graph import MAX_DEPTH, Graph
from tilewright.graph.ordered import Select
from tilewright.graph.stage import Stage
from tilewright.graph.storage import storage
from tilewright.graph.traverse import depth, loads
from tilewright.graph.workload import Workload, canonical
from tilewright.schedules.target import Target
from tilewright.search_space.attention_rule import attention_sketches
from tilewright.search_space.prologue import is_cheap, is_contraction, is_move, is_padding, takes_work
from tilewright.search_space.rows_rule import rows_sketches

MAX_STAGES = 24
"""A group stops growing here: longer chains gain nothing and compile slowly."""


def _room(group: Collection[Stage], s: Stage) -> bool:
    """Whether a group may take another stage: all of them may be inlined into one expression."""
    return len(group) < MAX_STAGES and sum(depth(t.body) for t in group) + depth(s.body) <= MAX_DEPTH


@dataclass(frozen=True)
class Group:
    """The stages of one kernel, in order, the tensor it hands on, its workload, and the workload's tensor names in the graph."""

    stages: tuple[Stage, ...]
    output: str
    workload: Workload
    names: dict[str, str]

    @property
    def origin(self) -> str:
        """The model's name of the main stage, for reports."""
        main = max(self.stages, key=lambda s: s.points)
        return main.origin or main.output


def fuse(graph: Graph, target: Target) -> list[Group]:
    """Partition the stages of a graph into groups, in an order in which they can run."""
    return _Fuser(graph, target).run()


class _Fuser:
    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.target = target
        self.storage = storage(graph)
        self.stages = [n for n in graph.nodes if isinstance(n, Stage) and n.output not in self.storage.absent]
        self.position = {n.output: k for k, n in enumerate(graph.nodes)}
        self.producer = {s.output: s for s in self.stages}
        self.readers: dict[str, list[str]] = {t: [] for t in graph.types}
        for n in graph.nodes:
            for s in n.sources:
                self.readers[s].append(n.output)
        self.taken: set[str] = set()
        self.fixed = constant_tensors(graph)

    def run(self) -> list[Group]:
        groups: list[list[Stage]] = []
        for s in self.stages:
            if s.reducer is not None and s.output not in self.taken:
                groups.append(self._reduction(s))
        for s in self.stages:
            if s.output not in self.taken:
                groups.append(self._take(self._with_feeders(self._grow([s], rows=False))))
        return self._ordered([self._group(g) for g in groups])

    def _take(self, group: list[Stage]) -> list[Stage]:
        self.taken |= {s.output for s in group}
        return group

    def _reduction(self, s: Stage) -> list[Stage]:
        if s.ordered is not None:
            # a selection reads each value again where it may be kept, so it reads what is stored
            return self._take([s] if isinstance(s.ordered, Select) else [*self._prologue(s), s])
        if is_contraction(s) and (whole := self._attention(s)):
            return self._take(whole)
        rows = not is_contraction(s)
        group = self._grow([*self._prologue(s), s], rows)
        return self._take(group if rows else self._with_feeders(group))

    def _attention(self, first: Stage) -> list[Stage]:
        """A contraction, the reductions of its rows, and the contraction that reads them; empty if there is no such group."""
        current = [*self._prologue(first), first]
        inside = {s.output for s in current}
        for s in self.stages:
            if self.position[s.output] <= self.position[first.output] or s.output in self.taken:
                continue
            if not any(source in inside for source in s.sources):
                continue
            if (
                s.ordered is not None
                or not self._in_step(s, inside, first, rows=True)
                or not _room(current, s)
                or self._would_repeat(s, current)
            ):
                return []
            if s.reducer is None and s.type.size > first.type.size:
                return []
            current.append(s)
            inside.add(s.output)
            if is_contraction(s):
                current += [p for p in self._prologue(s) if p.output not in inside]
                return self._handed_on(sorted(current, key=lambda t: self.position[t.output]))
        return []

    def _handed_on(self, group: list[Stage]) -> list[Stage]:
        """The group with the maps behind it that keep in step (a transpose of the result, a sum with something else), as far as
        the attention rule takes them; empty if it does not take the group itself."""
        best: list[Stage] = []
        while True:
            inside = {s.output for s in group}
            last = group[-1]
            escaping = [s.output for s in group if self._escapes(s.output, inside)]
            if escaping != [last.output] or not attention_sketches(self._group(group).workload, self.target):
                break
            best = group
            readers = [self.producer.get(r) for r in self.readers[last.output]]
            after = readers[0] if len(readers) == 1 and last.output not in self.graph.outputs else None
            if after is None or after.output in self.taken or not self._in_step(after, inside, last, rows=False):
                break
            if not _room(group, after):
                break
            group = [*group, after]
        return best

    def _prologue(self, s: Stage, above: tuple[Stage, ...] = ()) -> list[Stage]:
        """Padding and cheap stages that only ``s`` reads, and what only they read; ``above`` are those that read ``s``."""
        out: list[Stage] = []
        if not _room(above, s):
            return out
        for source in s.sources:
            p = self.producer.get(source)
            if p is None or p.reducer is not None or source in self.taken or source in self.graph.outputs:
                continue
            if self.readers[source] != [s.output]:
                continue
            if is_padding(p):
                out.append(p)
            elif is_move(p) or (is_cheap(p) and not is_contraction(s)):
                out += [*self._prologue(p, (*above, s)), p]
        return out

    def _with_feeders(self, group: list[Stage]) -> list[Stage]:
        """The group and the maps that only its maps read, where computing them there repeats no work that counts: another
        branch that meets this one, however it is read (an enlarged image, a transposed tensor)."""
        members = {s.output: s for s in group}
        waiting = [s for s in group if s.reducer is None]
        before = {t for s in group if s.reducer is not None for t in s.sources}
        while waiting:
            s = waiting.pop()
            for source in s.sources:
                p = self.producer.get(source)
                if p is None or p.reducer is not None or source in members or source in self.taken or source in before:
                    continue
                if s.output in before or self._escapes(source, set(members)):
                    continue
                if is_cheap(p) and _room(members.values(), p):
                    members[source] = p
                    waiting.append(p)
        return sorted(members.values(), key=lambda s: self.position[s.output])

    def _grow(self, group: list[Stage], rows: bool) -> list[Stage]:
        """Add readers in order; remember the largest set that hands on one tensor and fits a rule."""
        best = list(group)
        inside = {s.output for s in group}
        current = list(group)
        start = self.position[group[-1].output]
        reductions = sum(s.reducer is not None for s in group)
        for s in self.stages:
            if self.position[s.output] <= start or s.output in self.taken or not _room(current, s):
                continue
            if not any(source in inside for source in s.sources):
                continue
            if s.reducer is not None and (not rows or s.ordered is not None or is_contraction(s)):
                continue
            if not self._in_step(s, inside, group[-1], rows) or self._would_repeat(s, current):
                continue
            current.append(s)
            inside.add(s.output)
            escaping = [t.output for t in current if self._escapes(t.output, inside)]
            if escaping == [s.output] and self._fits(current, rows, reductions):
                best = list(current)
        return best

    def _would_repeat(self, s: Stage, group: Sequence[Stage]) -> bool:
        """Whether every call would compute anew, together with ``s``, what depends on no input and takes work: it runs once, when
        the model is loaded, if it has a kernel of its own."""
        return s.output not in self.fixed and any(t.output in self.fixed and takes_work(t) for t in group)

    def _escapes(self, tensor: str, inside: set[str]) -> bool:
        return tensor in self.graph.outputs or any(r not in inside for r in self.readers[tensor])

    def _in_step(self, s: Stage, inside: set[str], anchor: Stage, rows: bool) -> bool:
        """Whether ``s`` reads every tensor of the group by plain axes (or, in rows, by a constant where the extent is 1)."""
        for load in loads(s.body):
            if load.tensor not in inside:
                continue
            shape = self.graph.types[load.tensor].shape
            if not all(
                isinstance(i, Var) or (isinstance(i, Const) and e == 1) for i, e in zip(load.index, shape, strict=True)
            ):
                return False
            if not rows and len({i.name for i in load.index if isinstance(i, Var)}) != sum(
                isinstance(i, Var) for i in load.index
            ):
                return False
        if rows:
            return True
        return s.reducer is None and s.type.size == anchor.type.size

    def _fits(self, stages: list[Stage], rows: bool, before: int) -> bool:
        """Whether a rule makes good code of the group: several reductions, or one that is read back over its own axis, need
        the rows rule."""
        reductions = [s for s in stages if s.reducer is not None]
        if not rows or not reductions:
            return True
        final = stages[-1]
        if len(reductions) == 1 and final.reducer is None and final.type.size == reductions[0].type.size:
            return True
        if final.reducer is not None:
            return False
        return bool(rows_sketches(self._group(stages).workload, self.target))

    def _group(self, stages: Sequence[Stage]) -> Group:
        output = stages[-1].output
        workload, names = canonical(stages, output, self.graph.types, self.graph.constants)
        return Group(tuple(stages), output, workload, names)

    def _ordered(self, groups: list[Group]) -> list[Group]:
        """Sort so that every group runs after the groups that write what it reads."""
        done = {*self.graph.inputs, *self.graph.constants}
        waiting = sorted(groups, key=lambda g: self.position[g.output])
        out: list[Group] = []
        while waiting:
            for k, g in enumerate(waiting):
                needed = {t for n, _, _ in g.workload.inputs for t in self.storage.writers(g.names[n])}
                if needed <= done:
                    out.append(waiting.pop(k))
                    done.add(g.output)
                    break
            else:
                raise AssertionError("fusion made groups that wait for each other")
        return out
