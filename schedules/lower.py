"""Lower a loop program to LLVM IR text.

Design choices: unrolled loops are repeated here, with their variables as constants; a register buffer is an
``alloca`` whose addresses are then all constant, so that LLVM's SROA turns it into SSA values; vectors have
exactly the width of the vector loop (16 or 24 lanes, or 5 in a remainder) and LLVM splits or widens them to
what the target has; parallel loops call the OpenMP ABI. A kernel is ``void name(ptr args)``: ``args`` points
to the addresses of the inputs, the output, the packed buffers, the shared buffers and the threads' scratch,
in that order (:class:`Layout`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.graph.affine import Affine, affine
from tilewright.graph.dtypes import FLOATS, SIZES
from tilewright.graph.expr import Const, Expr, Load, Op, binary
from tilewright.schedules import maths
from tilewright.schedules.emit import (
    FAST,
    LLVM_TYPES,
    Function,
    Value,
    memory_type,
    splat_literal,
    vector_type,
)
from tilewright.schedules.nest import (
    Alloc,
    Buffer,
    If,
    Loop,
    Node,
    Note,
    Parameter,
    Program,
    Seq,
    Store,
    walk,
)
from tilewright.schedules.pool import RUN
from tilewright.schedules.scalar import REDUCER_OPS, across, operate

ALIGN = 64
ZEROS = "@tw_zeros"
ZERO_BYTES = 2048
"""What a guarded load reads instead: 256 lanes of 8 bytes (:data:`tilewright.schedules.apply.MAX_LANES`)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a kernel expects in ``args``: addresses of ``names`` in order (sizes in bytes), then the thread
    scratch."""

    names: tuple[str, ...]
    nbytes: tuple[int, ...]
    thread_bytes: int
    """Scratch of one thread; the last address of ``args`` points to ``threads`` times this."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """LLVM IR of one kernel, without the pieces that a module holds once."""

    functions: tuple[str, ...]
    declares: frozenset[str]
    helpers: frozenset[tuple[str, int, str]]
    layout: Layout


def lower(program: Program, name: str, threads: int) -> Lowered:
    """The functions ``name`` (run) and ``name.prepare`` of a program, for up to ``threads`` threads."""
    params: list[Parameter | Buffer] = [*program.inputs, program.output, *program.packed, *program.shared]
    names = tuple(p.name for p in params)
    nbytes = tuple(p.size * SIZES[p.dtype] for p in params)
    dtypes = {p.name: p.dtype for p in params}
    unit = _Unit(names, dtypes, threads, {b.name for b in program.packed} | {program.output.name})
    texts = unit.entry(f"{name}.prepare", program.prepare) + unit.entry(name, program.body)
    layout = Layout(names, nbytes, unit.thread_bytes)
    texts = [t.replace("@@THREAD_BYTES@@", str(unit.thread_bytes)) for t in texts]
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
        text, needed = maths.define(*helper)
        texts.append(text)
        declares |= needed
    head = f"{ZEROS} = internal constant [{ZERO_BYTES} x i8] zeroinitializer, align 64"
    return "\n".join([head, *sorted(declares), *texts, extra, "!0 = !{i32 1}", ""])




class _Unit:
    """The functions of one kernel."""

    def __init__(self, names: tuple[str, ...], dtypes: dict[str, str], threads: int, written: set[str]) -> None:
        self.names = names
        self.dtypes = dtypes
        self.threads = threads
        self.written = written
        self.thread_bytes = 0
        self.declares: set[str] = set()
        self.helpers: set[tuple[str, int, str]] = set()

    def entry(self, name: str, body: Node) -> list[str]:
        """``name`` calls one part after the other; a part whose outermost loop is parallel runs on all
        threads."""
        parts = [n for n in (body.nodes if isinstance(body, Seq) else (body,)) if not isinstance(n, Note)]
        texts: list[str] = []
        main = [f"define void @{name}(ptr %args) {{"]
        pointers = ", ".join(f"ptr noalias %p{k}" for k in range(len(self.names) + 1))
        for k, part in enumerate(parts):
            loops, inner, total = _parallel(part)
            body_name = f"{name}.{k}"
            texts.append(self._body(body_name, pointers, loops, inner))
            if loops and self.threads > 1 and total > 1:
                texts.append(self._worker(body_name))
                main.append(f"  call void @{RUN}_{self.threads}(ptr @{body_name}.worker, ptr %args, i64 {total})")
                self.declares.add(f"declare void @{RUN}_{self.threads}(ptr, ptr, i64)")
            else:
                loads = [self._load_pointer(m) for m in range(len(self.names) + 1)]
                main += [line.replace("%p", f"%c{k}_").replace("%q", f"%d{k}_") for pair in loads for line in pair]
                args = ", ".join(f"ptr %c{k}_{m}" for m in range(len(self.names) + 1))
                main.append(f"  call void @{body_name}({args}, i64 0, i64 {total}, i64 0)")
        return [*texts, "\n".join([*main, "  ret void", "}"])]

    @staticmethod
    def _load_pointer(k: int) -> list[str]:
        return [
            f"  %q{k} = getelementptr inbounds ptr, ptr %args, i64 {k}",
            f"  %p{k} = load ptr, ptr %q{k}, align 8",
        ]

    def _worker(self, body: str) -> str:
        """What the pool calls: some of the iterations, on one thread."""
        lines = [f"define internal void @{body}.worker(ptr %args, i64 %lo, i64 %hi, i64 %t) {{"]
        for k in range(len(self.names) + 1):
            lines += self._load_pointer(k)
        args = ", ".join(f"ptr %p{k}" for k in range(len(self.names) + 1))
        lines += [f"  call void @{body}({args}, i64 %lo, i64 %hi, i64 %t)", "  ret void", "}"]
        return "\n".join(lines)

    def _body(self, name: str, pointers: str, loops: list[Loop], inner: Node) -> str:
        fn = Function()
        writer = _Writer(self, fn)
        scratch = f"%p{len(self.names)}"
        writer.thread_base = fn.op("mul i64 %tid, @@THREAD_BYTES@@", "int64").name
        writer.thread_base = fn.op(f"getelementptr inbounds i8, ptr {scratch}, i64 {writer.thread_base}", "int64").name
        for k, n in enumerate(self.names):
            writer.pointers[n] = (f"%p{k}", self.dtypes[n])
        if loops:
            writer.parallel(loops, inner)
        else:
            writer.node(inner)
        self.thread_bytes = max(self.thread_bytes, writer.peak)
        self.declares |= fn.declares
        head = f"define internal void @{name}({pointers}, i64 %lo, i64 %hi, i64 %tid) noinline nounwind {{"
        return "\n".join([head, "entry:", *fn.allocas, *fn.lines, "  ret void", "}"])


def _parallel(node: Node) -> tuple[list[Loop], Node, int]:
    """The parallel loops at the top of a part, what is inside them, and their number of iterations."""
    loops: list[Loop] = []
    total = 1
    while isinstance(node, Loop) and node.kind == "parallel":
        loops.append(node)
        assert isinstance(node.extent, Const)
        total *= int(node.extent.value)
        node = node.body
    return loops, node, total


Key = tuple[object, ...]


class _Writer:
    """Writes the body of one part."""

    def __init__(self, unit: _Unit, fn: Function) -> None:
        self.unit = unit
        self.fn = fn
        self.pointers: dict[str, tuple[str, str]] = {}
        self.registers: set[str] = set()
        self.vars: dict[str, int | str] = {}
        self.lane: tuple[str, int] | None = None
        self.first = 0
        """The first lane of the piece of a vector loop being written."""
        self.guard: Value | None = None
        self.thread_base = ""
        self.top = 0
        self.peak = 0
        self.addresses: list[dict[Key, str]] = [{}]
        self.loaded: dict[Key, Value] = {}
        self.affine: dict[Expr, Affine | None] = {}

    # ------------------------------------------------------------ nodes

    def node(self, n: Node) -> None:
        """Write one node."""
        if isinstance(n, Seq):
            for child in n.nodes:
                self.node(child)
        elif isinstance(n, Loop):
            self._loop(n)
        elif isinstance(n, Store):
            self._store(n)
        elif isinstance(n, Alloc):
            self._alloc(n)
        elif isinstance(n, If):
            self._if(n)

    def parallel(self, loops: list[Loop], inner: Node) -> None:
        """A serial loop over this thread's share of the fused iterations."""
        counts = [int(lp.extent.value) for lp in loops if isinstance(lp.extent, Const)]

        def body(flat: str) -> None:
            rest = flat
            for lp, count in zip(reversed(loops[1:]), reversed(counts[1:]), strict=True):
                self.vars[lp.var] = self.fn.op(f"urem i64 {rest}, {count}", "int64").name
                rest = self.fn.op(f"udiv i64 {rest}, {count}", "int64").name
            self.vars[loops[0].var] = rest
            self.node(inner)

        self._counted("%lo", "%hi", body)

    def _counted(self, start: str, stop: str, body: Callable[[str], None]) -> None:
        fn = self.fn
        head, done = fn.new_label("loop"), fn.new_label("done")
        enter = fn.op(f"icmp slt i64 {start}, {stop}", "bool")
        before = fn.block
        fn.branch_if(enter, head, done)
        fn.label(head)
        iv, following = fn.fresh("i"), fn.fresh("n")
        place = len(fn.lines)
        fn.lines.append("")
        with self._scope():
            body(iv)
        fn.do(f"{following} = add nuw nsw i64 {iv}, 1")
        again = fn.op(f"icmp slt i64 {following}, {stop}", "bool")
        fn.lines[place] = f"  {iv} = phi i64 [ {start}, %{before} ], [ {following}, %{fn.block} ]"
        fn.branch_if(again, head, done)
        fn.label(done)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """A block of its own: addresses made inside are not seen outside, loads neither way."""
        outer = self.loaded
        self.addresses.append({})
        self.loaded = {}
        yield
        self.addresses.pop()
        self.loaded = {k: v for k, v in outer.items() if k[0] not in self.unit.written and k[0] in self.unit.dtypes}

    def _loop(self, n: Loop) -> None:
        if n.kind == "unroll":
            assert isinstance(n.extent, Const)
            for k in range(int(n.extent.value)):
                self.vars[n.var] = k
                self.node(n.body)
            del self.vars[n.var]
            return
        if n.kind == "vector":
            assert isinstance(n.extent, Const)
            first = 0
            for lanes in powers_of_two(int(n.extent.value)):
                self._vector(n, first, lanes)
                first += lanes
            return
        stop = self.value(n.extent)

        def body(iv: str) -> None:
            self.vars[n.var] = iv
            self.node(n.body)
            del self.vars[n.var]

        if isinstance(n.extent, Const) and int(n.extent.value) == 1:
            self.vars[n.var] = 0
            self.node(n.body)
            del self.vars[n.var]
            return
        self._counted("0", stop.name, body)

    def _vector(self, n: Loop, first: int, lanes: int) -> None:
        """Lanes ``first`` to ``first + lanes`` of a vector loop at once."""
        if lanes == 1:
            self.vars[n.var] = first
            self.node(n.body)
            del self.vars[n.var]
            return
        self.lane, self.first = (n.var, lanes), first
        self.node(n.body)
        self.lane, self.first = None, 0

    def _if(self, n: If) -> None:
        fn = self.fn
        condition = self.value(n.condition)
        then, otherwise, done = fn.new_label("then"), fn.new_label("else"), fn.new_label("fi")
        fn.branch_if(condition, then, otherwise if n.otherwise is not None else done)
        fn.label(then)
        with self._scope():
            self.node(n.then)
        fn.branch(done)
        if n.otherwise is not None:
            fn.label(otherwise)
            with self._scope():
                self.node(n.otherwise)
            fn.branch(done)
        fn.label(done)

    def _alloc(self, n: Alloc) -> None:
        b = n.buffer
        saved = self.pointers.get(b.name)
        if b.scope == "register":
            name = self.fn.fresh("r")
            self.fn.allocas.append(f"  {name} = alloca [{b.size} x {memory_type(b.dtype)}], align {ALIGN}")
            self.pointers[b.name] = (name, b.dtype)
            self.registers.add(b.name)
            self.node(n.body)
            self.registers.discard(b.name)
        else:
            offset = self.top
            self.top += -(-(b.size * SIZES[b.dtype] + ZERO_BYTES) // ALIGN) * ALIGN
            self.peak = max(self.peak, self.top)
            pointer = self.fn.op(f"getelementptr inbounds i8, ptr {self.thread_base}, i64 {offset}", "int64")
            self.pointers[b.name] = (pointer.name, b.dtype)
            self.node(n.body)
            self.top = offset
        if saved is None:
            del self.pointers[b.name]
        else:
            self.pointers[b.name] = saved
        self.loaded = {k: v for k, v in self.loaded.items() if k[0] != b.name}
        for level in self.addresses:
            for key in [k for k in level if k[0] == b.name]:
                del level[key]

    # ------------------------------------------------------------ memory

    def _affine(self, e: Expr) -> Affine | None:
        if e not in self.affine:
            self.affine[e] = affine(e)
        return self.affine[e]

    def _address(self, tensor: str, a: Affine) -> tuple[str, int, int]:
        """Pointer without the constant part, the constant (in elements), and the stride over lanes."""
        constant, stride = a.const, 0
        dynamic: list[tuple[str, int]] = []
        for v, c in a.terms:
            if self.lane is not None and v == self.lane[0]:
                stride = c
                constant += c * self.first
                continue
            value = self.vars[v]
            if isinstance(value, int):
                constant += c * value
            else:
                dynamic.append((value, c))
        pointer, dtype = self.pointers[tensor]
        if not dynamic:
            return pointer, constant, stride
        key: Key = (tensor, *sorted(dynamic))
        for level in reversed(self.addresses):
            found = level.get(key)
            if found is not None:
                return found, constant, stride
        offset = self._sum(dynamic)
        found = self.fn.op(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {offset}", "int64").name
        self.addresses[-1][key] = found
        return found, constant, stride

    def _sum(self, dynamic: list[tuple[str, int]]) -> str:
        total = ""
        for value, c in dynamic:
            part = value if c == 1 else self.fn.op(f"mul nsw i64 {value}, {c}", "int64").name
            total = part if not total else self.fn.op(f"add nsw i64 {total}, {part}", "int64").name
        return total

    def _offset(self, pointer: str, constant: int, dtype: str) -> str:
        if constant == 0:
            return pointer
        return self.fn.op(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {constant}", "int64").name

    def _load(self, e: Load) -> Value:
        a = self._affine(e.index[0])
        if a is None:
            return self._gather(e)
        lane = (*self.lane, self.first) if self.lane is not None else None
        key: Key = (e.tensor, a, self.guard, *(self.vars.get(v, lane) for v, _ in a.terms))
        if e.tensor not in self.registers:
            found = self.loaded.get(key)
            if found is not None:
                return found
        pointer, constant, stride = self._address(e.tensor, a)
        value = self._load_at(e, pointer, constant, stride)
        if e.tensor not in self.registers:
            self.loaded[key] = value
        return value

    def _load_at(self, e: Load, pointer: str, constant: int, stride: int) -> Value:
        lanes = self.lane[1] if self.lane is not None else 1
        guard = self.guard
        if guard is not None and guard.lanes > 1:
            return self._masked(e, pointer, constant, stride, guard)
        if stride == 0 or lanes == 1:
            return self._read(e.dtype, self._guarded(self._offset(pointer, constant, e.dtype)), 1)
        if guard is not None and abs(stride) != 1:
            pointers = [self._guarded(self._offset(pointer, constant + k * stride, e.dtype)) for k in range(lanes)]
            return self._collect(e.dtype, pointers)
        if stride == 1:
            return self._read(e.dtype, self._guarded(self._offset(pointer, constant, e.dtype)), lanes)
        if stride == -1:
            low = self._guarded(self._offset(pointer, constant - lanes + 1, e.dtype))
            return self.fn.shuffle(self._read(e.dtype, low, lanes), None, list(range(lanes - 1, -1, -1)))
        if stride == 2:
            return self._every_second(e.dtype, pointer, constant, lanes)
        return self._collect(e.dtype, [self._offset(pointer, constant + k * stride, e.dtype) for k in range(lanes)])

    def _every_second(self, dtype: str, pointer: str, constant: int, lanes: int) -> Value:
        """Two contiguous loads and a shuffle; the second starts one early so as not to read past the last
        element."""
        low = self._read(dtype, self._offset(pointer, constant, dtype), lanes)
        high = self._read(dtype, self._offset(pointer, constant + lanes - 1, dtype), lanes)
        mask = [2 * k if 2 * k < lanes else lanes + 2 * k - (lanes - 1) for k in range(lanes)]
        return self.fn.shuffle(low, high, mask)

    def _collect(self, dtype: str, pointers: list[str]) -> Value:
        lanes = len(pointers)
        out = Value("poison", dtype, lanes)
        for k, p in enumerate(pointers):
            one = self._read(dtype, p, 1)
            out = self.fn.op(f"insertelement {out.typed}, {one.typed}, i64 {k}", dtype, lanes)
        return out

    def _guarded(self, pointer: str) -> str:
        if self.guard is None:
            return pointer
        return self.fn.op(f"select {self.guard.typed}, ptr {pointer}, ptr {ZEROS}", "int64").name

    def _read(self, dtype: str, pointer: str, lanes: int) -> Value:
        memory = vector_type(memory_type(dtype), lanes)
        v = self.fn.op(f"load {memory}, ptr {pointer}, align {SIZES[dtype]}", dtype, lanes)
        if dtype != "bool":
            return v
        return self.fn.op(f"icmp ne {memory} {v.name}, {splat_literal(0, 'int8', lanes)}", "bool", lanes)

    def _masked(self, e: Load, pointer: str, constant: int, stride: int, guard: Value) -> Value:
        lanes = guard.lanes
        if stride == 1 and e.dtype != "bool":
            memory = vector_type(memory_type(e.dtype), lanes)
            name = f"@llvm.masked.load.v{lanes}{_mangle(e.dtype)}.p0"
            address = self._offset(pointer, constant, e.dtype)
            self.fn.declare(f"declare {memory} {name}(ptr, i32 immarg, {guard.type}, {memory})")
            return self.fn.op(
                f"call {memory} {name}(ptr {address}, i32 {SIZES[e.dtype]}, {guard.typed}, {memory} zeroinitializer)",
                e.dtype,
                lanes,
            )
        pointers = []
        for k in range(lanes):
            bit = self.fn.op(f"extractelement {guard.typed}, i64 {k}", "bool")
            p = self._offset(pointer, constant + k * stride, e.dtype)
            pointers.append(self.fn.op(f"select {bit.typed}, ptr {p}, ptr {ZEROS}", "int64").name)
        return self._collect(e.dtype, pointers)

    def _gather(self, e: Load) -> Value:
        """A load whose index is no affine form: computed, and in a vector loop lane by lane."""
        index = self.value(e.index[0])
        pointer, dtype = self.pointers[e.tensor]
        lanes = max(index.lanes, self.guard.lanes if self.guard is not None else 1)
        elements: list[str] = []
        for k in range(lanes):
            i = index if index.lanes == 1 else self.fn.op(f"extractelement {index.typed}, i64 {k}", "int64")
            p = self.fn.op(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {i.name}", "int64").name
            if self.guard is not None:
                bit = self.guard
                if bit.lanes > 1:
                    bit = self.fn.op(f"extractelement {bit.typed}, i64 {k}", "bool")
                p = self.fn.op(f"select {bit.typed}, ptr {p}, ptr {ZEROS}", "int64").name
            elements.append(p)
        return self._read(dtype, elements[0], 1) if lanes == 1 else self._collect(dtype, elements)

    def _store(self, n: Store) -> None:
        a = self._affine(n.index)
        assert a is not None
        lane_index = self.lane is not None and a.coefficient(self.lane[0]) != 0
        pointer, constant, stride = self._address(n.tensor, a)
        dtype = self.pointers[n.tensor][1]
        address = self._offset(pointer, constant, dtype)
        if self.lane is not None and not lane_index:
            value = self._across(n)
            self._write(address, value, dtype, a, n.stream)
        elif self.lane is None or stride == 1:
            lanes = self.lane[1] if self.lane is not None else 1
            value = self._updated(n, lambda: self._read(dtype, address, lanes), lanes)
            self._write(address, value, dtype, a, n.stream)
        else:
            lanes = self.lane[1]
            places = [self._offset(pointer, constant + k * stride, dtype) for k in range(lanes)]
            value = self._updated(n, lambda: self._collect(dtype, places), lanes)
            for k, place in enumerate(places):
                one = self.fn.op(f"extractelement {value.typed}, i64 {k}", value.dtype)
                self._write(place, one, dtype, a, False)
        if n.tensor not in self.registers:
            for key in [k for k in self.loaded if k[0] == n.tensor]:
                del self.loaded[key]

    def _across(self, n: Store) -> Value:
        """A store whose place does not depend on the lane: reduce the lanes, then update."""
        assert n.reducer is not None
        assert self.lane is not None
        a = self._affine(n.index)
        assert a is not None
        value = self.fn.splat(self.value(n.value), self.lane[1])
        pointer, constant, _ = self._address(n.tensor, a)
        dtype = self.pointers[n.tensor][1]
        old = self._read(dtype, self._offset(pointer, constant, dtype), 1)
        return operate(
            self.fn,
            REDUCER_OPS[n.reducer],
            [old, across(self.fn, n.reducer, value)],
            dtype,
            self.unit.helpers,
        )

    def _updated(self, n: Store, old: Callable[[], Value], lanes: int) -> Value:
        """The new value of a store: fused multiply-add where a product is summed."""
        if n.reducer is None:
            return self.fn.splat(self.value(n.value), lanes)
        v = n.value
        if n.reducer == "sum" and isinstance(v, Op) and v.kind == "mul" and v.dtype in FLOATS:
            factors = [self.fn.splat(self.value(f), lanes) for f in v.args]
            return self.fn.intrinsic("fmuladd", [*factors, old()], v.dtype, lanes, FAST)
        value = self.fn.splat(self.value(v), lanes)
        return operate(self.fn, REDUCER_OPS[n.reducer], [old(), value], v.dtype, self.unit.helpers)

    def _write(self, address: str, value: Value, dtype: str, a: Affine, stream: bool) -> None:
        align = SIZES[dtype]
        if dtype == "bool":
            value = self.fn.op(f"zext {value.typed} to {vector_type('i8', value.lanes)}", "int8", value.lanes)
        hint = ""
        if stream and value.lanes > 1:
            whole = all(c % value.lanes == 0 for v, c in a.terms if self.lane is None or v != self.lane[0])
            if whole and (a.const + self.first) % value.lanes == 0:
                nbytes = value.lanes * SIZES[dtype]
                align = min(ALIGN, nbytes & -nbytes)  # a multiple of 144 bytes is a multiple of 16 only
                hint = ", !nontemporal !0"
        self.fn.do(f"store {value.typed}, ptr {address}, align {align}{hint}")

    # ------------------------------------------------------------ expressions

    def value(self, e: Expr) -> Value:
        """The value of an expression here; scalar unless it depends on the lane."""
        if isinstance(e, Const):
            return Value(splat_literal(e.value, e.dtype, 1), e.dtype)
        if isinstance(e, Load):
            return self._load(e)
        if e.dtype == "int64":
            a = self._affine(e)
            if a is not None:
                return self._affine_value(a)
        assert isinstance(e, Op)  # a variable is affine
        if e.kind == "select":
            return self._select(e)
        if e.dtype == "bool" and e.kind in ("lt", "le", "eq", "ne") and e.args[0].dtype == "int64":
            quick = self._compare_index(e)
            if quick is not None:
                return quick
        return operate(self.fn, e.kind, [self.value(x) for x in e.args], e.dtype, self.unit.helpers)

    def _affine_value(self, a: Affine) -> Value:
        constant, stride = a.const, 0
        dynamic: list[tuple[str, int]] = []
        for v, c in a.terms:
            if self.lane is not None and v == self.lane[0]:
                stride = c
                constant += c * self.first
                continue
            known = self.vars[v]
            if isinstance(known, int):
                constant += c * known
            else:
                dynamic.append((known, c))
        if not dynamic:
            base = Value(str(constant), "int64")
        else:
            base = Value(self._sum(dynamic), "int64")
            if constant:
                base = self.fn.op(f"add nsw i64 {base.name}, {constant}", "int64")
        if not stride or self.lane is None:
            return base
        lanes = self.lane[1]
        ramp = ", ".join(f"i64 {stride * k}" for k in range(lanes))
        wide = self.fn.splat(base, lanes)
        return self.fn.op(f"add {wide.typed}, <{ramp}>", "int64", lanes)

    def _compare_index(self, e: Op) -> Value | None:
        """An index comparison whose sides are affine: a constant where everything is known, 32-bit lanes
        otherwise."""
        d = self._affine(binary("sub", e.args[0], e.args[1]))
        if d is None:
            return None
        signed = {"lt": "slt", "le": "sle", "eq": "eq", "ne": "ne"}[e.kind]
        stride = d.coefficient(self.lane[0]) if self.lane is not None else 0
        rest = Affine(
            tuple((v, c) for v, c in d.terms if self.lane is None or v != self.lane[0]), d.const + stride * self.first
        )
        base = self._affine_value(rest)
        if not base.name.startswith("%") and not stride:
            k = int(base.name)
            holds = {"lt": k < 0, "le": k <= 0, "eq": k == 0, "ne": k != 0}[e.kind]
            return Value("true" if holds else "false", "bool")
        if not stride or self.lane is None:
            return self.fn.op(f"icmp {signed} i64 {base.name}, 0", "bool")
        lanes = self.lane[1]
        low, high = -(1 << 30), 1 << 30
        clamped = self.fn.intrinsic("smax", [base, Value(str(low), "int64")], "int64", 1)
        clamped = self.fn.intrinsic("smin", [clamped, Value(str(high), "int64")], "int64", 1)
        narrow = self.fn.op(f"trunc i64 {clamped.name} to i32", "int32")
        ramp = ", ".join(f"i32 {-stride * k}" for k in range(lanes))
        return self.fn.op(f"icmp {signed} {self.fn.splat(narrow, lanes).typed}, <{ramp}>", "bool", lanes)

    def _select(self, e: Op) -> Value:
        fn = self.fn
        condition = self.value(e.args[0])
        if condition.name in ("true", "false"):
            return self.value(e.args[1] if condition.name == "true" else e.args[2])
        then = self._under(condition, e.args[1])
        otherwise = e.args[2]
        if any(isinstance(x, Load) for x in _inside(otherwise)):
            inverse = fn.op(
                f"xor {condition.typed}, {splat_literal(True, 'bool', condition.lanes)}",
                "bool",
                condition.lanes,
            )
            other = self._under(inverse, otherwise)
        else:
            other = self.value(otherwise)
        lanes = max(condition.lanes, then.lanes, other.lanes)
        if condition.lanes > 1 or lanes == 1:
            condition = fn.splat(condition, lanes)
        then, other = fn.splat(then, lanes), fn.splat(other, lanes)
        return fn.op(f"select {condition.typed}, {then.typed}, {other.typed}", e.dtype, lanes)

    def _under(self, condition: Value, e: Expr) -> Value:
        """``e`` evaluated where ``condition`` holds: its loads are safe elsewhere."""
        if not any(isinstance(x, Load) for x in _inside(e)):
            return self.value(e)
        saved = self.guard
        if saved is None:
            self.guard = condition
        else:
            lanes = max(saved.lanes, condition.lanes)
            a, b = self.fn.splat(saved, lanes), self.fn.splat(condition, lanes)
            self.guard = self.fn.op(f"and {a.typed}, {b.name}", "bool", lanes)
        value = self.value(e)
        self.guard = saved
        return value


def powers_of_two(width: int) -> list[int]:
    """A vector width as descending powers of two: LLVM splits a loop-carried ``<24 x float>`` into scalars, but not two of 16 and 8."""
    return [1 << k for k in range(width.bit_length() - 1, -1, -1) if width >> k & 1]


def _inside(e: Expr) -> Iterator[Expr]:
    from tilewright.graph.expr import walk as walk_expr

    return walk_expr(e)


def _mangle(dtype: str) -> str:
    return {"float32": "f32", "float64": "f64"}.get(dtype, LLVM_TYPES[dtype])


def buffers(program: Program) -> list[Buffer]:
    """Every local buffer of a program, for reports."""
    return [n.buffer for n in walk(program.body) if isinstance(n, Alloc)]
