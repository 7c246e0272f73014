"""The loop language: it prints as pseudo-code, and the verifier refuses each broken rule."""

from __future__ import annotations

import pytest

from tilewright.graph.expr import Expr, Load, binary, const, var
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
from tilewright.schedules.verify import RULES, VerifyError, verify

NOTHING = Seq(())
K, J = var("i"), var("j")
X = Parameter("x", 12, "float32")
Y = Parameter("y", 12, "float32")


def number(value: int) -> Expr:
    """An index literal."""
    return const(value, "int64")


def x(index: Expr) -> Load:
    """An element of the input."""
    return Load("float32", "x", (index,))


def loop(name: str, extent: int, body: Node, kind: str = "serial") -> Loop:
    """A loop of a known extent."""
    return Loop(name, number(extent), kind, body, extent)


def program(
    body: Node, prepare: Node = NOTHING, shared: tuple[Buffer, ...] = (), packed: tuple[Buffer, ...] = ()
) -> Program:
    """A program from ``x`` to ``y``."""
    return Program((X,), Y, packed, shared, prepare, body)


COPY = Store("y", K, x(K))


def test_a_program_that_keeps_the_rules_passes() -> None:
    verify(program(loop("i", 12, COPY)))
    verify(program(loop("i", 3, loop("j", 4, Store("y", K * 4 + J, x(K * 4 + J)), "vector"), "parallel")))


BROKEN: dict[str, tuple[Node, str]] = {
    "a vector loop has a constant extent": (
        loop("i", 3, Loop("j", number(5) - K, "vector", Store("y", K + J, x(J)), 4)),
        r"vector loop j: expected a constant extent; got \(5 - i\)",
    ),
    "an unrolled loop has a constant extent": (
        loop("i", 3, Loop("j", number(5) - K, "unroll", Store("y", K + J, x(J)), 4)),
        r"unroll loop j: expected a constant extent; got \(5 - i\)",
    ),
    "vectors do not nest": (
        loop("i", 3, loop("j", 4, Store("y", K * 4 + J, x(J)), "vector"), "vector"),
        "vector loop j inside another vector loop",
    ),
    "parallel loops are outermost": (
        loop("i", 3, loop("j", 4, Store("y", K * 4 + J, x(J)), "parallel")),
        "parallel loop j inside a loop that is not parallel",
    ),
    "a variable is bound once": (loop("i", 3, loop("i", 4, COPY)), "loop variable i is bound twice"),
    "an index is bound": (Store("y", K, x(number(0))), r"y\[i\] = x\[0\]: variables \['i'\] are not bound"),
    "a value is bound": (Store("y", number(0), x(J)), r"variables \['j'\] are not bound by a loop"),
    "an extent is bound": (Loop("i", J, "serial", COPY, 12), r"for i in j:: variables \['j'\] are not bound"),
    "a condition is bound": (
        If(J.lt(3), Store("y", number(0), x(number(0)))),
        r"if \(j < 3\):: variables \['j'\] are not bound",
    ),
    "a stored buffer exists": (loop("i", 12, Store("b", K, x(K))), r"b\[i\] = x\[i\]: b is not allocated"),
    "a read buffer exists": (
        Seq((Alloc(Buffer("b", 12, "float32", "thread"), COPY_INTO_B := loop("i", 12, Store("b", K, x(K)))),
             loop("i", 12, Store("y", K, Load("float32", "b", (K,)))))),
        r"y\[i\] = b\[i\]: b is not allocated here",
    ),
    "a store index is affine": (
        loop("i", 12, Store("y", Load("int64", "x", (K,)), x(K))),
        r"y\[x\[i\]\] = x\[i\]: expected an affine store index",
    ),
    "a store stays below the end": (loop("i", 13, COPY), r"index in \[0, 12\] leaves a buffer of 12"),
    "a store stays above the start": (loop("i", 12, Store("y", K - 1, x(K))), r"index in \[-1, 10\] leaves"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_rule_is_named(name: str) -> None:
    body, message = BROKEN[name]
    with pytest.raises(VerifyError, match=message):
        verify(program(body))
    with pytest.raises(VerifyError, match=message):
        verify(program(loop("i", 12, COPY), prepare=body))


def test_every_rule_is_broken_once() -> None:
    assert len(RULES) == 7
    assert len(BROKEN) >= len(RULES)


def test_scratch_is_written_before_it_is_read() -> None:
    scratch = Buffer("t", 12, "float32", "shared")
    write, read = loop("i", 12, Store("t", K, x(K))), loop("i", 12, Store("y", K, Load("float32", "t", (K,))))
    verify(program(seq([write, read]), shared=(scratch,)))
    with pytest.raises(VerifyError, match=r"y\[i\] = t\[i\]: \['t'\] is read before it is written"):
        verify(program(seq([read, write]), shared=(scratch,)))
    packed = Buffer("t", 12, "float32", "packed")
    verify(program(read, prepare=write, packed=(packed,)))


def test_the_last_iterations_may_be_fewer() -> None:
    """Where a loop shrinks at the edge, or a condition holds, the range of a variable says too much: no false
    alarm."""
    inner = Loop("j", binary("min", number(12) - K * 5, 5), "serial", Store("y", K * 5 + J, x(J)), 5)
    verify(program(loop("i", 3, inner)))
    verify(program(loop("i", 13, If(K.lt(12), COPY))))


def test_a_program_prints_as_pseudo_code(golden: object) -> None:
    acc = Buffer("acc", 4, "float32", "register")
    total = Load("float32", "acc", (J,))
    body = seq(
        [
            Note("every kind of node"),
            loop(
                "i",
                3,
                Alloc(
                    acc,
                    seq(
                        [
                            loop("j", 4, Store("acc", J, const(0.0, "float32")), "unroll"),
                            loop("j", 4, Store("acc", J, x(J) * x(K), "sum"), "vector"),
                            loop("j", 4, Store("acc", J, x(J), "max"), "vector"),
                            If(
                                K.lt(2),
                                loop("j", 4, Store("y", K * 4 + J, total, stream=True), "vector"),
                                Note("nothing"),
                            ),
                        ]
                    ),
                ),
                "parallel",
            ),
        ]
    )
    packed = Buffer("p", 12, "float32", "packed")
    shared = Buffer("t", 12, "float32", "shared")
    p = program(body, loop("i", 12, Store("p", K, x(K), "prod")), (shared,), (packed,))
    assert callable(golden)
    golden(str(p))


def test_a_sequence_is_flat() -> None:
    one = loop("i", 12, COPY)
    assert seq([one]) == one
    assert seq([one, Seq((one, one))]) == Seq((one, one, one))


def test_instructions_count_what_unrolling_repeats() -> None:
    once = instructions(loop("i", 12, COPY))
    assert instructions(loop("j", 3, loop("i", 12, COPY))) == once
    assert instructions(loop("i", 12, COPY, "unroll")) == 12 * once
    assert instructions(loop("i", 8, COPY, "vector")) == once
    assert instructions(loop("i", 12, COPY, "vector")) == 2 * once
    assert instructions(If(K.lt(3), COPY, COPY)) == 2 * once
    strided = Store("y", K, x(K * 3))
    assert instructions(loop("i", 8, strided, "vector")) > 8 * once
