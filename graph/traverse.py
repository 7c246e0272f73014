"""Walking, rewriting and printing expressions: whatever needs to know the four kinds of node and nothing about what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from tilewright.graph.expr import Const, Expr, Load, Op, Var, binary, cast, select


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions."""
    if isinstance(e, Load):
        return e.index
    if isinstance(e, Op):
        return e.args
    return ()


def walk(e: Expr) -> Iterator[Expr]:
    """Every distinct sub-expression once, parents before children."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        yield n
        stack.extend(reversed(children(n)))


def rewrite(e: Expr, rule: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rebuild ``e`` bottom-up; where ``rule(node)`` returns a value, that replaces the node (its children are not
    visited). Shared sub-expressions are rewritten once."""
    memo = {} if memo is None else memo
    asked: set[Expr] = set()
    stack = [e]
    while stack:  # a stack of its own: expressions may be deeper than Python's
        n = stack[-1]
        if n in memo:
            stack.pop()
            continue
        if n not in asked:
            asked.add(n)
            new = rule(n)
            if new is not None:
                memo[n] = new
                continue
        missing = [c for c in children(n) if c not in memo]
        if missing:
            stack.extend(reversed(missing))
            continue
        parts = tuple(memo[c] for c in children(n))
        if parts == children(n):
            memo[n] = n
        else:
            assert isinstance(n, Load | Op)
            memo[n] = Load(n.dtype, n.tensor, parts) if isinstance(n, Load) else rebuild(n, parts)
    return memo[e]


def postorder(e: Expr) -> Iterator[Expr]:
    """Every distinct sub-expression once, children before parents, first arguments first."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        n, ready = stack.pop()
        if ready:
            yield n
        elif n not in seen:
            seen.add(n)
            stack.append((n, True))
            stack.extend((c, False) for c in reversed(children(n)) if c not in seen)


@lru_cache(maxsize=1 << 12)
def depth(e: Expr) -> int:
    """The longest way from ``e`` down to a leaf."""
    found: dict[Expr, int] = {}
    for n in postorder(e):
        found[n] = 1 + max((found[c] for c in children(n)), default=0)
    return found[e]


def rebuild(e: Op, args: tuple[Expr, ...]) -> Expr:
    """The operation of ``e`` on new arguments, folding as the constructors do."""
    if e.kind == "select":
        return select(*args)
    if e.kind == "cast":
        return cast(args[0], e.dtype)
    if len(args) == 2:
        return binary(e.kind, *args)
    return Op(e.dtype, e.kind, args)


def substitute(e: Expr, values: dict[str, Expr]) -> Expr:
    """Replace variables by name."""
    return rewrite(e, lambda n: values.get(n.name) if isinstance(n, Var) else None)


def loads(e: Expr) -> list[Load]:
    """Every distinct load, in order of first appearance."""
    return list(_loads(e))


@lru_cache(maxsize=1 << 14)
def _loads(e: Expr) -> tuple[Load, ...]:
    """Rules and cost models ask the same bodies again and again."""
    return tuple(n for n in walk(e) if isinstance(n, Load))


def variables(e: Expr) -> set[str]:
    """Names of the variables ``e`` depends on."""
    return set(_variables(e))


@lru_cache(maxsize=1 << 14)
def _variables(e: Expr) -> frozenset[str]:
    return frozenset(n.name for n in walk(e) if isinstance(n, Var))


def show(e: Expr) -> str:
    """Readable text, as the loop-program printer uses it."""
    if isinstance(e, Const):
        if isinstance(e.value, float):
            return repr(e.value) if math.isfinite(e.value) else f"{e.dtype}({e.value!r})"
        return str(e.value).lower() if isinstance(e.value, bool) else str(e.value)
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Load):
        return f"{e.tensor}[{', '.join(show(i) for i in e.index)}]"
    assert isinstance(e, Op)
    sign = _SIGNS.get(e.kind)
    if sign:
        return f"({show(e.args[0])} {sign} {show(e.args[1])})"
    name = e.dtype if e.kind == "cast" else e.kind
    return f"{name}({', '.join(show(a) for a in e.args)})"


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "eq": "==",
    "ne": "!=", "and": "and", "or": "or",
}  # fmt: skip
