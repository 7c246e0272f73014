"""Apply a schedule: phases and steps in, loop program out.

One recursion opens the loops of a stage from the outside in. Every axis carries its value so far (an affine
form) and the width that is left; opening a loop of tile size ``s`` over a width ``w`` makes ``w // s`` full
tiles and, where ``s`` does not divide ``w``, a second body of the static width ``w % s``. A block loop that
still has loops of the same axis inside does not double its body: the inner extents become ``min(...)``
instead, and only the innermost tiles come in two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.graph.affine import Affine, affine, interval, make
from tilewright.graph.expr import Expr, Load, Var, all_of, binary, const, loads, rewrite, variables
from tilewright.graph.stage import identity
from tilewright.graph.workload import Workload
from tilewright.schedules.loops import Item, StageLoops, sizes_of, stage_loops
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
    instructions,
    seq,
)
from tilewright.schedules.phases import Phase, PStage, phases, product_factors
from tilewright.schedules.steps import Pack, Schedule, ScheduleError, check

MAX_REGISTER_ELEMENTS = 4096
MAX_STATEMENTS = 6000
"""Stores of one phase: what keeps building the program itself short."""
MAX_LANES = 256
MAX_INSTRUCTIONS = 8000
"""Vector instructions of a program (:func:`tilewright.schedules.nest.instructions`): what LLVM compiles
within a second."""


@dataclass(frozen=True, slots=True)
class Dyn:
    """A width known only in the loop: ``min(cap, end - value so far)``."""

    cap: int
    end: Affine


Width = int | Dyn


@dataclass(frozen=True, slots=True)
class Local:
    """Where a tensor local to the phase lives: element ``sum(stride[a] * (value of a - base[a]))`` of
    ``buffer``."""

    buffer: Buffer
    strides: Mapping[str, int]
    base: Mapping[str, Affine]
    counts: Mapping[str, int] = field(default_factory=dict)
    """For separate accumulators: how many each spread or vector loop has."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed factor: element ``sum(stride[axis, level] * loop value)`` of ``buffer``."""

    buffer: Buffer
    strides: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class State:
    """What is known at one point of the recursion."""

    base: Mapping[str, Affine]
    width: Mapping[str, Width]
    loops: Mapping[tuple[str, int], Affine]
    ranges: Mapping[str, tuple[int, int]]
    locals: Mapping[str, Local]
    packed: Mapping[tuple[str, int], Packed]

    def step(self, item: Item, value: Affine, width: Width) -> State:
        """The state inside iteration ``value`` of a loop."""
        return replace(
            self,
            base={**self.base, item.axis: self.base[item.axis] + value.scale(item.size)},
            width={**self.width, item.axis: width},
            loops={**self.loops, (item.axis, item.level): value},
        )


ZERO = Affine((), 0)
Body = Callable[[State], Node]


def apply(workload: Workload, schedule: Schedule) -> Program:
    """The loop program of ``workload`` under ``schedule``. Raises ScheduleError if a step is not legal."""
    parts = phases(workload, schedule)
    check(
        bool(parts),
        f"workload {workload.output}: expected at least one stage; got only views, which need no kernel",
    )
    known = {s.name for p in parts for s in p.stages} | set(workload.stages)
    for step in schedule.steps:
        check(step.stage in known, f"{step}: expected a stage of {sorted(known)}; got {step.stage!r}")
    types = dict(workload.types)
    constants = {n for n, _, c in workload.inputs if c}
    shared: list[Buffer] = []
    packed: list[Buffer] = []
    prepare: list[Node] = []
    body: list[Node] = []
    for part in parts:
        builder = _Phase(part, schedule, constants)
        main = builder.build()
        body += [*builder.before, main]
        shared += builder.shared
        packed += builder.packed
        prepare += builder.prepare
        if part.leader.name != workload.output:
            t = types[part.leader.name]
            shared.append(Buffer(part.leader.name, t.size, t.dtype, "shared"))
    size = sum(instructions(n) for n in (*prepare, *body))
    check(
        size <= MAX_INSTRUCTIONS,
        f"expected a program of at most {MAX_INSTRUCTIONS} vector instructions; got about {size}; "
        "unroll less or choose smaller vectors",
    )
    out = types[workload.output]
    return Program(
        tuple(Parameter(n, t.size, t.dtype) for n, t, _ in workload.inputs),
        Parameter(workload.output, out.size, out.dtype),
        tuple(packed),
        tuple(shared),
        seq(prepare) if prepare else Seq(()),
        seq(body),
    )


