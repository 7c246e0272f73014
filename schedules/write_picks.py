"""Write selections: the positions of the best values of a row, in order.

The first values fill a heap; every other value is compared with the worst one kept, a vector or some at a time. Few are better (of a
shuffled row of n values, about k ln(n / k)), so most of a row is only read and compared. In the end the heap is sorted.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.dtypes import FLOATS, SIZES, UNSIGNED
from tilewright.schedules import heap
from tilewright.schedules import write_addresses as addresses
from tilewright.schedules.emit import LLVM_TYPES, Value
from tilewright.schedules.nest import Pick
from tilewright.schedules.write_scope import Scope
from tilewright.schedules.write_stores import write
from tilewright.schedules.write_values import value

Counted = Callable[[str, str, Callable[[str], None]], None]
"""Writes a loop: from, to, and its body, which gets the variable."""
NAN = {"float32": "2143289344", "float64": "9221120237041090560"}
"""The bits of the one NaN that stands for all."""


def pick(scope: Scope, n: Pick, counted: Counted) -> None:
    """Write one selection."""
    _Picker(scope, n, counted).write()


class _Picker:
    def __init__(self, scope: Scope, n: Pick, counted: Counted) -> None:
        self.scope, self.n, self.counted = scope, n, counted
        self.fn = scope.fn
        self.heap = scope.pointers[n.heap][0]
        self.key = f"i{8 * n.key_bytes}"
        self.dtype = n.value.dtype
        self.order = "int32" if n.key_bytes == 8 else "int64"
        """The integers that values are mapped to."""

    def write(self) -> None:
        n = self.n
        self.counted("0", str(n.count), self._fill)
        self._call("heap_make", "")
        rest = n.extent - n.count
        if n.lanes > 1:
            step = n.lanes * n.group
            whole = rest // step
            self.counted("0", str(whole), lambda k: self._vectors(self._scaled(k, step, n.count)))
            self.counted(str(n.count + whole * step), str(n.extent), self._one)
        elif rest:
            self.counted(str(n.count), str(n.extent), self._one)
        self._call("heap_sort", "")
        self.counted("0", str(n.count), self._put)
        self.scope.stored(n.tensor)

    def _scaled(self, k: str, step: int, start: int) -> str:
        scaled = self.fn.op(f"mul nsw i64 {k}, {step}", "int64").name
        return self.fn.op(f"add nsw i64 {scaled}, {start}", "int64").name

    def _call(self, name: str, more: str) -> None:
        self.scope.helpers.add((name, 1, self.key))
        self.fn.do(f"call void @{heap.symbol(name, 1, self.key)}(ptr {self.heap}, i64 {self.n.count}{more})")

    def _at(self, position: str, lanes: int) -> Value:
        """The values from ``position`` on."""
        scope, n = self.scope, self.n
        scope.vars[n.var] = position
        with scope.block():
            if lanes == 1:
                scope.vars[n.lane] = 0
                v = value(scope, n.value)
                del scope.vars[n.lane]
            else:
                scope.lane, scope.first, scope.used = (n.lane, lanes), 0, lanes
                v = self.fn.splat(value(scope, n.value), lanes)
                scope.lane, scope.first, scope.used = None, 0, 1
        del scope.vars[n.var]
        return v

    def _ordered(self, v: Value) -> str:
        """A value as an integer of the same order, the better the larger: NaN above all numbers, -0.0 as 0.0."""
        fn, n = self.fn, self.n
        kind = LLVM_TYPES[self.order]
        if self.dtype in FLOATS:
            width = 8 * SIZES[self.dtype]
            whole = f"i{width}"
            zero = fn.op(f"fadd {v.typed}, 0.0", v.dtype)
            bits = fn.op(f"bitcast {zero.typed} to {whole}", self.order).name
            unordered = fn.op(f"fcmp uno {v.typed}, {v.name}", "bool").name
            bits = fn.op(f"select i1 {unordered}, {whole} {NAN[self.dtype]}, {whole} {bits}", self.order).name
            sign = fn.op(f"ashr {whole} {bits}, {width - 1}", self.order).name
            flip = fn.op(f"lshr {whole} {sign}, 1", self.order).name
            out = fn.op(f"xor {whole} {bits}, {flip}", self.order).name
            if whole != kind:
                out = fn.op(f"sext {whole} {out} to {kind}", self.order).name
        else:
            own = LLVM_TYPES[self.dtype]
            extend = "zext" if self.dtype in UNSIGNED else "sext"
            out = v.name if own == kind else fn.op(f"{extend} {own} {v.name} to {kind}", self.order).name
            if own == kind and self.dtype in UNSIGNED:
                out = fn.op(f"xor {kind} {out}, {-(1 << (8 * SIZES[self.order] - 1))}", self.order).name
        return out if n.largest else fn.op(f"xor {kind} {out}, -1", self.order).name

    def _key(self, position: str) -> str:
        """The key of the value at a position."""
        fn = self.fn
        kind, half = LLVM_TYPES[self.order], 4 * self.n.key_bytes
        high = fn.op(f"sext {kind} {self._ordered(self._at(position, 1))} to {self.key}", "int64").name
        high = fn.op(f"shl {self.key} {high}, {half}", "int64").name
        low = fn.op(f"sub i64 {(1 << half) - 1 if half == 32 else -1}, {position}", "int64").name
        if half == 64:
            low = fn.op(f"zext i64 {low} to {self.key}", "int64").name
        return fn.op(f"or {self.key} {high}, {low}", "int64").name

    def _slot(self, k: str) -> str:
        return self.fn.op(f"getelementptr {self.key}, ptr {self.heap}, i64 {k}", "int64").name

    def _fill(self, k: str) -> None:
        key = self._key(k)
        self.fn.do(f"store {self.key} {key}, ptr {self._slot(k)}, align 8")

    def _one(self, position: str) -> None:
        """Keep the value at a position if it is better than the worst one kept."""
        fn = self.fn
        key = self._key(position)
        root = fn.op(f"load {self.key}, ptr {self.heap}, align 8", "int64").name
        better = fn.op(f"icmp sgt {self.key} {key}, {root}", "bool")
        keep, done = fn.new_label("keep"), fn.new_label("kept")
        fn.branch_if(better, keep, done)
        fn.label(keep)
        self._call("heap_replace", f", {self.key} {key}")
        fn.branch(done)
        fn.label(done)

    def _worst(self) -> Value:
        """The value of the worst key kept."""
        fn, n = self.fn, self.n
        kind, half = LLVM_TYPES[self.order], 4 * n.key_bytes
        root = fn.op(f"load {self.key}, ptr {self.heap}, align 8", "int64").name
        high = fn.op(f"lshr {self.key} {root}, {half}", "int64").name
        out = fn.op(f"trunc {self.key} {high} to {kind}", self.order).name
        if not n.largest:
            out = fn.op(f"xor {kind} {out}, -1", self.order).name
        own = LLVM_TYPES[self.dtype]
        if self.dtype in FLOATS:
            width = 8 * SIZES[self.dtype]
            if width < 8 * SIZES[self.order]:
                out = fn.op(f"trunc {kind} {out} to i{width}", self.order).name
            sign = fn.op(f"ashr i{width} {out}, {width - 1}", self.order).name
            flip = fn.op(f"lshr i{width} {sign}, 1", self.order).name
            bits = fn.op(f"xor i{width} {out}, {flip}", self.order).name
            return fn.op(f"bitcast i{width} {bits} to {own}", self.dtype)
        if own == kind and self.dtype in UNSIGNED:
            out = fn.op(f"xor {kind} {out}, {-(1 << (8 * SIZES[self.order] - 1))}", self.order).name
        if own != kind:
            out = fn.op(f"trunc {kind} {out} to {own}", self.dtype).name
        return Value(out, self.dtype)

    def _vectors(self, position: str) -> None:
        """Some vectors of values, of which those that may be better are looked at one by one."""
        fn, n = self.fn, self.n
        worst = fn.splat(self._worst(), n.lanes)
        if self.dtype in FLOATS:  # NaN goes on to the exact comparison
            test = f"fcmp {'ugt' if n.largest else 'ult'}"
        else:
            test = f"icmp {'u' if self.dtype in UNSIGNED else 's'}{'gt' if n.largest else 'lt'}"
        masks: list[str] = []
        for g in range(n.group):
            start = position if not g else fn.op(f"add nsw i64 {position}, {g * n.lanes}", "int64").name
            v = self._at(start, n.lanes)
            better = fn.op(f"{test} {v.typed}, {worst.name}", "bool", n.lanes)
            bits = fn.op(f"bitcast {better.typed} to i{n.lanes}", "int64").name
            wide = bits if n.lanes == 64 else fn.op(f"zext i{n.lanes} {bits} to i64", "int64").name
            masks.append(wide if not g else fn.op(f"shl i64 {wide}, {g * n.lanes}", "int64").name)
        mask = masks[0]
        for more in masks[1:]:
            mask = fn.op(f"or i64 {mask}, {more}", "int64").name
        self._each(mask, lambda bit: self._one(fn.op(f"add nsw i64 {position}, {bit}", "int64").name))

    def _each(self, mask: str, body: Callable[[str], None]) -> None:
        """``body`` for every bit of a word that is set."""
        fn = self.fn
        head, done = fn.new_label("bit"), fn.new_label("bits")
        some = fn.op(f"icmp ne i64 {mask}, 0", "bool")
        before = fn.block
        fn.branch_if(some, head, done)
        fn.label(head)
        left, following = fn.fresh("m"), fn.fresh("n")
        place = len(fn.lines)
        fn.lines.append("")
        fn.declare("declare i64 @llvm.cttz.i64(i64, i1 immarg)")
        bit = fn.op(f"call i64 @llvm.cttz.i64(i64 {left}, i1 true)", "int64").name
        with self.scope.block():
            body(bit)
        less = fn.op(f"sub i64 {left}, 1", "int64").name
        fn.do(f"{following} = and i64 {left}, {less}")
        again = fn.op(f"icmp ne i64 {following}, 0", "bool")
        fn.lines[place] = f"  {left} = phi i64 [ {mask}, %{before} ], [ {following}, %{fn.block} ]"
        fn.branch_if(again, head, done)
        fn.label(done)

    def _put(self, k: str) -> None:
        """The position in a key to its place in the output."""
        fn, n = self.fn, self.n
        half = 4 * n.key_bytes
        key = fn.op(f"load {self.key}, ptr {self._slot(k)}, align 8", "int64").name
        low = key if half == 32 else fn.op(f"trunc {self.key} {key} to i64", "int64").name
        top = (1 << half) - 1 if half == 32 else -1
        if half == 32:
            low = fn.op(f"and i64 {low}, {top}", "int64").name
        where = fn.op(f"sub i64 {top}, {low}", "int64")
        index = self.scope.affine(n.index)
        assert index is not None
        pointer, constant, _ = addresses.address(self.scope, n.tensor, index)
        start = addresses.offset(self.scope, pointer, constant, "int64")
        write(self.scope, addresses.element(self.scope, start, k, "int64"), where, "int64")
