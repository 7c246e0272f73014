"""LLVM IR that runs into a machine's ceilings: chains of fused multiply-adds, and streams over memory."""

from __future__ import annotations

import functools

from tilewright.schedules.target import BITS, Target

LLVM = {"float32": "float", "float64": "double"}
_WORD = "i64"
STREAMS = ("read", "copy", "nt_copy")
UNROLL = 8


def chains(target: Target) -> int:
    """Independent accumulators: enough to cover the latency of the units, while registers stay free."""
    return max(4, min(24, target.vector_registers - 4))


def _fma(target: Target, dtype: str) -> str:
    """``fma_<dtype>(args, lo, hi)``: hi - lo rounds of one multiply-add on each accumulator."""
    n, lanes = chains(target), target.lanes(dtype)
    v = f"<{lanes} x {LLVM[dtype]}>"
    intrinsic = f"@llvm.fmuladd.v{lanes}f{BITS[dtype]}"
    lines = [
        f"declare {v} {intrinsic}({v}, {v}, {v})",
        f"define internal void @fma_{dtype}(ptr %args, i64 %lo, i64 %hi) noinline {{",
        "entry:",
        "  %data = load ptr, ptr %args, align 8",
        f"  %x = load volatile {v}, ptr %data, align 64",
        f"  %y = load volatile {v}, ptr %data, align 64",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]",
    ]
    lines += [f"  %a{k} = phi {v} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in range(n)]
    lines += [f"  %b{k} = call contract {v} {intrinsic}({v} %a{k}, {v} %x, {v} %y)" for k in range(n)]
    lines += [
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %hi",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  %sink = alloca [64 x i8], align 64",
    ]
    # each accumulator is stored, so that none is dead; what differs between them is only the register
    lines += [f"  store volatile {v} %b{k}, ptr %sink, align 8" for k in range(n)]
    return "\n".join([*lines, "  ret void", "}"]).replace("[64 x i8]", f"[{max(64, target.vector_bits // 8)} x i8]")


def _stream(target: Target, kind: str) -> str:
    """``<kind>(args, lo, hi)`` streams shares lo to hi; args = {from, to, bytes of a share, repeats}."""
    lanes = max(2, target.vector_bits // 64)
    v = f"<{lanes} x {_WORD}>"
    width = lanes * 8
    step = width * UNROLL
    hint = ", !nontemporal !0" if kind == "nt_copy" else ""
    lines = [
        f"define internal void @{kind}(ptr %args, i64 %lo, i64 %hi) noinline {{",
        "entry:",
        "  %from = load ptr, ptr %args, align 8",
        *(f"  %q{k} = getelementptr inbounds i64, ptr %args, i64 {k}" for k in (1, 2, 3)),
        "  %to = load ptr, ptr %q1, align 8",
        "  %share = load i64, ptr %q2, align 8",
        "  %repeats = load i64, ptr %q3, align 8",
        "  %start = mul i64 %lo, %share",
        "  %stop = mul i64 %hi, %share",
        "  %some = icmp slt i64 %start, %stop",
        "  br i1 %some, label %again, label %out",
        "again:",
        "  %r = phi i64 [ 0, %entry ], [ %r1, %pass ]",
        "  br label %loop",
        "loop:",
        "  %at = phi i64 [ %start, %again ], [ %next, %loop ]",
    ]
    if kind == "read":
        lines += [f"  %s{k} = phi {v} [ zeroinitializer, %again ], [ %t{k}, %loop ]" for k in range(UNROLL)]
    for k in range(UNROLL):
        lines += [
            f"  %o{k} = add i64 %at, {k * width}",
            f"  %p{k} = getelementptr inbounds i8, ptr %from, i64 %o{k}",
            f"  %v{k} = load {v}, ptr %p{k}, align 64",
        ]
    for k in range(UNROLL):
        if kind == "read":
            lines.append(f"  %t{k} = xor {v} %s{k}, %v{k}")
        else:
            lines += [
                f"  %d{k} = getelementptr inbounds i8, ptr %to, i64 %o{k}",
                f"  store {v} %v{k}, ptr %d{k}, align 64{hint}",
            ]
    lines += [
        f"  %next = add i64 %at, {step}",
        "  %more = icmp slt i64 %next, %stop",
        "  br i1 %more, label %loop, label %pass",
        "pass:",
    ]
    if kind == "read":
        lines += [f"  store volatile {v} %t{k}, ptr %sink, align 8" for k in range(UNROLL)]
    lines += [
        "  %r1 = add i64 %r, 1",
        "  %on = icmp slt i64 %r1, %repeats",
        "  br i1 %on, label %again, label %out",
        "out:",
        "  ret void",
        "}",
    ]
    text = "\n".join(lines)
    return text.replace("entry:\n", f"entry:\n  %sink = alloca [{max(64, width)} x i8], align 64\n", 1)


_ENTRY = """
define void @NAME_one(ptr %args) {
  call void @NAME(ptr %args, i64 0, i64 ROUNDS)
  ret void
}
"""
_PARALLEL = """
define internal void @NAME_worker(ptr %args) {
  %thread = call i32 @omp_get_thread_num()
  %t = zext i32 %thread to i64
  %lo = mul i64 %t, ROUNDS
  %hi = add i64 %lo, ROUNDS
  call void @NAME(ptr %args, i64 %lo, i64 %hi)
  ret void
}

define void @NAME_all(ptr %args) {
  call void @GOMP_parallel(ptr @NAME_worker, ptr %args, i32 THREADS, i32 0)
  ret void
}
"""
_DECLARES = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
"""
FMA_ROUNDS = 200_000


@functools.cache
def ceilings_module(target: Target) -> str:
    """For each probe, ``<probe>_one(args)`` and, if the target has threads, ``<probe>_all(args)``.

    A thread does ``FMA_ROUNDS`` rounds of ``fma_float32`` or ``fma_float64``, or one share of ``read``,
    ``copy`` or ``nt_copy``.
    """
    parts: list[str] = []
    probes = [(f"fma_{d}", _fma(target, d), FMA_ROUNDS) for d in LLVM]
    probes += [(kind, _stream(target, kind), 1) for kind in STREAMS]
    for name, text, rounds in probes:
        parts.append(text)
        entry = _ENTRY + (_PARALLEL if target.threads > 1 else "")
        parts.append(entry.replace("NAME", name).replace("ROUNDS", str(rounds)).replace("THREADS", str(target.threads)))
    head = _DECLARES if target.threads > 1 else ""
    return "\n".join([head, *parts, "!0 = !{i32 1}", ""])
