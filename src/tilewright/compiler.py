"""Compile a graph: fuse, look up the best record of every workload, plan memory, generate one machine-code function.

Nothing is measured here. A workload without a record gets its default schedule (or, with ``on_miss``, a warning or an error
that says which field of the key differed).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.arena import Block, plan
from tilewright.compiled import Array, Compiled, KernelInfo, Port, Slot
from tilewright.fixed import fixed_groups, report_fixed_outputs
from tilewright.graph.graph import Graph
from tilewright.graph.passes import prepared
from tilewright.graph.storage import storage
from tilewright.graph.workload import Workload
from tilewright.oversize import refuse_large_kernels, refuse_oversize
from tilewright.runtime import CONTRACT, MODEL, PREPARE, Executable
from tilewright.schedules import jit
from tilewright.schedules.kernel import Built, build
from tilewright.schedules.lower import module
from tilewright.schedules.steps import Schedule, ScheduleError, parse
from tilewright.schedules.target import Target
from tilewright.search_space.fusion import Group, fuse
from tilewright.tasks import default_for

log = logging.getLogger("tilewright")


class MissError(LookupError):
    """With ``on_miss='error'``: workloads without a record that can be used. The text names each and says why: which field of
    its key differs from the nearest record's, or why its record does not apply."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The schedule of one workload and where it came from (``record`` or ``default``, and why)."""

    schedule: Schedule
    source: str
    why: str


Lookup = Callable[[Workload], Choice | str]
"""A record's schedule, or the reason why there is none. Raises ScheduleError for a schedule that is none (any more)."""


def compile_graph(
    graph: Graph, target: Target, lookup: Lookup | None = None, on_miss: str = "fallback", algorithms: str = "any"
) -> Executable:
    """An executable model. ``on_miss`` is ``fallback`` (default schedules), ``warn`` or ``error`` (MissError naming every
    workload without a record and why). ``algorithms="direct"`` keeps default schedules to the sums as they are written."""
    return Executable(compile_model(graph, target, lookup, on_miss, algorithms))


def compile_model(
    graph: Graph, target: Target, lookup: Lookup | None = None, on_miss: str = "fallback", algorithms: str = "any"
) -> Compiled:
    """As :func:`compile_graph`, for any CPU target of this architecture: what a model file holds. Raises ModelError for a model
    that this machine has not the memory for, if it is the target."""
    if on_miss not in ("fallback", "warn", "error"):
        raise ValueError(f"on_miss: expected fallback, warn or error; got {on_miss!r}")
    refuse_oversize(graph, target)
    graph = prepared(graph)
    groups = fuse(graph, target)
    refuse_large_kernels(((g.origin, g.workload) for g in groups), target)
    once, kept = fixed_groups(graph, groups, storage(graph))
    report_fixed_outputs(graph, kept, storage(graph))
    chosen, kernels = _choose(groups, once, target, lookup, on_miss, algorithms)
    return _Linker(graph, target, groups, kernels, chosen, once, kept).link()


def _choose(
    groups: list[Group],
    once: frozenset[int],
    target: Target,
    lookup: Lookup | None,
    on_miss: str,
    algorithms: str,
) -> tuple[dict[str, Choice], dict[str, Built]]:
    """The schedule of every workload, and the kernel built with it. A record whose schedule does not apply any more is a miss
    like any other. Defaults are looked for only once it is clear that they are wanted; what runs ``once`` has no records."""
    first: dict[str, Group] = {}
    called = {g.workload.hash for k, g in enumerate(groups) if k not in once}
    for g in groups:
        first.setdefault(g.workload.hash, g)
    chosen: dict[str, Choice] = {}
    kernels: dict[str, Built] = {}
    misses: dict[str, _Missed] = {}
    for k, (key, g) in enumerate(first.items()):
        if key not in called:
            continue
        try:
            answer = "no records were asked for" if lookup is None else lookup(g.workload)
            if isinstance(answer, str):
                misses[key] = _Missed(answer, False)
                continue
            kernels[key] = build(g.workload, answer.schedule, target, f"k{k}", k)
            chosen[key] = answer
        except ScheduleError as error:
            misses[key] = _Missed(f"its record does not apply to this version: {error}", True)
    _report(first, misses, on_miss)
    for k, (key, g) in enumerate(first.items()):
        if key not in kernels:
            schedule = default_for(g.workload, target, algorithms).schedule
            why = misses[key].why if key in misses else "it runs once, when the model is loaded"
            chosen[key] = Choice(schedule, "default", why)
            kernels[key] = build(g.workload, schedule, target, f"k{k}", k)
    return chosen, {key: kernels[key] for key in first}


