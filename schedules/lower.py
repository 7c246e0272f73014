"""Lower a loop program to LLVM IR text: the functions of a kernel and how they are called.

A kernel is ``void name(ptr args)``: ``args`` points to the addresses of the inputs, the output, the packed buffers,
the shared buffers and the threads' scratch, in that order (:class:`Layout`), so that one signature serves every
kernel. Each part of the program is a function of its own, with a ``noalias`` pointer for each address, because that
is what tells LLVM that a store leaves the other tensors alone. A parallel part is handed to the pool of threads
(:mod:`~tilewright.schedules.pool`), which calls it for some of the fused iterations at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Expr
from tilewright.schedules import heap, maths
from tilewright.schedules.emit import Function
from tilewright.schedules.nest import Buffer, If, Loop, Node, Note, Parameter, Program, Seq, walk
from tilewright.schedules.pool import RUN
from tilewright.schedules.write_addresses import ZERO_BYTES, ZEROS
from tilewright.schedules.write_bounds import NOTE_BYTES
from tilewright.schedules.write_nodes import NodeWriter, constant_extent
from tilewright.schedules.write_scope import Scope
from tilewright.schedules.write_stores import ALIGN
from tilewright.schedules.write_values import value


@dataclass(frozen=True, slots=True)
class Layout:
    """What a kernel expects in ``args``: addresses of ``names`` in order (sizes in bytes), then the thread
    scratch."""

    names: tuple[str, ...]
    nbytes: tuple[int, ...]
    thread_bytes: int
    """Scratch of one thread; the last address of ``args`` points to ``NOTE_BYTES`` and ``threads`` times this."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """LLVM IR of one kernel, without the pieces that a module holds once."""

    functions: tuple[str, ...]
    declares: frozenset[str]
    helpers: frozenset[tuple[str, int, str]]
    layout: Layout


def lower(program: Program, name: str, threads: int, number: int = 0) -> Lowered:
    """The functions ``name`` (run) and ``name.prepare`` of a program, for up to ``threads`` threads; ``number`` tells the kernel from
    others of a model."""
    params: list[Parameter | Buffer] = [*program.inputs, program.output, *program.packed, *program.shared]
    nbytes = tuple(p.size * SIZES[p.dtype] for p in params)
    written = frozenset({b.name for b in program.packed} | {program.output.name})
    unit = _Unit({p.name: p.dtype for p in params}, written, threads, number)
    texts = unit.entry(f"{name}.prepare", program.prepare) + unit.entry(name, program.body)
    layout = Layout(tuple(p.name for p in params), nbytes, unit.thread_bytes)
    texts = [t.replace(_THREAD_BYTES, str(unit.thread_bytes)) for t in texts]
    return Lowered(tuple(texts), frozenset(unit.declares), frozenset(unit.helpers), layout)


def module(parts: list[Lowered], extra: str = "") -> str:
    """One LLVM module of several kernels."""
    declares: set[str] = set()
    helpers: set[tuple[str, int, str]] = set()
    texts: list[str] = []
    for p in parts:
        declares |= p.declares
        helpers |= p.helpers
        texts += p.functions
    for helper in sorted(helpers):
        text, needed = (heap if helper[0] in heap.FUNCTIONS else maths).define(*helper)
        texts.append(text)
        declares |= needed
    head = f"{ZEROS} = internal constant [{ZERO_BYTES} x i8] zeroinitializer, align 64"
    return "\n".join([head, *sorted(declares), *texts, extra, "!0 = !{i32 1}", ""])


_THREAD_BYTES = "@@THREAD_BYTES@@"
"""Stands for the scratch of one thread in the text, until all parts are written and the largest is known."""


class _Unit:
    """The functions of one kernel. Their pointer parameters are the tensors ``parameters`` and, last, the
    scratch."""

    def __init__(self, parameters: dict[str, str], written: frozenset[str], threads: int, number: int) -> None:
        self.parameters = parameters
        self.written = written
        self.threads = threads
        self.number = number
        self.pointers = range(len(parameters) + 1)
        self.thread_bytes = 0
        self.declares: set[str] = set()
        self.helpers: set[tuple[str, int, str]] = set()
        self.parts = 0

    def entry(self, name: str, body: Node) -> list[str]:
        """``name`` calls one part after the other; a part whose outermost loop is parallel runs on all threads."""
        texts: list[str] = []
        main = [f"define void @{name}(ptr %args) {{", "entry:"]
        self.parts = 0
        self._calls(name, body, texts, main)
        return [*texts, "\n".join([*main, "  ret void", "}"])]

    def _calls(self, name: str, body: Node, texts: list[str], main: list[str]) -> None:
        """The functions of the parts of ``body``, and in ``main`` their calls. A choice between parts is made there."""
        for part in body.nodes if isinstance(body, Seq) else (body,):
            if isinstance(part, Note):
                continue
            k = self.parts
            self.parts += 1
            body_name = f"{name}.{k}"
            if isinstance(part, If) and _has_regions(part):
                self._choice(body_name, part, texts, main)
                continue
            loops, inner, total = _parallel(part)
            texts.append(self._body(body_name, loops, inner))
            if loops and self.threads > 1 and total > 1:
                texts.append(self._worker(body_name))
                main.append(f"  call void @{RUN}_{self.threads}(ptr @{body_name}.worker, ptr %args, i64 {total})")
                self.declares.add(f"declare void @{RUN}_{self.threads}(ptr, ptr, i64)")
            else:
                main += self._addresses(f"c{k}_", f"d{k}_")
                main.append(self._call(body_name, f"c{k}_", f"i64 0, i64 {total}, i64 0"))

    def _choice(self, name: str, part: If, texts: list[str], main: list[str]) -> None:
        """One side or the other, by a condition that a function of its own looks up."""
        k = self.parts
        texts.append(self._condition(name, part.condition))
        main += self._addresses(f"c{k}_", f"d{k}_")
        args = ", ".join(f"ptr %c{k}_{n}" for n in self.pointers)
        main.append(f"  %if{k} = call i1 @{name}({args})")
        main.append(f"  br i1 %if{k}, label %then{k}, label %else{k}")
        for side, body in (("then", part.then), ("else", part.otherwise)):
            main.append(f"{side}{k}:")
            self.parts += 1
            if body is not None:
                self._calls(name, body, texts, main)
            main.append(f"  br label %after{k}")
        main.append(f"after{k}:")

    def _condition(self, name: str, condition: Expr) -> str:
        fn, scope = self._scope()
        v = value(scope, condition)
        self.declares |= fn.declares
        pointers = ", ".join(f"ptr noalias %p{k}" for k in self.pointers)
        head = f"define internal i1 @{name}({pointers}) noinline nounwind {{"
        return "\n".join([head, "entry:", *fn.allocas, *fn.lines, f"  ret i1 {v.name}", "}"])

    def _scope(self) -> tuple[Function, Scope]:
        """A function of all tensors, to be written."""
        fn = Function()
        scope = Scope(fn, self.parameters, self.written, self.helpers)
        for k, (tensor, dtype) in enumerate(self.parameters.items()):
            scope.pointers[tensor] = (f"%p{k}", dtype)
        scope.notes = (f"%p{self.pointers[-1]}", self.number)
        return fn, scope

    def _addresses(self, pointer: str, place: str) -> list[str]:
        """Load the addresses in ``%args``; SSA names begin with ``pointer`` and ``place``."""
        lines: list[str] = []
        for k in self.pointers:
            lines.append(f"  %{place}{k} = getelementptr inbounds ptr, ptr %args, i64 {k}")
            lines.append(f"  %{pointer}{k} = load ptr, ptr %{place}{k}, align 8")
        return lines

    def _call(self, body: str, pointer: str, share: str) -> str:
        args = ", ".join(f"ptr %{pointer}{k}" for k in self.pointers)
        return f"  call void @{body}({args}, {share})"

    def _worker(self, body: str) -> str:
        """What the pool calls: some of the iterations, on one thread."""
        lines = [
            f"define internal void @{body}.worker(ptr %args, i64 %lo, i64 %hi, i64 %t) {{",
            *self._addresses("p", "q"),
            self._call(body, "p", "i64 %lo, i64 %hi, i64 %t"),
            "  ret void",
            "}",
        ]
        return "\n".join(lines)

    def _body(self, name: str, loops: list[Loop], inner: Node) -> str:
        fn, scope = self._scope()
        mine = fn.op(f"mul i64 %tid, {_THREAD_BYTES}", "int64").name
        mine = fn.op(f"add i64 {mine}, {NOTE_BYTES}", "int64").name
        scratch = fn.op(f"getelementptr inbounds i8, ptr %p{self.pointers[-1]}, i64 {mine}", "int64").name
        writer = NodeWriter(scope, scratch)
        if loops:
            writer.parallel(loops, inner)
        else:
            writer.node(inner)
        self.thread_bytes = max(self.thread_bytes, writer.peak)
        self.declares |= fn.declares
        pointers = ", ".join(f"ptr noalias %p{k}" for k in self.pointers)
        head = f"define internal void @{name}({pointers}, i64 %lo, i64 %hi, i64 %tid) noinline nounwind alignstack({ALIGN}) {{"
        return "\n".join([head, "entry:", *fn.allocas, *fn.lines, "  ret void", "}"])


def _has_regions(part: If) -> bool:
    """Whether a side of a choice has parallel parts, so that the choice is made outside of all functions of parts."""
    sides = [n for n in (part.then, part.otherwise) if n is not None]
    return any(isinstance(n, Loop) and n.kind == "parallel" for side in sides for n in walk(side))


def _parallel(node: Node) -> tuple[list[Loop], Node, int]:
    """The parallel loops at the top of a part, what is inside them, and their number of iterations."""
    loops: list[Loop] = []
    total = 1
    while isinstance(node, Loop) and node.kind == "parallel":
        loops.append(node)
        total *= constant_extent(node)
        node = node.body
    return loops, node, total
