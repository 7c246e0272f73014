"""The loop program. The grammar::

    node  ::= Loop(var, extent, kind, node) | Seq(node...) | If(condition, node, node?)
            | Alloc(buffer, node) | Store(tensor, index, value, reducer?) | Fetch(tensor, index) | Note(text)
            | Prefix(tensor, index, value, reducer, carry, place) | Pick(tensor, index, value, var, extent, count)
    kind  ::= serial | parallel | unroll | vector
    scope ::= register | thread | shared | packed

A ``register`` buffer becomes SSA values, a ``thread`` buffer is each thread's own scratch, a ``shared``
buffer is seen by all threads, a ``packed`` buffer is filled once, when the program is built, from constants.
``vector`` and ``unroll`` loops have constant extents. ``Store`` with a reducer updates in place; inside a
vector loop whose variable the index does not use, it reduces the lanes first. ``Fetch`` is a hint that
changes no value; its index may be outside the tensor. All indices are flat and in elements.
``Prefix`` is one step of a scan, ``Pick`` a whole selection along its own variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.graph.affine import Affine, affine, parted
from tilewright.graph.dtypes import SIZES
from tilewright.graph.expr import MATHS, Expr, Load, Op
from tilewright.graph.traverse import show, variables
from tilewright.schedules.falling import FALLING

SCOPES = ("register", "thread", "shared", "packed")
KINDS = ("serial", "parallel", "unroll", "vector")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Local storage of ``size`` elements."""

    name: str
    size: int
    dtype: str
    scope: str


@dataclass(frozen=True, slots=True)
class Loop:
    """``for var in range(extent): body``."""

    var: str
    extent: Expr
    kind: str
    body: Node
    limit: int
    """An upper bound of the extent, known when the program is built."""


@dataclass(frozen=True, slots=True)
class Seq:
    """One node after the other."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class If:
    """``then`` if the condition holds, else ``otherwise``."""

    condition: Expr
    then: Node
    otherwise: Node | None = None


@dataclass(frozen=True, slots=True)
class Alloc:
    """``buffer`` exists during ``body``."""

    buffer: Buffer
    body: Node


@dataclass(frozen=True, slots=True)
class Store:
    """``tensor[index] = value``, or ``tensor[index] = reducer(tensor[index], value)``."""

    tensor: str
    index: Expr
    value: Expr
    reducer: str | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """``tensor[index + beyond]`` will be read soon; ``beyond`` is the same in all lanes of a vector."""

    tensor: str
    index: Expr
    dtype: str
    beyond: Expr | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A comment in the printed program."""

    text: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """``carry[place] = reducer(carry[place], value)``, and ``tensor[index]`` is what ``carry`` is then (or was before, if
    ``exclusive``). In a vector loop that ``place`` does not depend on, the lanes are scanned one after the other."""

    tensor: str
    index: Expr
    value: Expr
    reducer: str
    carry: str
    place: Expr
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Pick:
    """``tensor[index + j]`` is the position of the ``j``-th best of the values for ``var`` below ``extent``, for ``j < count``;
    ``heap`` is scratch for ``count`` keys of ``key_bytes``. ``value`` is at ``var + lane``, where ``lane`` runs along the vectors of
    ``lanes`` in which values are compared with the worst one kept so far, ``group`` vectors at a time."""

    tensor: str
    index: Expr
    value: Expr
    var: str
    lane: str
    extent: int
    count: int
    largest: bool
    lanes: int
    group: int
    heap: str
    key_bytes: int


