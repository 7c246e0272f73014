"""Write the nodes of a loop program: loops, conditions and buffers.

Unrolled loops are repeated here, with their variables as constants; a register buffer is an ``alloca`` whose addresses
are then all constant, so that LLVM's SROA turns it into SSA values; a vector loop is written in pieces of a power of
two of lanes (:mod:`~tilewright.schedules.lanes`), which LLVM splits or widens to what the target has.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import Const
from tilewright.schedules.emit import memory_type
from tilewright.schedules.invariant import invariants
from tilewright.schedules.lanes import may_idle, powers_of_two, with_idle_lanes
from tilewright.schedules.nest import Alloc, Fetch, If, Loop, Node, Pick, Prefix, Seq, Store
from tilewright.schedules.write_addresses import ZERO_BYTES
from tilewright.schedules.write_extremes import has_flags
from tilewright.schedules.write_fetch import fetch
from tilewright.schedules.write_picks import pick
from tilewright.schedules.write_prefixes import prefix
from tilewright.schedules.write_scope import Scope
from tilewright.schedules.write_stores import ALIGN, release, store
from tilewright.schedules.write_transposed import held
from tilewright.schedules.write_values import value


class NodeWriter:
    """Writes nodes into the function of ``scope``. Buffers of scope ``thread`` lie one after the other behind the
    address ``scratch``; ``peak`` is how many bytes they take."""

    def __init__(self, scope: Scope, scratch: str) -> None:
        self.scope = scope
        self.fn = scope.fn
        self.scratch = scratch
        self.top = 0
        self.peak = 0
        self.registers: dict[str, int] = {}
        """Sizes of the register buffers."""

    def node(self, n: Node) -> None:
        """Write one node."""
        if isinstance(n, Seq):
            for child in n.nodes:
                self.node(child)
        elif isinstance(n, Loop):
            self._loop(n)
        elif isinstance(n, Store):
            store(self.scope, n)
        elif isinstance(n, Fetch):
            fetch(self.scope, n)
        elif isinstance(n, Prefix):
            prefix(self.scope, n)
        elif isinstance(n, Pick):
            pick(self.scope, n, self._counted)
        elif isinstance(n, Alloc):
            self._alloc(n)
        elif isinstance(n, If):
            self._if(n)

    def parallel(self, loops: list[Loop], inner: Node) -> None:
        """A serial loop over the fused iterations ``%lo`` to ``%hi`` that this thread was given."""

        def body(flat: str) -> None:
            rest = flat
            for loop in reversed(loops[1:]):
                count = constant_extent(loop)
                self.scope.vars[loop.var] = self.fn.op(f"urem i64 {rest}, {count}", "int64").name
                rest = self.fn.op(f"udiv i64 {rest}, {count}", "int64").name
            self.scope.vars[loops[0].var] = rest
            self.node(inner)

        self._counted("%lo", "%hi", body)

    def _loop(self, n: Loop) -> None:
        if n.kind == "unroll":
            self._unrolled(n)
        elif n.kind == "vector":
            self._vector(n)
        elif isinstance(n.extent, Const) and n.extent.value == 1:
            self._iteration(n, 0)
        else:
            stop = value(self.scope, n.extent).name
            with self.scope.known({e: value(self.scope, e) for e in invariants(n) if e not in self.scope.computed}):
                self._counted("0", stop, lambda iv: self._iteration(n, iv))

    def _unrolled(self, n: Loop) -> None:
        scope, extent = self.scope, constant_extent(n)
        waiting = held(n, scope.lane[0] if scope.lane is not None else None, scope.registers)
        scope.unrolled[n.var] = extent
        if waiting is not None:
            scope.held.append(waiting)
        for k in range(extent):
            self._iteration(n, k)
        del scope.unrolled[n.var]
        if waiting is not None:
            scope.held.pop()
            release(scope, waiting)

    def _iteration(self, n: Loop, at: int | str) -> None:
        self.scope.vars[n.var] = at
        self.node(n.body)
        del self.scope.vars[n.var]

    def _vector(self, n: Loop) -> None:
        scope, first, width = self.scope, 0, constant_extent(n)
        vectors = [(k, k) for k in powers_of_two(width)]
        if may_idle(n, width, self.registers):
            vectors = with_idle_lanes(width)
        for lanes, used in vectors:
            if lanes == 1:
                self._iteration(n, first)
            else:
                scope.lane, scope.first, scope.used, scope.more = (n.var, lanes), first, used, first + lanes < width
                self.node(n.body)
                scope.lane, scope.first, scope.used, scope.more = None, 0, 1, False
            first += lanes

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
        with self.scope.block():
            body(iv)
        fn.do(f"{following} = add nuw nsw i64 {iv}, 1")
        again = fn.op(f"icmp slt i64 {following}, {stop}", "bool")
        fn.lines[place] = f"  {iv} = phi i64 [ {start}, %{before} ], [ {following}, %{fn.block} ]"
        fn.branch_if(again, head, done)
        fn.label(done)

    def _if(self, n: If) -> None:
        fn = self.fn
        condition = value(self.scope, n.condition)
        then, otherwise, done = fn.new_label("then"), fn.new_label("else"), fn.new_label("fi")
        fn.branch_if(condition, then, otherwise if n.otherwise is not None else done)
        self._branch(then, n.then, done)
        if n.otherwise is not None:
            self._branch(otherwise, n.otherwise, done)
        fn.label(done)

    def _branch(self, label: str, n: Node, done: str) -> None:
        self.fn.label(label)
        with self.scope.block():
            self.node(n)
        self.fn.branch(done)

    def _flags(self, n: Alloc) -> None:
        """A register for the flag of each element of a buffer."""
        b = n.buffer
        name, flags = self.fn.fresh("f"), f"{b.name}.nan"
        self.fn.allocas.append(f"  {name} = alloca [{b.size} x {memory_type(b.dtype)}], align {ALIGN}")
        self.scope.pointers[flags] = (name, b.dtype)
        self.scope.flags[b.name] = flags

    def _alloc(self, n: Alloc) -> None:
        scope, b = self.scope, n.buffer
        saved = scope.pointers.get(b.name)
        if b.scope == "register":
            name = self.fn.fresh("r")
            self.fn.allocas.append(f"  {name} = alloca [{b.size} x {memory_type(b.dtype)}], align {ALIGN}")
            scope.pointers[b.name] = (name, b.dtype)
            scope.registers.add(b.name)
            self.registers[b.name] = b.size
            outer = scope.flags.pop(b.name, None)
            if has_flags(n):
                self._flags(n)
            self.node(n.body)
            scope.flags.pop(b.name, None)
            if outer is not None:
                scope.flags[b.name] = outer
            scope.registers.discard(b.name)
            del self.registers[b.name]
        else:
            offset = self.top
            self.top += -(-(b.size * SIZES[b.dtype] + ZERO_BYTES) // ALIGN) * ALIGN
            self.peak = max(self.peak, self.top)
            pointer = self.fn.op(f"getelementptr inbounds i8, ptr {self.scratch}, i64 {offset}", "int64")
            scope.pointers[b.name] = (pointer.name, b.dtype)
            self.node(n.body)
            self.top = offset
        if saved is None:
            del scope.pointers[b.name]
        else:
            scope.pointers[b.name] = saved
        scope.forget(b.name)


def constant_extent(n: Loop) -> int:
    """The extent of a loop that has a constant one."""
    assert isinstance(n.extent, Const)
    return int(n.extent.value)