class _Phase:
    """Builds the loop program of one phase."""

    def __init__(self, phase: Phase, schedule: Schedule, constants: set[str]) -> None:
        self.phase = phase
        self.schedule = schedule
        self.constants = constants
        self.before: list[Node] = []
        self.prepare: list[Node] = []
        self.shared: list[Buffer] = []
        self.packed: list[Buffer] = []
        self.statements = 0
        leader = phase.leader
        self.sizes = sizes_of(leader, schedule, {})
        self.loops = stage_loops(leader, schedule, self.sizes, {}, {})
        names = [i.name for i in self.loops.items]
        self.position: dict[str, int] = {}
        for name, into, loop in phase.attached:
            if into != leader.name:
                raise ScheduleError(f"at {name}: expected the leader {leader.name}; got {into!r}")
            if loop == "root":
                self.position[name] = 0
            elif loop != "tile":
                check(loop in names, f"at {name}: expected a loop of {names}, root or tile; got {loop!r}")
                self.position[name] = names.index(loop) + 1
            else:
                dynamic = [k for k, i in enumerate(self.loops.items) if not i.static]
                self.position[name] = dynamic[-1] + 1 if dynamic else 0
            self._check_place(name)
        for a, b in zip(phase.attached, phase.attached[1:], strict=False):
            check(
                self.position[a[0]] <= self.position[b[0]],
                f"at {b[0]}: it must be computed no further out than {a[0]}, which comes before it",
            )

    def _check_place(self, name: str) -> None:
        """Refuse a place where a producer cannot be computed."""
        stage = self.phase.stage(name)
        outside = self.loops.items[: self.position[name]]
        opened = {i.axis for i in outside} & {a for a, _ in stage.reduce}
        check(not opened, f"at {name}: expected a place outside the loops of {sorted(opened)}, which it reduces")
        check(all(i.kind != "vector" for i in outside), f"at {name}: expected a place outside the vector loop")
        parallel = [k for k, i in enumerate(self.loops.items) if i.kind == "parallel"]
        check(
            not outside or not parallel or len(outside) > parallel[-1],
            f"at {name}: expected a place inside all {len(parallel)} parallel loops or outside of them",
        )

    def build(self) -> Node:
        leader = self.phase.leader
        state = State({}, {}, {}, {}, {}, {})
        for s in self.phase.stages:
            for a, e in s.axes + s.reduce:
                state = replace(state, base={**state.base, a: ZERO}, width={**state.width, a: e})
        for s in self.phase.stages:
            loops = self.loops if s is leader else self._producer_loops(s)
            check(
                s is leader or not loops.stream,
                f"stream {s.name}: expected {leader.name}, which writes to memory",
            )
            for pack in loops.packs:
                check(s.reducer == "sum", f"{pack}: expected a stage that sums products")
                if pack.loop == "root":
                    state = self._pack_root(s, loops, pack, state)
        return self._leader(0, state)

    # ------------------------------------------------------------ the leader's loops

    def _leader(self, position: int, state: State) -> Node:
        items = self.loops.items
        parallel = [k for k, i in enumerate(items) if i.kind == "parallel"]
        if not parallel or position > parallel[-1]:
            for axis, _ in self.phase.leader.axes:
                w = state.width[axis]
                remaining = [i for i in items[position:] if i.axis == axis]
                if isinstance(w, Dyn) and all(i.static for i in remaining):
                    return self._resolve(axis, state, lambda s: self._leader(position, s))
        here = [n for n, _, _ in self.phase.attached if self.position[n] == position]
        if here and (not parallel or position > parallel[-1] or position == 0):
            return self._attach(here, position, state)
        return self._leader_loop(position, state)

    def _leader_loop(self, position: int, state: State) -> Node:
        items = self.loops.items
        if position == len(items):
            leader = self.phase.leader
            return self._store(
                Store(
                    leader.name,
                    _flat_output(leader, state).expr(),
                    self._expr(leader, leader.body, state, self.loops),
                    stream=self.loops.stream,
                )
            )
        return self._open(items[position], self.loops, state, lambda s: self._leader(position + 1, s))

    def _attach(self, names: list[str], position: int, state: State) -> Node:
        """Producers computed at this point, one after the other, and then the rest of the leader."""

        def chain(rest: list[str], st: State) -> Node:
            if not rest:
                return self._leader_loop(position, st)
            stage = self.phase.stage(rest[0])
            buffer, st = self._local_buffer(stage, position, st)
            body = seq([self._producer(stage, st), chain(rest[1:], st)])
            return Alloc(buffer, body)

        return chain(names, state)

    def _local_buffer(self, stage: PStage, position: int, state: State) -> tuple[Buffer, State]:
        loops = self._producer_loops(stage)
        axes = [a for a, _ in stage.axes]
        last = {i.axis: k for k, i in enumerate(loops.items)}
        order = sorted(axes, key=lambda a: last.get(a, -1))
        strides: dict[str, int] = {}
        size = 1
        for a in reversed(order):
            strides[a] = size
            w = state.width[a]
            size *= w.cap if isinstance(w, Dyn) else w
        mine = all(i.static for i in loops.items if i.axis in axes)
        others = all(i.static for i in self.loops.items[position:] if i.axis in axes)
        readers = [s for s in self.phase.stages if s.name != stage.name and stage.name in _reads(s)]
        for r in readers:
            if r is not self.phase.leader:
                others = others and all(i.static for i in self._producer_loops(r).items if i.axis in axes)
        windows = any(
            _window(e) for s in self.phase.stages for e in loads(s.body) if e.tensor == stage.name
        )
        scope = "register" if mine and others and not windows and size <= MAX_REGISTER_ELEMENTS else "thread"
        buffer = Buffer(f"{stage.name}.buf", size, stage.body.dtype, scope)
        base = {a: state.base[a] for a in axes}
        local = Local(buffer, strides, base)
        return buffer, replace(state, locals={**state.locals, stage.name: local})

    # ------------------------------------------------------------ producers

    def _producer_loops(self, stage: PStage) -> StageLoops:
        position = self.position[stage.name]
        first: dict[str, int] = {}
        for a, _ in self.phase.leader.axes:
            first[a] = sum(1 for i in self.loops.items[:position] if i.axis == a)
        kinds = {i.name: i.kind for i in self.loops.items if i.kind != "parallel"}
        spatial = {a for a, _ in stage.axes}
        inherited = {a: s for a, s in self.sizes.items() if a in spatial}
        sizes = self._own_sizes(stage)
        for a in inherited:
            count = first.get(a, 0)
            fixed = (*inherited[a], 1)[:count]  # the innermost loop of an axis covers one element an iteration
            check(
                (*sizes[a], 1)[:count] == fixed,
                f"split {stage.name} {a}: expected the sizes {fixed} of the loops outside; got {sizes[a]}",
            )
            if sizes[a] != inherited[a]:
                for k in range(first.get(a, 0), len(sizes[a]) + 1):
                    kinds.pop(f"{a}.{k}", None)
        shared = {a: k for a, k in first.items() if a in spatial}
        own = {n: k for n, k in kinds.items() if n.rsplit(".", 1)[0] in inherited}
        loops = stage_loops(stage, self.schedule, sizes, shared, own)
        check(
            all(i.kind != "parallel" for i in loops.items),
            f"parallel {stage.name}: it is computed inside {self.phase.leader.name}; make the loops of that parallel",
        )
        return loops

    def _own_sizes(self, stage: PStage) -> dict[str, tuple[int, ...]]:
        """Tile sizes of a producer: its own, or for the axes it shares with the leader the leader's."""
        spatial = {a for a, _ in stage.axes}
        return sizes_of(stage, self.schedule, {a: s for a, s in self.sizes.items() if a in spatial})

    def _producer(self, stage: PStage, state: State) -> Node:
        loops = self._producer_loops(stage)
        local = state.locals[stage.name]
        if stage.reducer is None:
            return self._injective(stage, loops, local, 0, state)
        return self._reduction(stage, loops, local, state)

    def _injective(self, stage: PStage, loops: StageLoops, local: Local, position: int, state: State) -> Node:
        if position == len(loops.items):
            value = self._expr(stage, stage.body, state, loops)
            return self._store(Store(local.buffer.name, _local_index(local, state).expr(), value))
        return self._open(
            loops.items[position],
            loops,
            state,
            lambda s: self._injective(stage, loops, local, position + 1, s),
        )

    def _reduction(self, stage: PStage, loops: StageLoops, local: Local, state: State) -> Node:
        """Outer loops (spatial ones, and blocks of the reduction), then the accumulators and the loops inside
        them."""
        assert stage.reducer is not None
        spatial = {a for a, _ in stage.axes}
        dynamic = [k for k, i in enumerate(loops.items) if i.axis in spatial and not i.static]
        inner = dynamic[-1] + 1 if dynamic else 0
        outer_reduce = [i for i in loops.items[:inner] if i.axis not in spatial]

        places = [i.name for i in loops.items[:inner]]
        vectors = [i.name for i in loops.items[:inner] if i.kind == "vector"]
        check(
            not vectors,
            f"vectorize {stage.name}: expected {vectors} inside every spatial loop that stays a loop ({places[-1:]})",
        )
        for p in loops.packs:
            check(p.loop in ("root", *places), f"{p}: expected root or a loop of {places}; got {p.loop!r}")

        def outside(position: int, st: State) -> Node:
            here = [p for p in loops.packs if position and p.loop == places[position - 1]]

            def chain(rest: list[Pack], inner_state: State) -> Node:
                if not rest:
                    return outside_loop(position, inner_state)
                return self._pack_here(stage, loops, rest[0], inner_state, lambda s: chain(rest[1:], s))

            return chain(here, st)

        def outside_loop(position: int, st: State) -> Node:
            if position < inner:
                return self._open(loops.items[position], loops, st, lambda s: outside(position + 1, s))
            for a in spatial:
                if isinstance(st.width[a], Dyn):
                    return self._resolve(a, st, lambda s: outside_loop(position, s))
            return self._accumulate(stage, loops, local, st, inner, outer_reduce)

        return outside(0, state)

    def _accumulate(
        self,
        stage: PStage,
        loops: StageLoops,
        local: Local,
        state: State,
        inner: int,
        outer_reduce: list[Item],
    ) -> Node:
        reducer = stage.reducer
        assert reducer is not None
        spatial = {a for a, _ in stage.axes}
        dtype = stage.body.dtype
        zero = identity(reducer, dtype)
        items = loops.items[inner:]
        wide = [i for i in items if i.axis not in spatial and (i.kind == "vector" or i.name in loops.spread)]
        spatial_items = [i for i in items if i.axis in spatial]
        counts = self._wide_counts(stage, wide)
        if 0 in counts.values():  # no iteration is ever full
            wide = []
        direct = inner == 0 and not wide
        nodes: list[Node] = []
        if direct or local.buffer.scope == "register":
            target, result_local = local, local
        else:
            target = result_local = self._register(f"{stage.name}.acc", spatial, local, state, dtype)
        started = all_of([binary("eq", state.loops[i.axis, i.level].expr(), 0) for i in outer_reduce])
        fresh = self._over(spatial_items, loops, state, lambda s: self._fill(result_local, s, zero))
        if outer_reduce:
            resume = self._over(spatial_items, loops, state, lambda s: self._copy(result_local, local, s))
            fresh = If(started, fresh, resume) if target is not local else If(started, fresh)
        nodes.append(fresh)
        spread_local: Local | None = None
        if wide:
            spread_local = self._spread_buffer(stage, wide, counts, result_local, dtype)
            nodes.append(self._over_wide(wide, spatial_items, loops, spread_local, state, zero))

        def leaf(st: State) -> Node:
            value = self._expr(stage, stage.body, st, loops)
            where = _local_index(result_local, st)
            name = result_local.buffer.name
            if spread_local is not None and all(_full(st, i) for i in wide):
                where = _local_index(spread_local, st) + _spread_index(spread_local, st)
                name = spread_local.buffer.name
            return self._store(Store(name, where.expr(), value, reducer))

        def inside(position: int, st: State) -> Node:
            if position == len(items):
                return leaf(st)
            return self._open(items[position], loops, st, lambda s: inside(position + 1, s))

        nodes.append(inside(0, state))
        if spread_local is not None:
            nodes.append(self._fold(wide, spatial_items, loops, spread_local, result_local, state, reducer))
        if target is not local:
            nodes.append(self._over(spatial_items, loops, state, lambda s: self._copy(local, result_local, s)))
        node = seq(nodes)
        if spread_local is not None:
            node = Alloc(spread_local.buffer, node)
        if target is not local:
            node = Alloc(result_local.buffer, node)
        return node

    def _register(self, name: str, spatial: set[str], like: Local, state: State, dtype: str) -> Local:
        strides: dict[str, int] = {}
        size = 1
        for a in sorted(spatial, key=lambda a: like.strides[a]):
            strides[a] = size
            w = state.width[a]
            assert isinstance(w, int)
            size *= w
        check(
            size <= MAX_REGISTER_ELEMENTS,
            f"{name}: expected at most {MAX_REGISTER_ELEMENTS} accumulators; got {size}",
        )
        return Local(Buffer(name, size, dtype, "register"), strides, {a: state.base[a] for a in spatial})

    def _wide_counts(self, stage: PStage, wide: list[Item]) -> dict[str, int]:
        """Iterations of each spread or vector loop of a reduction that are full."""
        sizes = self._own_sizes(stage)
        extents = stage.extents
        return {
            i.name: (min(sizes[i.axis][i.level - 1], extents[i.axis]) if i.level else extents[i.axis]) // i.size
            for i in wide
        }

    def _spread_buffer(
        self, stage: PStage, wide: list[Item], counts: Mapping[str, int], result: Local, dtype: str
    ) -> Local:
        lanes: dict[str, int] = {}
        size = 1
        for i in reversed(wide):
            lanes[i.name] = size
            size *= counts[i.name]
        strides = {a: s * size for a, s in result.strides.items()}
        total = size * result.buffer.size
        check(total <= MAX_REGISTER_ELEMENTS, f"spread {stage.name}: expected fewer accumulators; got {total}")
        return Local(
            Buffer(f"{stage.name}.wide", total, dtype, "register"),
            {**strides, **lanes},
            dict(result.base),
            counts,
        )

    def _over_wide(
        self,
        wide: list[Item],
        spatial: list[Item],
        loops: StageLoops,
        where: Local,
        state: State,
        value: Expr,
    ) -> Node:
        def lanes(position: int, st: State) -> Node:
            if position == len(wide):
                index = _local_index(where, st) + _spread_index(where, st)
                return self._store(Store(where.buffer.name, index.expr(), value))
            return self._lane_loop(wide[position], where, st, lambda s: lanes(position + 1, s))

        return self._over(spatial, loops, state, lambda s: lanes(0, s))

    def _lane_loop(self, item: Item, where: Local, state: State, body: Body) -> Node:
        count = self._lane_count(item, where)
        name = f"{item.axis}.{item.level}"
        inner = replace(
            state,
            loops={**state.loops, (item.axis, item.level): make({name: 1}, 0)},
            ranges={**state.ranges, name: (0, count - 1)},
        )
        return Loop(name, const(count, "int64"), item.kind, body(inner), count)

    @staticmethod
    def _lane_count(item: Item, where: Local) -> int:
        return where.counts[item.name]

    def _fold(
        self,
        wide: list[Item],
        spatial: list[Item],
        loops: StageLoops,
        source: Local,
        target: Local,
        state: State,
        reducer: str,
    ) -> Node:
        """Combine the separate accumulators: the spread ones pairwise into the first, then the lanes."""
        dtype = source.buffer.dtype
        spread = [i for i in wide if i.kind != "vector"]
        vector = [i for i in wide if i.kind == "vector"]
        name = source.buffer.name

        def at(st: State, values: Mapping[str, int]) -> Affine:
            index = _local_index(source, st)
            for i in wide:
                stride = source.strides[i.name]
                if i.name in values:
                    index = index + Affine((), stride * values[i.name])
                else:
                    index = index + st.loops[i.axis, i.level].scale(stride)
            return index

        counts = [self._lane_count(i, source) for i in spread]
        total = 1
        for c in counts:
            total *= c

        def place(flat: int) -> dict[str, int]:
            out: dict[str, int] = {}
            for i, c in zip(reversed(spread), reversed(counts), strict=True):
                out[i.name] = flat % c
                flat //= c
            return out

        def combine(st: State) -> Node:
            nodes: list[Node] = []
            gap = 1
            while gap < total:
                for k in range(0, total - gap, 2 * gap):
                    value = Load(dtype, name, (at(st, place(k + gap)).expr(),))
                    nodes.append(self._store(Store(name, at(st, place(k)).expr(), value, reducer)))
                gap *= 2
            value = Load(dtype, name, (at(st, place(0)).expr(),))
            nodes.append(self._store(Store(target.buffer.name, _local_index(target, st).expr(), value, reducer)))
            return seq(nodes)

        def lanes(st: State) -> Node:
            return self._lane_loop(vector[0], source, st, combine) if vector else combine(st)

        return self._over(spatial, loops, state, lanes)

    def _fill(self, where: Local, state: State, value: Expr) -> Node:
        return self._store(Store(where.buffer.name, _local_index(where, state).expr(), value))

    def _copy(self, target: Local, source: Local, state: State) -> Node:
        value = Load(source.buffer.dtype, source.buffer.name, (_local_index(source, state).expr(),))
        return self._store(Store(target.buffer.name, _local_index(target, state).expr(), value))

    def _over(self, items: list[Item], loops: StageLoops, state: State, body: Body) -> Node:
        if not items:
            return body(state)
        return self._open(items[0], loops, state, lambda s: self._over(items[1:], loops, s, body))

    # ------------------------------------------------------------ packing

    def _pack_plan(self, stage: PStage, loops: StageLoops, pack: Pack, state: State) -> tuple[Expr, list[Item], Packed]:
        factors = product_factors(stage.body)
        check(
            stage.reducer == "sum" and pack.factor < len(factors) and len(factors) > 1,
            f"{pack}: expected a sum of products with a factor {pack.factor}",
        )
        factor = factors[pack.factor]
        used = variables(factor)
        sizes = self._own_sizes(stage)
        opened = {(i.axis, i.level) for i in loops.items if (i.axis, i.level) in state.loops}
        wanted = [i.name for i in loops.items if i.axis in used and (i.axis, i.level) not in opened]
        if pack.loop == "root":
            wanted = [f"{a}.{k}" for a in stage.extents if a in used for k in range(len(sizes[a]) + 1)]
            inside = sorted(_reads_expr(factor) & self.phase.local)
            check(not inside, f"{pack}: expected a factor that exists before the loops; it reads {inside}")
        check(bool(wanted), f"{pack}: expected a factor that the loops inside walk")
        check(sorted(wanted) == sorted(pack.layout), f"{pack}: expected the loops {sorted(wanted)}, each once")
        items: list[Item] = []
        for name in pack.layout:
            axis, level = name.rsplit(".", 1)
            k = int(level)
            check(
                all(o.level < k for o in items if o.axis == axis),
                f"{pack}: expected the loops of axis {axis} from outer to inner",
            )
            items.append(Item(axis, k, sizes[axis][k] if k < len(sizes[axis]) else 1, "serial"))
        strides: dict[tuple[str, int], int] = {}
        size = 1
        for i in reversed(items):
            strides[i.axis, i.level] = size
            outer = [o for o in items if o.axis == i.axis and o.level < i.level]
            if outer:
                width: int = max(outer, key=lambda o: o.level).size
            else:
                w = state.width[i.axis]
                width = w.cap if isinstance(w, Dyn) else w
                if i.level and pack.loop != "root":
                    width = min(sizes[i.axis][i.level - 1], -(-width // i.size) * i.size)
            size *= -(-width // i.size)
        scope = "thread"
        if pack.loop == "root":
            scope = "packed" if _reads_expr(factor) <= self.constants else "shared"
        buffer = Buffer(f"{stage.name}.pack{pack.factor}", size, factor.dtype, scope)
        return factor, items, Packed(buffer, strides)

    def _pack_nest(self, stage: PStage, factor: Expr, items: list[Item], packed: Packed, state: State) -> Node:
        last = items[-1]
        outer_last = [o for o in items if o.axis == last.axis and o.level < last.level]
        width = outer_last[-1].size if outer_last else 0
        if outer_last and width <= 64:
            items = [*items[:-1], replace(last, kind="vector")]
        loops = StageLoops(stage.name, tuple(items), frozenset(), (), False)

        def fill(position: int, st: State) -> Node:
            if position == len(items):
                index = ZERO
                for key, stride in packed.strides.items():
                    index = index + st.loops[key].scale(stride)
                value = self._expr(stage, factor, replace(st, packed={}), loops)
                return self._store(Store(packed.buffer.name, index.expr(), value))
            axis = items[position].axis
            if isinstance(st.width[axis], Dyn) and all(i.static for i in items[position:] if i.axis == axis):
                return self._resolve(axis, st, lambda s: fill(position, s))
            return self._open(items[position], loops, st, lambda s: fill(position + 1, s))

        return fill(0, state)

    def _pack_root(self, stage: PStage, loops: StageLoops, pack: Pack, state: State) -> State:
        factor, items, packed = self._pack_plan(stage, loops, pack, state)
        if packed.buffer.scope == "shared" and len(items) > 1:
            first = items[0]
            items = [replace(first, kind="parallel"), *items[1:]]
        node = self._pack_nest(stage, factor, items, packed, state)
        if packed.buffer.scope == "packed":
            self.prepare += [Note(f"pack {stage.name} factor {pack.factor}"), node]
            self.packed.append(packed.buffer)
        else:
            self.before += [Note(f"pack {stage.name} factor {pack.factor}"), node]
            self.shared.append(packed.buffer)
        return replace(state, packed={**state.packed, (stage.name, pack.factor): packed})

    def _pack_here(self, stage: PStage, loops: StageLoops, pack: Pack, state: State, rest: Body) -> Node:
        factor, items, packed = self._pack_plan(stage, loops, pack, state)
        node = self._pack_nest(stage, factor, items, packed, state)
        inner = replace(state, packed={**state.packed, (stage.name, pack.factor): packed})
        return Alloc(packed.buffer, seq([node, rest(inner)]))

    # ------------------------------------------------------------ opening a loop

    def _open(self, item: Item, loops: StageLoops, state: State, body: Body) -> Node:
        w = state.width[item.axis]
        partition = not loops.dynamic_inside(item.axis, item.level)
        if item.static and (isinstance(w, Dyn) or w % item.size):
            check(
                partition,
                f"{item.kind} {loops.stage} {item.name}: expected a tile size that divides {item.axis}, "
                "because a loop of the axis stays a loop inside it",
            )
            if isinstance(w, Dyn):
                return self._resolve(item.axis, state, lambda s: self._open(item, loops, s, body))
        if isinstance(w, int):
            full, rest = divmod(w, item.size)
            if item.kind == "parallel" or (rest and not partition):
                inner: Width = Dyn(item.size, state.base[item.axis] + Affine((), w)) if rest else item.size
                return self._loop(item, const(-(-w // item.size), "int64"), -(-w // item.size), state, inner, body)
            nodes: list[Node] = []
            if full:
                nodes.append(self._loop(item, const(full, "int64"), full, state, item.size, body))
            if rest:
                nodes.append(body(_not_full(state.step(item, Affine((), full), rest), item)))
            return seq(nodes)
        left = w.end + state.base[item.axis].scale(-1)
        check(
            item.kind != "parallel",
            f"parallel {loops.stage}: expected tile sizes of axis {item.axis} that divide it, because "
            f"{item.name} is parallel inside another loop of the axis",
        )
        check(
            w.cap % item.size == 0 and all(c % item.size == 0 for _, c in left.terms),
            f"stage {loops.stage}: expected tile sizes of axis {item.axis} that nest; got {item.size} in {w.cap}",
        )
        rest = left.const % item.size
        limit = w.cap // item.size
        floor = make({v: c // item.size for v, c in left.terms}, left.const // item.size)
        if rest and not partition:
            inner = Dyn(item.size, w.end)
            return self._up_to(item, floor + Affine((), 1), limit, state, inner, body)
        main = self._up_to(item, floor, limit, state, item.size, body)
        if not rest:
            return main
        low, high = interval(left, state.ranges)
        if low >= w.cap:
            return main
        tail = body(_not_full(state.step(item, floor, rest), item))
        return seq([main, tail if high < w.cap else If(binary("lt", left.expr(), w.cap), tail)])

    def _up_to(self, item: Item, count: Affine, limit: int, state: State, width: Width, body: Body) -> Node:
        """A loop of ``min(count, limit)`` iterations, where the count depends on the loops outside."""
        low, high = interval(count, state.ranges)
        if high <= 0:
            return Seq(())
        extent = const(limit, "int64") if low >= limit else count.expr()
        if low < limit < high:
            extent = binary("min", extent, limit)
        return self._loop(item, extent, min(limit, high), state, width, body)

    def _loop(self, item: Item, extent: Expr, limit: int, state: State, width: Width, body: Body) -> Node:
        if limit == 1 and item.kind != "parallel" and _is_const(extent, 1):
            return body(state.step(item, ZERO, width))
        check(
            item.kind != "vector" or limit <= MAX_LANES,
            f"vectorize {item.name}: expected at most {MAX_LANES} lanes; got {limit}",
        )
        inner = replace(state, ranges={**state.ranges, item.name: (0, limit - 1)})
        value = make({item.name: 1}, 0)
        return Loop(item.name, extent, item.kind, body(inner.step(item, value, width)), limit)

    def _resolve(self, axis: str, state: State, body: Body) -> Node:
        """Make a dynamic width static: one body for the full width, one for the last."""
        w = state.width[axis]
        assert isinstance(w, Dyn)
        left = w.end + state.base[axis].scale(-1)
        check(
            all(c % w.cap == 0 for _, c in left.terms),
            f"axis {axis}: expected tile sizes that nest; got {w.cap} in {left.expr()}",
        )
        rest = left.const % w.cap
        low, high = interval(left, state.ranges)

        def full() -> Node:
            return body(replace(state, width={**state.width, axis: w.cap}))

        def last() -> Node:
            short = replace(state, width={**state.width, axis: rest})
            return body(replace(short, loops={**short.loops, (axis + "!", -1): ZERO}))

        if not rest or low >= w.cap:
            return full()
        if high < w.cap:
            return last()
        return If(binary("le", const(w.cap, "int64"), left.expr()), full(), last())

    def _store(self, node: Store) -> Node:
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise ScheduleError(f"the loop program has more than {MAX_STATEMENTS} statements; choose smaller tiles")
        return node

    # ------------------------------------------------------------ expressions

    def _expr(self, stage: PStage, e: Expr, state: State, loops: StageLoops) -> Expr:
        packs: dict[Expr, Packed] = {}
        if any(name == stage.name for name, _ in state.packed):
            for k, factor in enumerate(product_factors(stage.body)):
                if (stage.name, k) in state.packed:
                    packs[factor] = state.packed[stage.name, k]
        memo: dict[Expr, Expr] = {}

        def rule(n: Expr) -> Expr | None:
            if n in packs:
                p = packs[n]
                index = ZERO
                for key, stride in p.strides.items():
                    index = index + state.loops[key].scale(stride)
                return Load(n.dtype, p.buffer.name, (index.expr(),))
            if isinstance(n, Var):
                return state.base[n.name].expr()
            if isinstance(n, Load):
                local = state.locals.get(n.tensor)
                if local is not None:
                    return Load(n.dtype, local.buffer.name, (_read_index(local, n, self.phase, state).expr(),))
                flat = rewrite(n.index[0], rule, memo)
                simple = affine(flat, state.ranges)
                return Load(n.dtype, n.tensor, (simple.expr() if simple is not None else flat,))
            return None

        return rewrite(e, rule, memo)


def _reads_expr(e: Expr) -> set[str]:
    return {load.tensor for load in loads(e)}


def _reads(s: PStage) -> set[str]:
    return _reads_expr(s.body)


def _flat_output(stage: PStage, state: State) -> Affine:
    index, stride = ZERO, 1
    for a, e in reversed(stage.axes):
        index = index + state.base[a].scale(stride)
        stride *= e
    return index


def _local_index(local: Local, state: State) -> Affine:
    index = ZERO
    for a, base in local.base.items():
        index = index + (state.base[a] + base.scale(-1)).scale(local.strides[a])
    return index


def _spread_index(local: Local, state: State) -> Affine:
    index = ZERO
    for name, stride in local.strides.items():
        if name not in local.base:
            axis, level = name.rsplit(".", 1)
            index = index + state.loops[axis, int(level)].scale(stride)
    return index


def _read_index(local: Local, load: Load, phase: Phase, state: State) -> Affine:
    producer = phase.stage(load.tensor)
    index = ZERO
    for i, (a, _) in zip(load.index, producer.axes, strict=True):
        at = affine(rewrite(i, lambda e: state.base[e.name].expr() if isinstance(e, Var) else None))
        assert at is not None  # checked when the phase was made
        index = index + (at + local.base[a].scale(-1)).scale(local.strides[a])
    return index


def _window(load: Load) -> bool:
    """Whether a local load reads positions that are not plain axes."""
    return not all(isinstance(i, Var) for i in load.index)


def _is_const(e: Expr, value: int) -> bool:
    a = affine(e)
    return a is not None and not a.terms and a.const == value


def _not_full(state: State, item: Item) -> State:
    """Mark that the iteration is the short last one of its loop."""
    return replace(state, loops={**state.loops, (item.axis + "!", item.level): ZERO})


def _full(state: State, item: Item) -> bool:
    """Whether every loop of the item's axis is in a full iteration."""
    return not any(axis == item.axis + "!" for axis, _ in state.loops)