Node = Loop | Seq | If | Alloc | Store | Fetch | Note | Prefix | Pick


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor the program is given: an input, a packed constant or the output."""

    name: str
    size: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Program:
    """A loop program for one workload. ``prepare`` fills the ``packed`` buffers from constant inputs and runs
    once; ``body`` runs at each call. ``shared`` buffers are scratch the caller provides."""

    inputs: tuple[Parameter, ...]
    output: Parameter
    packed: tuple[Buffer, ...]
    shared: tuple[Buffer, ...]
    prepare: Node
    body: Node

    def __str__(self) -> str:
        head = [f"program({', '.join(f'{p.name}: {p.dtype}[{p.size}]' for p in self.inputs)})"]
        head[0] += f" -> {self.output.name}: {self.output.dtype}[{self.output.size}]"
        if self.packed:
            head.append("  once:")
            head += [f"    alloc {b.name}: {b.dtype}[{b.size}] packed" for b in self.packed]
            head += lines(self.prepare, 2)
        head += [f"  alloc {b.name}: {b.dtype}[{b.size}] shared" for b in self.shared]
        return "\n".join(head + lines(self.body, 1)) + "\n"


def seq(nodes: list[Node]) -> Node:
    """A sequence, flattened."""
    flat: list[Node] = []
    for n in nodes:
        flat.extend(n.nodes if isinstance(n, Seq) else (n,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def lines(node: Node, depth: int = 0) -> list[str]:
    """The program as indented pseudo-code."""
    pad = "  " * depth
    if isinstance(node, Seq):
        return [line for n in node.nodes for line in lines(n, depth)]
    if isinstance(node, Loop):
        kind = {"serial": "for", "parallel": "parallel for"}.get(node.kind, node.kind)
        return [f"{pad}{kind} {node.var} in {show(node.extent)}:", *lines(node.body, depth + 1)]
    if isinstance(node, If):
        out = [f"{pad}if {show(node.condition)}:", *lines(node.then, depth + 1)]
        if node.otherwise is not None:
            out += [f"{pad}else:", *lines(node.otherwise, depth + 1)]
        return out
    if isinstance(node, Alloc):
        b = node.buffer
        return [f"{pad}alloc {b.name}: {b.dtype}[{b.size}] {b.scope}", *lines(node.body, depth)]
    if isinstance(node, Note):
        return [f"{pad}# {node.text}"]
    if isinstance(node, Fetch):
        beyond = f" + {show(node.beyond)}" if node.beyond is not None else ""
        return [f"{pad}fetch {node.tensor}[{show(node.index)}{beyond}]"]
    target = f"{node.tensor}[{show(node.index)}]"
    if isinstance(node, Prefix):
        kept = "before" if node.exclusive else "after"
        return [
            f"{pad}{target} = {node.carry}[{show(node.place)}] {kept} {_SIGNS.get(node.reducer, node.reducer + '=')} {show(node.value)}"
        ]
    if isinstance(node, Pick):
        kind = "largest" if node.largest else "smallest"
        by = f"{node.group} x {node.lanes} at a time" if node.lanes > 1 else "one by one"
        return [
            f"{pad}{target} … {node.count} = positions {node.var} in {node.extent} of the {kind}, {by}, of",
            f"{pad}  {show(node.value)}",
        ]
    sign = "=" if node.reducer is None else _SIGNS.get(node.reducer, f"{node.reducer}=")
    return [f"{pad}{target} {sign} {show(node.value)}" + ("  # stream" if node.stream else "")]


_SIGNS = {"sum": "+=", "prod": "*="}


def walk(node: Node) -> Iterator[Node]:
    """Every node, parents first."""
    yield node
    if isinstance(node, Seq):
        for n in node.nodes:
            yield from walk(n)
    elif isinstance(node, (Loop, Alloc)):
        yield from walk(node.body)
    elif isinstance(node, If):
        yield from walk(node.then)
        if node.otherwise is not None:
            yield from walk(node.otherwise)


# ---------------------------------------------------------------- size

LINE_BYTES = 64
"""A cache line of every processor that vectors are written for."""
PIECE_BYTES = 32
"""Bytes of the vector register that code size is counted in, whatever the target has."""
PICK_SIZE = 100
"""Instructions of a selection beside those that compare."""
MATHS_SIZE = 16
"""Instructions of a mathematical function, roughly."""


def instructions(node: Node, lane: tuple[str, int] | None = None, unrolled: frozenset[str] = frozenset()) -> int:
    """Roughly how many vector instructions a program becomes: unrolled loops repeat their body, a wide vector
    is several registers, and lanes that are not neighbours in memory are moved one by one."""
    if isinstance(node, Seq):
        return sum(instructions(n, lane, unrolled) for n in node.nodes)
    if isinstance(node, Alloc):
        return instructions(node.body, lane, unrolled)
    if isinstance(node, If):
        return sum(instructions(n, lane, unrolled) for n in (node.then, node.otherwise) if n is not None)
    if isinstance(node, Loop):
        if node.kind == "unroll":
            return instructions(node.body, lane, unrolled | {node.var}) * node.limit
        return instructions(node.body, (node.var, node.limit) if node.kind == "vector" else lane, unrolled)
    if isinstance(node, Fetch):
        return fetches(affine(node.index), node.dtype, lane)
    if isinstance(node, Prefix):
        steps = 2 * (lane[1] if lane is not None else 1).bit_length()
        return _StoreSize(lane, unrolled).of(Store(node.tensor, node.index, node.value)) * (1 + steps)
    if isinstance(node, Pick):
        vectors = _StoreSize((node.lane, node.lanes), unrolled).of(Store(node.tensor, node.index, node.value))
        return PICK_SIZE + vectors * node.group
    return _StoreSize(lane, unrolled).of(node) if isinstance(node, Store) else 0


def fetches(index: Affine | None, dtype: str, lane: tuple[str, int] | None) -> int:
    """Cache lines that a :class:`Fetch` touches in a vector loop ``lane`` around it."""
    name, lanes = lane if lane is not None else ("", 1)
    stride = abs(index.coefficient(name)) * SIZES[dtype] if index is not None else 0
    return 1 + (lanes - 1) * min(stride, LINE_BYTES) // LINE_BYTES


class _StoreSize:
    """Instructions of one store: ``lane`` is the vector loop around and its lanes, ``unrolled`` the loop variables that are
    constants where the store is written."""

    def __init__(self, lane: tuple[str, int] | None, unrolled: frozenset[str]) -> None:
        self.name, self.lanes = lane if lane is not None else ("", 1)
        self.unrolled = unrolled
        self.seen: set[Expr] = set()

    def of(self, node: Store) -> int:
        """The size of ``node``."""
        return self._moved(node.index, node.value.dtype) + self._value(node.value)

    def _pieces(self, dtype: str) -> int:
        return -(-self.lanes * SIZES[dtype] // PIECE_BYTES)

    def _moved(self, e: Expr, dtype: str) -> int:
        a = parted(e)
        looked_up = any(self.name in variables(part) for part in a.parts.values())
        stride = 2 if looked_up else a.form.coefficient(self.name)
        return 1 if not stride else self._pieces(dtype) if abs(stride) == 1 else 2 * self.lanes

    def _value(self, e: Expr) -> int:
        if e in self.seen:
            return 0
        self.seen.add(e)
        if isinstance(e, Load):
            own = self._moved(e.index[0], e.dtype)
            return own if affine(e.index[0]) is not None else own + self._value(e.index[0])
        if not isinstance(e, Op) or (e.dtype == "int64" and affine(e) is not None):
            return 0  # index arithmetic is shared by the unrolled copies
        if e.kind == "select" and self._known(e.args[0]):
            return self._longer(e.args[1], e.args[2])
        many = MATHS_SIZE if e.kind in MATHS or e.kind in ("pow", FALLING) else 1
        own = many * (self._pieces(e.dtype) if e.dtype != "int64" or self.name in variables(e) else 1)
        return own + sum(self._value(x) for x in e.args)

    def _known(self, condition: Expr) -> bool:
        """Whether a condition is known where the code is written, so that only one side is."""
        return variables(condition) <= self.unrolled and not any(isinstance(x, Load) for x in _parts(condition))

    def _longer(self, then: Expr, otherwise: Expr) -> int:
        """The larger of two sides of which one is written."""
        before = set(self.seen)
        size = self._value(then)
        after, self.seen = self.seen, before
        other = self._value(otherwise)
        if size > other:
            self.seen = after
        return max(size, other)


def _parts(e: Expr) -> Iterator[Expr]:
    yield e
    for x in e.args if isinstance(e, Op) else e.index if isinstance(e, Load) else ():
        yield from _parts(x)
