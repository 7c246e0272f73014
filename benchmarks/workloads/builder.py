"""Makes the workloads of a suite, at full size or cut down for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.backends import Ops, Value
from benchmarks.workloads.workload import Body, Input, Workload


class Builder:
    """Makes workloads; with a ``cap``, every size is cut down to about that, so that a test is quick."""

    def __init__(self, suite: str, cap: int | None) -> None:
        self.suite = suite
        self.cap = cap
        self.made: list[Workload] = []

    def cut(self, n: int) -> int:
        """A size under the cap; odd sizes stay odd."""
        return n if self.cap is None else min(n, self.cap + n % 2)

    def groups(self, n: int, channels: int) -> int:
        """A number of groups that divides the channels."""
        return n if self.cap is None else math.gcd(n, channels)

    def add(self, name: str, inputs: Sequence[Input], body: Body) -> None:
        """One workload, with sizes as they are."""
        self.made.append(Workload(name, self.suite, tuple(inputs), body, self.cap))

    def given(self, name: str, shapes: Sequence[Sequence[int]], body: Body) -> None:
        """One whose tensors all come with the call."""
        inputs = [Input("abcdefgh"[k], tuple(self.cut(d) for d in s)) for k, s in enumerate(shapes)]
        self.add(name, inputs, body)

    def linear(
        self,
        name: str,
        m: int,
        k: int,
        n: int,
        body: Body,
        bias: bool = True,
        extra: Sequence[tuple[int, ...]] = (),
        transposed: bool = True,
    ) -> None:
        """A matrix times constant weights, then ``body(ops, y, *extra)``; extra tensors are constant."""
        m, k, n = self.cut(m), self.cut(k), self.cut(n)
        inputs = [Input("x", (m, k)), Input("w", (n, k) if transposed else (k, n), True, k**-0.5)]
        inputs += [Input("bias", (n,), True)] if bias else []
        inputs += [Input(f"e{j}", tuple(self.cut(d) for d in s), True) for j, s in enumerate(extra)]

        def whole(o: Ops, x: Value, w: Value, *rest: Value) -> Value:
            y = o.linear(x, w, rest[0] if bias else None, transposed)
            return body(o, y, *rest[bias:])

        self.add(name, inputs, whole)

    def conv(
        self,
        name: str,
        x: tuple[int, ...],
        out: int,
        kernel: int,
        body: Body = lambda o, y: y,
        stride: int = 1,
        pad: int = 0,
        bias: bool = False,
        depthwise: bool = False,
        extra: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """A convolution with constant weights, then ``body(ops, y, *extra)``."""
        x, out, rank = tuple(self.cut(d) for d in x), self.cut(out), len(x) - 2
        w = (out, 1 if depthwise else x[1], *[kernel] * rank)
        inputs = [Input("x", x), Input("w", w, True, math.prod(w[1:]) ** -0.5)]
        inputs += [Input("bias", (out,), True)] if bias else []
        inputs += [Input(f"e{j}", tuple(self.cut(d) for d in s), True) for j, s in enumerate(extra)]

        def whole(o: Ops, x_: Value, w_: Value, *rest: Value) -> Value:
            y = o.conv(x_, w_, rest[0] if bias else None, stride, pad, out if depthwise else 1, rank)
            return body(o, y, *rest[bias:])

        self.add(name, inputs, whole)