@dataclass(frozen=True, slots=True)
class _Missed:
    """Why a workload gets its default schedule; ``unused`` says that a record was found and cannot be used."""

    why: str
    unused: bool


def _report(first: dict[str, Group], misses: dict[str, _Missed], on_miss: str) -> None:
    """Do what ``on_miss`` says. A record that was found and cannot be used is worth a warning in any case."""
    texts = {key: f"{first[key].origin} ({first[key].workload.describe()}): {m.why}" for key, m in misses.items()}
    if misses and on_miss == "error":
        raise MissError(f"{len(misses)} of {len(first)} workloads have no record:\n  " + "\n  ".join(texts.values()))
    told = texts if on_miss == "warn" else {key: text for key, text in texts.items() if misses[key].unused}
    if told:
        log.warning("%d of %d workloads have no record and use their default schedule:", len(told), len(first))
        for text in told.values():
            log.warning("  %s", text)


class _Linker:
    """Lays out memory and writes the function that calls the kernels in order."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        groups: list[Group],
        kernels: dict[str, Built],
        chosen: dict[str, Choice],
        once: frozenset[int],
        kept: Sequence[str],
    ) -> None:
        self.graph = graph
        self.target = target
        self.groups = groups
        self.kernels = kernels
        self.chosen = chosen
        self.storage = storage(graph)
        self.constants: list[Array] = []
        self.constant_index: dict[str, int] = {}
        self.packed_bytes = 0
        self.once = once
        self.kept = {t: self._packed(graph.types[t].nbytes) for t in kept}

    def _packed(self, nbytes: int) -> int:
        """Room that lasts as long as the model."""
        at = self.packed_bytes
        self.packed_bytes += -(-(nbytes + 64) // 64) * 64
        return at

    def base(self, tensor: str) -> str:
        """The tensor in whose storage ``tensor`` lies."""
        return self.storage.of(tensor).root

    def link(self) -> Compiled:
        copies = self._output_copies()
        offsets, arena_bytes = plan(self._blocks(copies))
        slots: list[Slot] = []
        calls: list[str] = []
        prepares: list[str] = []
        direct = {self.base(t): k for k, t in enumerate(self.graph.outputs) if k not in copies}
        for step, g in enumerate(self.groups):
            built = self.kernels[g.workload.hash]
            name = f"k{list(self.kernels).index(g.workload.hash)}"
            pointer = f"%t{step}"
            line = f"  {pointer} = getelementptr inbounds ptr, ptr %table, i64 {len(slots)}"
            run = f"  call void @{name}(ptr {pointer})"
            prepares += [line, f"  call void @{name}.prepare(ptr {pointer})"]
            if step in self.once:
                prepares.append(run)
            else:
                calls += [line, run]
            slots += self._slots(step, g, built, offsets, direct)
        copy_text = self._copy_calls(copies, offsets, slots, calls)
        compiled = Compiled(
            self.target,
            tuple(Port(n, self.graph.types[n].shape, self.graph.types[n].dtype) for n in self.graph.inputs),
            tuple(
                Port(n, self.graph.types[t].shape, self.graph.types[t].dtype)
                for n, t in zip(self.graph.output_names, self.graph.outputs, strict=True)
            ),
            tuple(slots),
            tuple(self._info(g) for step, g in enumerate(self.groups) if step not in self.once),
            arena_bytes,
            self.packed_bytes,
            max((b.layout.thread_bytes for b in self.kernels.values()), default=0),
            tuple(self.constants),
            b"",
        )
        functions = "\n".join(
            [
                f"define void @{MODEL}(ptr %table) {{",
                *calls,
                "  ret void",
                "}",
                f"define void @{PREPARE}(ptr %table) {{",
                *prepares,
                "  ret void",
                "}",
                copy_text,
                f'@{CONTRACT} = constant [{len(compiled.contract)} x i8] c"{compiled.contract}"',
            ]
        )
        text = module([b.lowered for b in self.kernels.values()], functions)
        return replace(compiled, object_code=jit.compile_object(text, self.target))

    def _output_copies(self) -> list[int]:
        """Outputs that no kernel of a call can write straight: an input, a constant, what is computed once, or a tensor that is
        another output already."""
        seen: set[str] = set()
        out: list[int] = []
        for k, t in enumerate(self.graph.outputs):
            b = self.base(t)
            if b in self.graph.inputs or b in self.graph.constants or b in self.kept or b in seen:
                out.append(k)
            seen.add(b)
        return out

    def _blocks(self, copies: list[int]) -> list[Block]:
        outputs = {self.base(t) for k, t in enumerate(self.graph.outputs) if k not in copies}
        last: dict[str, int] = {}
        for step, g in enumerate(self.groups):
            for n, _, _ in g.workload.inputs:
                last[self.base(g.names[n])] = step
        first: dict[str, int] = {}
        for step, g in enumerate(self.groups):
            first.setdefault(self.base(g.output), step)
            last[self.base(g.output)] = max(step, last.get(self.base(g.output), step))
        placed = outputs | set(self.kept)
        blocks = [Block(t, self.graph.types[t].nbytes, step, last[t]) for t, step in first.items() if t not in placed]
        for step, g in enumerate(self.groups):
            built = self.kernels[g.workload.hash]
            sizes = dict(zip(built.layout.names, built.layout.nbytes, strict=True))
            for b in built.program.shared:
                blocks.append(Block(f"{step}/{b.name}", sizes[b.name], step, step))
        return blocks

    def _slots(self, step: int, g: Group, built: Built, offsets: dict[str, int], direct: dict[str, int]) -> list[Slot]:
        packed = {b.name for b in built.program.packed}
        shared = {b.name for b in built.program.shared}
        out: list[Slot] = []
        for n, nbytes in zip(built.layout.names, built.layout.nbytes, strict=True):
            if n in packed:
                out.append(Slot("packed", self._packed(nbytes)))
            elif n in shared:
                out.append(Slot("arena", offsets[f"{step}/{n}"]))
            else:
                out.append(self._tensor(g.names[n], offsets, direct))
        return [*out, Slot("thread", 0)]

    def _tensor(self, tensor: str, offsets: dict[str, int], direct: dict[str, int]) -> Slot:
        place = self.storage.of(tensor)
        t = place.root
        if t in self.graph.constants:
            if t not in self.constant_index:
                self.constant_index[t] = len(self.constants)
                self.constants.append(self.graph.constants[t])
            return Slot("constant", self.constant_index[t], place.offset)
        if t in self.graph.inputs:
            return Slot("input", self.graph.inputs.index(t), place.offset)
        if t in self.kept:
            return Slot("packed", self.kept[t] + place.offset)
        if t in direct:
            return Slot("output", direct[t], place.offset)
        return Slot("arena", offsets[t] + place.offset)

    def _copy_calls(self, copies: list[int], offsets: dict[str, int], slots: list[Slot], calls: list[str]) -> str:
        """Outputs that are copies: ``memcpy`` at the end."""
        direct = {self.base(t): k for k, t in enumerate(self.graph.outputs) if k not in copies}
        for k in copies:
            t = self.graph.outputs[k]
            at = len(slots)
            slots += [self._tensor(t, offsets, direct), Slot("output", k)]
            for m in (0, 1):
                calls.append(f"  %c{k}_{m} = getelementptr inbounds ptr, ptr %table, i64 {at + m}")
                calls.append(f"  %d{k}_{m} = load ptr, ptr %c{k}_{m}")
            nbytes = self.graph.types[t].nbytes
            calls.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr %d{k}_1, ptr %d{k}_0, i64 {nbytes}, i1 false)")
        return "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)" if copies else ""

    def _info(self, g: Group) -> KernelInfo:
        choice = self.chosen[g.workload.hash]
        name = f"k{list(self.kernels).index(g.workload.hash)}"
        return KernelInfo(
            name, g.origin, g.workload.hash, g.workload.describe(), str(choice.schedule), choice.source, choice.why
        )


def parse_choice(text: str, source: str, why: str) -> Choice:
    """A choice from a record's printed schedule."""
    return Choice(parse(text), source, why)
