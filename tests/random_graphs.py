"""Random small graphs for the property tests: every shape of stage the product meets, at awkward extents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers import Case, case
from tilewright.graph import ops
from tilewright.graph.expr import Expr, all_of, binary, cast, const, maximum, minimum, select, unary
from tilewright.graph.graph import Graph, Tensor

Array = NDArray[Any]
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 37)
MOST_POINTS = 40_000


@dataclass
class Maker:
    """Builds one random graph. ``exact`` graphs use whole numbers and no maths."""

    rng: np.random.Generator
    graph: Graph
    exact: bool
    dtype: str = "float32"
    data: dict[str, Array] = field(default_factory=dict)

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return bool(self.rng.random() < p)

    def extent(self, most: int = 37) -> int:
        """An awkward extent."""
        return int(self.pick(*[e for e in EXTENTS if e <= most]))

    def shape(self, rank: int, points: int = 6_000) -> tuple[int, ...]:
        """Extents whose product stays small."""
        while True:
            s = tuple(self.extent() for _ in range(rank))
            if np.prod(s, dtype=np.int64) <= points:
                return s

    def tensor(self, shape: tuple[int, ...], positive: bool = False) -> Tensor:
        """An input or a constant with data."""
        if self.exact or self.dtype.startswith("int"):
            values = self.rng.integers(-2, 3, shape).astype(self.dtype)
        else:
            values = self.rng.standard_normal(shape).astype(self.dtype)
        if positive:
            values = np.abs(values) + np.asarray(0.5 if not self.exact else 1, dtype=self.dtype)
        if self.chance(0.4):
            return self.graph.constant(values, dtype=self.dtype)
        name = f"in{len(self.data)}"
        self.data[name] = values
        return self.graph.input(name, shape, self.dtype)

    def indices(self, shape: tuple[int, ...], limit: int) -> Tensor:
        """An int64 index tensor."""
        name = f"in{len(self.data)}"
        self.data[name] = self.rng.integers(0, limit, shape)
        return self.graph.input(name, shape, "int64")

    # ------------------------------------------------------------ pieces

    def apply(self, x: Expr, other: Callable[[], Expr]) -> Expr:
        """One element-wise operation."""
        kinds = ["relu", "add", "mul", "clip", "neg", "abs", "affine", "keep"]
        if not self.exact and self.dtype == "float32":
            kinds += ["tanh", "sigmoid", "exp", "gelu"]
        kind = self.pick(*kinds)
        if kind == "relu":
            return maximum(x, 0)
        if kind == "add":
            return x + other()
        if kind == "mul":
            return x * other()
        if kind == "clip":
            return minimum(maximum(x, -3), 3)
        if kind in ("neg", "abs"):
            return unary(kind, x)
        if kind == "affine":
            return x * 2 + 1
        if kind == "exp":
            return unary("exp", minimum(x, 3))
        if kind == "gelu":
            return x * (unary("erf", x * 0.70710678) + 1) * 0.5
        return x if kind == "keep" else unary(kind, x)

    def pointwise(self, t: Tensor) -> Tensor:
        """A chain link: activation, bias over some axes, residual or a broadcast operand."""
        shape = t.shape
        kept = [k for k in range(len(shape)) if self.chance(0.6)]
        bias = self.tensor(tuple(shape[k] if k in kept else 1 for k in range(len(shape))))

        def body(*i: Expr) -> Expr:
            return self.apply(t.at(i), lambda: bias.at([i[k] if k in kept else 0 for k in range(len(shape))]))

        return self.graph.compute(shape, body)

    def diamond(self, t: Tensor) -> Tensor:
        """Two readers of one tensor that meet again."""
        a, b = self.pointwise(t), self.pointwise(t)
        return self.graph.compute(t.shape, lambda *i: maximum(a.at(i), b.at(i)) if self.exact else a.at(i) + b.at(i))

    def injective(self, t: Tensor) -> Tensor:
        """One data movement: transpose, slice, reverse, concat, gather, view, pad, broadcast."""
        g, shape, rank = self.graph, t.shape, len(t.shape)
        kind = self.pick("transpose", "slice", "reverse", "concat", "gather", "view", "pad", "point", "point", "repeat")
        if rank == 0 or kind == "point":
            return self.pointwise(t)
        axis = int(self.rng.integers(rank))
        n = shape[axis]
        if kind == "transpose":
            order = [int(k) for k in self.rng.permutation(rank)]
            back = [order.index(k) for k in range(rank)]
            return g.compute([shape[k] for k in order], lambda *i: t.at([i[b] for b in back]))
        if kind == "slice":
            step = int(self.pick(1, 1, 2, 3))
            start = int(self.rng.integers(0, max(1, n // 2)))
            count = max(1, (n - start - 1) // step + 1)
            return self._along(t, axis, count, lambda i: i * step + start)
        if kind == "reverse":
            return self._along(t, axis, n, lambda i: (-i) + (n - 1))
        if kind == "pad":
            low, high = int(self.rng.integers(0, 3)), int(self.rng.integers(0, 3))
            out = tuple(e + (low + high if k == axis else 0) for k, e in enumerate(shape))

            def padded(*i: Expr) -> Expr:
                inside = all_of([i[axis].ge(low), i[axis].lt(n + low)])
                return select(inside, t.at([e - low if k == axis else e for k, e in enumerate(i)]), 0)

            return g.compute(out, padded)
        if kind == "concat":
            other = self.tensor(tuple(self.extent(8) if k == axis else e for k, e in enumerate(shape)))
            out = tuple(e + (other.shape[axis] if k == axis else 0) for k, e in enumerate(shape))

            def joined(*i: Expr) -> Expr:
                second = other.at([e - n if k == axis else e for k, e in enumerate(i)])
                return select(i[axis].lt(n), t.at(i), second)

            return g.compute(out, joined)
        if kind == "gather":
            count = self.extent(17)
            which = self.indices((count,), n)
            out = tuple(count if k == axis else e for k, e in enumerate(shape))
            return g.compute(out, lambda *i: t.at([which[e] if k == axis else e for k, e in enumerate(i)]))
        if kind == "repeat":
            return self._along(t, axis, n * 2, (lambda i: i // 2) if self.chance(0.5) else (lambda i: i % n))
        return self.reshape(t)

    def _along(self, t: Tensor, axis: int, count: int, index: Callable[[Expr], Expr]) -> Tensor:
        shape = tuple(count if k == axis else e for k, e in enumerate(t.shape))
        return self.graph.compute(shape, lambda *i: t.at([index(e) if k == axis else e for k, e in enumerate(i)]))

    def reshape(self, t: Tensor) -> Tensor:
        """A view with some dimensions merged, split or of size 1."""
        size = int(np.prod(t.shape, dtype=np.int64))
        factors = [d for d in range(2, size + 1) if size % d == 0][:6] or [1]
        d = int(self.pick(*factors))
        shape: tuple[int, ...] = self.pick((size,), (d, size // d), (size // d, d), (size // d, 1, d), (1, size))
        return self.graph.view(t, shape)

    def chain(self, t: Tensor, most: int) -> Tensor:
        """Some element-wise links behind a tensor."""
        for _ in range(int(self.rng.integers(0, most + 1))):
            t = self.diamond(t) if self.chance(0.2) else self.pointwise(t)
        return t

    # ------------------------------------------------------------ whole graphs

    def contraction(self) -> Tensor:
        """A sum of products over shared axes: batch, free axes of each operand in any order, several
        reduction axes."""
        while True:
            batch = [self.extent(7) for _ in range(int(self.pick(0, 0, 1, 2)))]
            left = [self.extent() for _ in range(int(self.pick(0, 1, 1, 2)))]
            right = [self.extent() for _ in range(int(self.pick(0, 1, 1)))]
            reduce = [self.extent() for _ in range(int(self.pick(1, 1, 2, 3)))]
            if np.prod([*batch, *left, *right, *reduce], dtype=np.int64) <= MOST_POINTS:
                break
        nb, nl = len(batch), len(left)
        spatial = [*batch, *left, *right]
        extents = [*spatial, *reduce]
        rank = len(spatial)
        a_axes = [*range(nb + nl), *range(rank, len(extents))]
        b_axes = [*range(nb), *range(nb + nl, rank), *range(rank, len(extents))]
        if self.chance(0.2):  # a broadcast operand
            b_axes = [k for k in b_axes if self.chance(0.7)]
        a_axes = [int(k) for k in self.rng.permutation(a_axes)]
        b_axes = [int(k) for k in self.rng.permutation(b_axes)]
        a = self.tensor(tuple(extents[k] for k in a_axes))
        b = self.tensor(tuple(extents[k] for k in b_axes))
        if self.chance(0.3):
            a = self.pointwise(a)
        order = [int(k) for k in self.rng.permutation(rank)] if self.chance(0.3) else list(range(rank))
        place = {k: p for p, k in enumerate(order)}

        def body(*i: Expr) -> Expr:
            at = [i[place[k]] if k < rank else i[k] for k in range(len(extents))]
            return a.at([at[k] for k in a_axes]) * b.at([at[k] for k in b_axes])

        c = self.graph.compute([extents[k] for k in order], body, reduce=reduce, reducer="sum")
        return self.chain(c, 3)

    def convolution(self) -> Tensor:
        """Windows with strides, dilation and padding; grouped, depthwise or dense; one or two dimensions."""
        g = self.graph
        dims = int(self.pick(1, 2))
        k = int(self.pick(1, 2, 3))
        stride, dilation, pad = (
            int(self.pick(1, 1, 2, 3)),
            int(self.pick(1, 1, 2)),
            int(self.pick(0, 0, 1, 2)),
        )
        size = int(self.pick(5, 7, 8, 13)) if dims == 2 else int(self.pick(7, 16, 31))
        out = (size + 2 * pad - dilation * (k - 1) - 1) // stride + 1
        if out < 1:
            return self.contraction()
        depthwise = self.chance(0.3)
        ci, co = self.extent(5), self.extent(9)
        if depthwise:
            co = ci
        batch = int(self.pick(1, 1, 2))
        last = self.chance(0.3)  # channels last
        x = self.tensor((batch, *([size] * dims), ci) if last else (batch, ci, *([size] * dims)))
        w = self.tensor((co, *([k] * dims)) if depthwise else (co, ci, *([k] * dims)))
        source = x
        if pad:
            first = 1 if last else 2
            shape = [e + (2 * pad if first <= n < first + dims else 0) for n, e in enumerate(x.shape)]

            def padded(*i: Expr) -> Expr:
                where = i[first : first + dims]
                inside = all_of([c for e in where for c in (e.ge(pad), e.lt(size + pad))])
                moved = [e - pad if first <= n < first + dims else e for n, e in enumerate(i)]
                return select(inside, x.at(moved), 0)

            source = g.compute(shape, padded)
        spatial = [batch, *([out] * dims), co] if last else [batch, co, *([out] * dims)]
        reduce = [*([] if depthwise else [ci]), *([k] * dims)]

        def body(*i: Expr) -> Expr:
            n = i[0]
            o, place = (i[1 + dims], i[1 : 1 + dims]) if last else (i[1], i[2 : 2 + dims])
            rest = i[2 + dims :]
            c = o if depthwise else rest[0]
            window = rest if depthwise else rest[1:]
            where = [p * stride + u * dilation for p, u in zip(place, window, strict=True)]
            image = source.at([n, *where, c] if last else [n, c, *where])
            return image * (w.at([o, *window]) if depthwise else w.at([o, c, *window]))

        y = g.compute(spatial, body, reduce=reduce, reducer="sum")
        return self.chain(y, 3)

    def reduction(self) -> Tensor:
        """One reduction of any kind over any axes, with work before and after it."""
        rank = int(self.pick(1, 2, 2, 3, 3))
        shape = self.shape(rank)
        x = self.tensor(shape)
        if self.chance(0.4):
            x = self.pointwise(x)
        if self.chance(0.2):
            x = self.injective(x)
        shape, rank = x.shape, len(x.shape)
        axes = [k for k in range(rank) if self.chance(0.5)] or [int(self.rng.integers(rank))]
        reducer = self.pick("sum", "max", "min", "prod", "sum")
        keep = [k for k in range(rank) if k not in axes]

        def body(*i: Expr) -> Expr:
            spatial, reduced = iter(i[: len(keep)]), iter(i[len(keep) :])
            e: Expr = x.at([next(reduced) if k in axes else next(spatial) for k in range(rank)])
            if reducer == "prod" and self.dtype == "float32":
                return select(e.lt(0), const(-1.0, "float32"), 1.0) if self.exact else unary("tanh", e) * 0.1 + 1.0
            return e

        y = self.graph.compute([shape[k] for k in keep], body, [shape[k] for k in axes], reducer)
        return self.chain(y, 2) if keep else y

    def pool(self) -> Tensor:
        """Maximum or sum over windows."""
        n, h, k, s = self.extent(5), int(self.pick(7, 9, 16)), int(self.pick(2, 3)), int(self.pick(1, 2, 3))
        x = self.tensor((n, h, h))
        o = (h - k) // s + 1
        reducer = self.pick("max", "sum", "min")
        y = self.graph.compute(
            (n, o, o), lambda c, i, j, u, v: x[c, i * s + u, j * s + v], reduce=(k, k), reducer=reducer
        )
        return self.chain(y, 2)

    def rows(self) -> Tensor:
        """Several reductions over one axis that is read back: softmax, log-softmax, layer normalisation,
        centring."""
        g = self.graph
        rank = int(self.pick(1, 2, 2, 3))
        shape = self.shape(rank, 4000)
        axis = int(self.rng.integers(rank))
        n = shape[axis]
        x = self.tensor(shape)
        if self.chance(0.3):
            x = self.pointwise(x)
        small = tuple(1 if k == axis else e for k, e in enumerate(shape))
        zero = [0 if k == axis else None for k in range(rank)]

        def over(t: Tensor, reducer: str, f: Callable[[Expr], Expr] = lambda e: e) -> Tensor:
            return g.compute(
                small, lambda *i: f(t.at([i[-1] if k == axis else i[k] for k in range(rank)])), (n,), reducer
            )

        def at(t: Tensor, i: tuple[Expr, ...]) -> Expr:
            return t.at([e if z is None else 0 for e, z in zip(i, zero, strict=True)])

        kind = self.pick("centre") if self.exact else self.pick("softmax", "log", "norm", "centre", "l2")
        if kind == "centre":
            m = over(x, self.pick("max", "sum", "min"))
            return self.chain(g.compute(shape, lambda *i: x.at(i) - at(m, i)), 2)
        if kind == "l2":
            s = over(x, "sum", lambda e: e * e)
            return self.chain(g.compute(shape, lambda *i: x.at(i) * unary("rsqrt", at(s, i) + 1.0)), 2)
        if kind in ("softmax", "log"):
            m = over(x, "max")
            if kind == "softmax":
                e = g.compute(shape, lambda *i: unary("exp", x.at(i) - at(m, i)))
                s = over(e, "sum")
                return self.chain(g.compute(shape, lambda *i: e.at(i) / at(s, i)), 2)
            d = g.compute(shape, lambda *i: x.at(i) - at(m, i))
            s = over(d, "sum", lambda v: unary("exp", v))
            return self.chain(g.compute(shape, lambda *i: d.at(i) - unary("log", at(s, i))), 2)
        mean = over(x, "sum")
        d = g.compute(shape, lambda *i: x.at(i) - at(mean, i) * (1.0 / n))
        v = over(d, "sum", lambda e: e * e)
        y = g.compute(shape, lambda *i: d.at(i) * unary("rsqrt", at(v, i) * (1.0 / n) + 1e-3))
        return self.chain(y, 2)

    def attention(self) -> Tensor:
        """Two contractions around a softmax: ``softmax(q kᵀ) v``, or with a maximum in place of the softmax."""
        g = self.graph
        b, n, m, d = self.extent(4), self.extent(17), self.extent(31), self.extent(9)
        q, k, v = self.tensor((b, n, d)), self.tensor((b, m, d)), self.tensor((b, m, d))
        s = g.compute((b, n, m), lambda a, i, j, r: q[a, i, r] * k[a, j, r], (d,), "sum")
        if self.chance(0.5):
            s = self.pointwise(s)
        top = g.compute((b, n, 1), lambda a, i, _, r: s[a, i, r], (m,), "max")
        if self.exact:
            e = g.compute((b, n, m), lambda a, i, j: cast(s[a, i, j].eq(top[a, i, 0]), "float32"))
            return g.compute((b, n, d), lambda a, i, j, r: e[a, i, r] * v[a, r, j], (m,), "sum")
        e = g.compute((b, n, m), lambda a, i, j: unary("exp", s[a, i, j] - top[a, i, 0]))
        total = g.compute((b, n, 1), lambda a, i, _, r: e[a, i, r], (m,), "sum")
        p = g.compute((b, n, m), lambda a, i, j: e[a, i, j] / total[a, i, 0])
        return g.compute((b, n, d), lambda a, i, j, r: p[a, i, r] * v[a, r, j], (m,), "sum")

    def movement(self) -> Tensor:
        """A chain of data movements."""
        t = self.tensor(self.shape(int(self.pick(1, 2, 3)), 1500))
        for _ in range(int(self.rng.integers(1, 5))):
            t = self.injective(t)
            if t.type.size > 6000:
                break
        return t if self.graph.nodes and t.name in self.graph.producers() else self.pointwise(t)

    def mixed(self) -> Tensor:
        """A contraction between data movements."""
        x = self.tensor(self.shape(2, 400))
        x = self.injective(self.injective(x))
        n, m = x.shape[-1], self.extent(17)
        rank = len(x.shape)
        w = self.tensor((n, m))
        if x.type.size * m > MOST_POINTS:
            return self.pointwise(x)
        y = self.graph.compute(
            (*x.shape[:-1], m), lambda *i: x.at([*i[: rank - 1], i[-1]]) * w[i[-1], i[rank - 1]], (n,), "sum"
        )
        y = self.chain(y, 1)
        return self.injective(y) if self.chance(0.6) else y

    def dtypes(self) -> Tensor:
        """Comparisons and casts between types, ending in bool, integers or floats."""
        x = self.tensor(self.shape(2, 1500))
        a = self.graph.compute(x.shape, lambda *i: x.at(i).lt(1))
        b = self.graph.compute(x.shape, lambda *i: binary("or", a.at(i), x.at(i).eq(2)))
        if self.chance(0.3):
            return b
        target = self.pick("int32", "int64", "float64", "int8", "uint8", "float32")
        return self.graph.compute(x.shape, lambda *i: cast(b.at(i), target))

    def ordered(self) -> Tensor:
        """A scan or a selection, mostly behind a map and before another, in any of three dimensions."""
        x = self.tensor(self.shape(int(self.pick(1, 2, 3)), 2500))
        if self.chance(0.5):
            x = self.pointwise(x)
        axis = int(self.rng.integers(x.rank))
        if self.chance(0.6):
            reducer = self.pick("sum", "max", "min") if self.exact or self.chance(0.8) else "prod"
            y = ops.cumulative(x, reducer, axis, self.chance(0.4), self.chance(0.4))
            if x.shape[axis] == 1 or (reducer != "sum" and self.chance(0.3)):
                return self.pointwise(y)
            return y
        found = ops.top_k(x, int(self.rng.integers(1, x.shape[axis] + 1)), axis, self.chance(0.5))
        return found[int(self.chance(0.5))]


KINDS = ("contraction", "convolution", "reduction", "pool", "rows", "movement", "mixed", "dtypes", "attention")


def ordered_case(seed: int) -> Case:
    """A case with a scan or a selection, of whole numbers, so that no rounding changes an order."""
    rng = np.random.default_rng(seed)
    data: dict[str, Array] = {}
    dtype = ("float32", "float32", "float64", "int32", "int64")[int(rng.integers(5))]
    return case(lambda g: Maker(rng, g, True, dtype, data).ordered(), data, exact=True)


def random_case(seed: int) -> Case:
    """The case of a seed: the same graph and data every time."""
    rng = np.random.default_rng(seed)
    exact = bool(rng.random() < 0.5)
    kind = KINDS[int(rng.choice(len(KINDS), p=[0.19, 0.16, 0.14, 0.06, 0.16, 0.12, 0.08, 0.04, 0.05]))]
    data: dict[str, Array] = {}
    dtype = "float32"
    if kind in ("contraction", "reduction", "movement", "pool") and rng.random() < 0.15:
        dtype = ("float64", "int32", "int64")[int(rng.integers(3))]

    def make(g: Graph) -> Tensor:
        m = Maker(rng, g, exact, dtype, data)
        t: Tensor = getattr(m, kind)()
        if t.name not in g.producers() or not any(hasattr(n, "body") for n in g.nodes):
            t = m.pointwise(t)
        return t

    return case(make, data, exact)


# ---------------------------------------------------------------- whole networks


def random_network(seed: int) -> Graph:
    """A small network of several kernels over channels of an image: what fusion and memory planning meet. Tensors are split,
    joined, reshaped, padded, enlarged and added, between products over the channels and pools."""
    rng = np.random.default_rng(seed)
    g = Graph()
    m = Maker(rng, g, exact=False)
    batch, side = int(m.pick(1, 1, 1, 2)), int(m.pick(4, 4, 3))
    live = [g.input(f"x{k}", (batch, int(m.pick(4, 8)), side, side)) for k in range(2)]

    def product(t: Tensor) -> Tensor:
        co, ci = int(m.pick(4, 8, 16)), t.shape[1]
        w = g.constant(rng.standard_normal((co, ci)).astype(np.float32) / np.float32(ci))
        y = g.compute((t.shape[0], co, *t.shape[2:]), lambda n, o, i, j, c: t[n, c, i, j] * w[o, c], (ci,), "sum")
        return squashed(y) if m.chance(0.7) else y

    def squashed(t: Tensor) -> Tensor:
        b = g.constant(rng.standard_normal((t.shape[1], 1, 1)).astype(np.float32))
        return g.compute(t.shape, lambda n, c, i, j: unary("tanh", t[n, c, i, j] + b[c, 0, 0]))

    def parts(t: Tensor) -> list[Tensor]:
        axis = int(m.pick(1, 1, 1, 2))
        cut = int(rng.integers(1, t.shape[axis])) if t.shape[axis] > 1 else 0
        if not cut:
            return []
        spans = ((0, cut), (cut, t.shape[axis] - cut))

        def piece(start: int, count: int) -> Tensor:
            shape = [count if k == axis else e for k, e in enumerate(t.shape)]
            return g.compute(shape, lambda *i: t.at([e + start if k == axis else e for k, e in enumerate(i)]))

        return [piece(*span) for span in spans]

    def joined(chosen: list[Tensor]) -> Tensor:
        total = sum(t.shape[1] for t in chosen)

        def body(n: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
            stop = total
            value: Expr | None = None
            for t in reversed(chosen):
                start = stop - t.shape[1]
                part = t[n, c - start, i, j]
                value = part if value is None else select(c.lt(stop), part, value)
                stop = start
            assert value is not None
            return value

        return g.compute((batch, total, *chosen[0].shape[2:]), body)

    def reshaped(t: Tensor) -> Tensor:
        n, c, h, w = t.shape
        v = g.view(t, m.pick((n, c * h * w), (n * c, h, w), (n, c, h * w), (n * c * h, w)))
        bias = g.constant(rng.standard_normal(v.shape[-1:]).astype(np.float32))
        y = g.compute(v.shape, lambda *i: v.at(i) * 0.5 + bias[i[-1]])
        return g.view(y, t.shape)

    def pooled(t: Tensor) -> Tensor:
        n, c, h, w = t.shape
        s = g.compute((n, c, 1, 1), lambda a, b, i, j, u, v: t[a, b, u, v], (h, w), "sum")
        return g.compute(t.shape, lambda a, b, i, j: t[a, b, i, j] * unary("sigmoid", s[a, b, 0, 0]))

    def enlarged(t: Tensor) -> Tensor:
        n, c, h, w = t.shape
        big = g.compute((n, c, 2 * h, 2 * w), lambda a, b, i, j: t[a, b, i // 2, j // 2])
        return g.compute((n, c, h, w), lambda a, b, i, j: big[a, b, i * 2 + 1, j * 2] + t[a, b, i, j])

    def padded(t: Tensor) -> Tensor:
        n, c, h, w = t.shape

        def border(a: Expr, b: Expr, i: Expr, j: Expr) -> Expr:
            return select(all_of([i.ge(1), i.lt(h + 1)]), t[a, b, i - 1, j], 0)

        edge = g.compute((n, c, h + 2, w), border)
        return g.compute((n, c, h, w), lambda a, b, i, j, u: edge[a, b, i + u, j], (3,), "max")

    for _ in range(int(rng.integers(3, 8))):
        t = live[int(rng.integers(len(live)))]
        kind = m.pick("product", "product", "parts", "join", "join", "reshape", "add", "pool", "enlarge", "pad")
        if kind == "parts":
            live += parts(t)
        elif kind == "join":
            same = [u for u in live if u.shape[2:] == t.shape[2:]]
            order = [int(k) for k in rng.permutation(len(same))][: int(m.pick(2, 3, 4))]
            live.append(joined([same[k] for k in order]))
        elif kind == "add":
            same = [u for u in live if u.shape == t.shape]
            u = same[int(rng.integers(len(same)))]
            live.append(g.compute(t.shape, lambda *i, a=t, b=u: maximum(a.at(i) + b.at(i), 0)))
        else:
            maker = {"product": product, "reshape": reshaped, "pool": pooled, "enlarge": enlarged, "pad": padded}[kind]
            live.append(maker(t))
    made = [t for t in live if t.name not in g.inputs] or [squashed(live[0])]
    for k in rng.permutation(len(made))[: int(m.pick(1, 1, 2, 3))]:
        g.output(made[int(k)])
    if made[-1].name not in g.outputs:
        g.output(made[-1])
    return g
