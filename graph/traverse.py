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
    done = memo.get(e)
    if done is not None:
        return done
    new = rule(e)
    if new is None:
        if isinstance(e, Load):
            new = Load(e.dtype, e.tensor, tuple(rewrite(i, rule, memo) for i in e.index))
        elif isinstance(e, Op):
            args = tuple(rewrite(a, rule, memo) for a in e.args)
            new = e if args == e.args else rebuild(e, args)
        else:
            new = e
    memo[e] = new
    return new


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
