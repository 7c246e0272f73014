"""What a loop computes again and again although it does not change: divisions, roots and exponentials of values that the loop
neither indexes nor writes, and the parts of an index that are looked up (the row that a gather copies).

The scale of a normalised row is such a value: it is inlined into the loop over the row. LLVM's pass that moves such values out
of loops is not in the pipeline, and its code generator moves only what is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.affine import parted
from tilewright.graph.dtypes import FLOATS
from tilewright.graph.expr import MATHS, Const, Expr, Load, Op
from tilewright.graph.traverse import loads, variables
from tilewright.graph.traverse import walk as parts
from tilewright.schedules.falling import FALLING
from tilewright.schedules.nest import Alloc, Loop, Node, Pick, Prefix, Seq, Store, walk

COSTLY = MATHS | {"div", "pow", "fmod", FALLING}
"""Operations that are worth a register through the loop; others LLVM moves itself, or they cost less than a register."""


def invariants(loop: Loop) -> list[Expr]:
    """The largest costly expressions that every iteration of ``loop`` computes and that are the same in each.

    What is computed under a condition, or in a loop that may have no iterations, is left where it is: its loads may be
    out of bounds elsewhere.
    """
    if not isinstance(loop.extent, Const):
        return []
    inside = list(walk(loop))
    moving = {n.var for n in inside if isinstance(n, Loop)}
    written = {n.tensor for n in inside if isinstance(n, Store | Prefix | Pick)}
    written |= {n.carry for n in inside if isinstance(n, Prefix)}
    found = (e for store in _certain(loop.body) for e in _largest(store.value, moving, written))
    return list(dict.fromkeys(found))


def _certain(node: Node) -> Iterator[Store]:
    """Stores that every iteration comes to."""
    if isinstance(node, Store):
        yield node
    elif isinstance(node, Seq):
        for n in node.nodes:
            yield from _certain(n)
    elif isinstance(node, Alloc) or (isinstance(node, Loop) and isinstance(node.extent, Const)):
        yield from _certain(node.body)


def _largest(e: Expr, moving: set[str], written: set[str]) -> Iterator[Expr]:
    if isinstance(e, Load):
        for part in parted(e.index[0]).parts.values():
            if not variables(part) & moving and not any(load.tensor in written for load in loads(part)):
                yield part
        return
    if not isinstance(e, Op) or e.kind == "select":
        return
    if variables(e) & moving or any(load.tensor in written for load in loads(e)):
        for x in e.args:
            yield from _largest(x, moving, written)
        return
    kinds = {x.kind for x in parts(e) if isinstance(x, Op)}
    if e.dtype in FLOATS and kinds & COSTLY and "select" not in kinds:
        yield e
