"""The threads that run parallel loops: a small work-claiming pool, generated as LLVM IR like everything else.

Why not OpenMP's: its regions end at a barrier that *every* thread must reach, so one thread that the system has put aside holds up
all (a scheduling quantum of several milliseconds for a kernel of 20 microseconds, whenever another program wants a core). Here a
region ends when all of its *iterations* are done. Each thread claims pieces of its own share first (so that it finds its part of the
data in its cache again in the next kernel), large ones before small ones, then of the others'; a thread that does not come is not
missed, not even after a fork.

Threads that wait spin for some ten microseconds and then sleep on a futex. Their stacks belong to Python daemon threads; they never
touch the interpreter. A caller that finds the pool busy (another thread is inside a region) runs its loop alone.

Layout of the pool in memory, in 64-byte lines: 0 epoch; 1 body, args; 2 iterations done; 3 busy, sleepers; 4 + t: next and limit of
thread t's share, and its least piece. ``next`` and ``limit`` carry the epoch in their upper half, so that a claim made late is
recognised.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import threading
import time
from typing import Any

import numpy as np

from tilewright.schedules import jit
from tilewright.schedules.target import Target, TargetError

RUN = "tw_parallel"
"""``void tw_parallel_N(ptr body, ptr args, i64 total)`` runs ``body``, a ``void (ptr args, i64 from, i64 to, i64 thread)``, over
``total`` iterations on up to N threads."""
LINE = 64
SPINS = 4000
LEAST = 32
"""A piece is half of what is left of a share, but no less than this part of the whole share: the first pieces are large, so that
there are few, and the last ones small, so that a thread on a core that others use too does not keep the rest waiting. With an
eighth the threads ended 6 % apart in a product of 11 ms; smaller parts than this cost small kernels nothing and gain no more."""

_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98}
_PAUSE = {
    "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "AMD64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
}


def _wait_and_wake() -> tuple[str, str]:
    """LLVM IR that sleeps while the epoch is ``%seen``, and that wakes all sleepers."""
    number = _FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:  # no futex: look again every 50 microseconds
        return "call i32 @usleep(i32 50)", ""
    call = f"call i64 (i64, ...) @syscall(i64 {number}, ptr @pool"
    wait = f"%s32 = trunc i64 %seen to i32\n  {call}, i64 128, i32 %s32, ptr null)"
    return wait, f"{call}, i64 129, i32 2147483647, ptr null)"


def module_text(threads: int) -> str:
    """The pool for ``threads`` threads: ``tw_parallel`` and ``tw_worker(i64 thread)``, which never returns."""
    wait, wake = _wait_and_wake()
    pause, declare_pause = _PAUSE.get(platform.machine(), ("", ""))
    return f"""
@pool = internal global [{(4 + threads) * LINE} x i8] zeroinitializer, align {LINE}
declare i64 @syscall(i64, ...)
declare i32 @usleep(i32)
declare i32 @sched_yield()
{declare_pause}

define internal void @claim(i64 %me) {{
entry:
  br label %shares
shares:
  %k = phi i64 [ 0, %entry ], [ %k1, %exhausted ]
  %sum = add i64 %me, %k
  %share = urem i64 %sum, {threads}
  %line = add i64 %share, 4
  %off = mul i64 %line, {LINE}
  %next = getelementptr i8, ptr @pool, i64 %off
  %limitp = getelementptr i8, ptr %next, i64 8
  %leastp = getelementptr i8, ptr %next, i64 16
  br label %take
take:
  %c = load atomic i64, ptr %next acquire, align 8
  %limit = load atomic i64, ptr %limitp acquire, align 8
  %ce = lshr i64 %c, 32
  %le = lshr i64 %limit, 32
  %same = icmp eq i64 %ce, %le
  %from = and i64 %c, 4294967295
  %end = and i64 %limit, 4294967295
  %inside = icmp ult i64 %from, %end
  %go = and i1 %same, %inside
  br i1 %go, label %claim, label %exhausted
claim:
  %least = load atomic i64, ptr %leastp monotonic, align 8
  %left = sub i64 %end, %from
  %up = add i64 %left, 1
  %half = lshr i64 %up, 1
  %most = call i64 @llvm.umax.i64(i64 %half, i64 %least)
  %piece = call i64 @llvm.umin.i64(i64 %most, i64 %left)
  %c1 = add i64 %c, %piece
  %pair = cmpxchg ptr %next, i64 %c, i64 %c1 acq_rel monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %run, label %take
run:
  %to = add i64 %from, %piece
  %bodyp = getelementptr i8, ptr @pool, i64 {LINE}
  %body = load ptr, ptr %bodyp, align 8
  %argsp = getelementptr i8, ptr @pool, i64 {LINE + 8}
  %args = load ptr, ptr %argsp, align 8
  call void %body(ptr %args, i64 %from, i64 %to, i64 %me)
  %donep = getelementptr i8, ptr @pool, i64 {2 * LINE}
  %old = atomicrmw add ptr %donep, i64 %piece acq_rel, align 8
  br label %take
exhausted:
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, {threads}
  br i1 %more, label %shares, label %out
out:
  ret void
}}
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)

define void @{RUN}_{threads}(ptr %body, ptr %args, i64 %total) {{
entry:
  %busyp = getelementptr i8, ptr @pool, i64 {3 * LINE}
  %pair = cmpxchg ptr %busyp, i64 0, i64 1 acq_rel monotonic, align 8
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %open, label %alone
alone:
  call void %body(ptr %args, i64 0, i64 %total, i64 0)
  ret void
open:
  %e0 = load atomic i64, ptr @pool monotonic, align 8
  %e1 = add i64 %e0, 1
  %e = and i64 %e1, 2147483647
  %high = shl i64 %e, 32
  %bodyp = getelementptr i8, ptr @pool, i64 {LINE}
  store ptr %body, ptr %bodyp, align 8
  %argsp = getelementptr i8, ptr @pool, i64 {LINE + 8}
  store ptr %args, ptr %argsp, align 8
  %donep = getelementptr i8, ptr @pool, i64 {2 * LINE}
  store atomic i64 0, ptr %donep monotonic, align 8
  br label %share
share:
  %t = phi i64 [ 0, %open ], [ %t1, %share ]
  %t1 = add i64 %t, 1
  %a = mul i64 %t, %total
  %from = udiv i64 %a, {threads}
  %b = mul i64 %t1, %total
  %to = udiv i64 %b, {threads}
  %width = sub i64 %to, %from
  %least = udiv i64 %width, {LEAST}
  %line = add i64 %t, 4
  %off = mul i64 %line, {LINE}
  %next = getelementptr i8, ptr @pool, i64 %off
  %limitp = getelementptr i8, ptr %next, i64 8
  %leastp = getelementptr i8, ptr %next, i64 16
  %limit = or i64 %high, %to
  %first = or i64 %high, %from
  store atomic i64 %least, ptr %leastp monotonic, align 8
  store atomic i64 %limit, ptr %limitp release, align 8
  store atomic i64 %first, ptr %next release, align 8
  %again = icmp ult i64 %t1, {threads}
  br i1 %again, label %share, label %start
start:
  store atomic i64 %e, ptr @pool seq_cst, align 8
  %sleepp = getelementptr i8, ptr @pool, i64 {3 * LINE + 8}
  %sleepers = load atomic i64, ptr %sleepp seq_cst, align 8
  %asleep = icmp ne i64 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake:
  {wake}
  br label %work
work:
  call void @claim(i64 0)
  br label %join
join:
  %spin = phi i64 [ 0, %work ], [ %spin1, %still ], [ 0, %yield ]
  %done = load atomic i64, ptr %donep acquire, align 8
  %all = icmp eq i64 %done, %total
  br i1 %all, label %close, label %wait
wait:
  {pause}
  %spin1 = add i64 %spin, 1
  %long = icmp ugt i64 %spin1, {SPINS}
  br i1 %long, label %yield, label %still
still:
  br label %join
yield:
  %y = call i32 @sched_yield()
  br label %join
close:
  store atomic i64 0, ptr %busyp release, align 8
  ret void
}}

define void @tw_worker(i64 %me) {{
entry:
  %sleepp = getelementptr i8, ptr @pool, i64 {3 * LINE + 8}
  br label %look
look:
  %seen = phi i64 [ 0, %entry ], [ %now, %region ], [ %seen, %again ], [ %seen, %sleep ]
  %spin = phi i64 [ 0, %entry ], [ 0, %region ], [ %spin1, %again ], [ 0, %sleep ]
  %now = load atomic i64, ptr @pool acquire, align 8
  %new = icmp ne i64 %now, %seen
  br i1 %new, label %region, label %idle
region:
  call void @claim(i64 %me)
  br label %look
idle:
  {pause}
  %spin1 = add i64 %spin, 1
  %long = icmp ugt i64 %spin1, {SPINS}
  br i1 %long, label %sleep, label %again
again:
  br label %look
sleep:
  %x = atomicrmw add ptr %sleepp, i64 1 seq_cst, align 8
  {wait}
  %z = atomicrmw sub ptr %sleepp, i64 1 seq_cst, align 8
  br label %look
}}
"""


class Pool:
    """The threads of this process for kernels of one thread count. They start when the pool is made and sleep while unused.

    Raises TargetError if the system refuses to start so many.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._code = jit.compile_plain(module_text(threads), Target.host())
        self.address = self._code.address(f"{RUN}_{threads}")
        """Address of ``tw_parallel``."""
        worker = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.address("tw_worker"))
        cores = _cores_from_here()
        for k in range(1, threads):
            core = cores[k % len(cores)] if cores else None
            try:
                threading.Thread(
                    target=_begin, args=(worker, self._code, k, core), name=f"tilewright-{k}", daemon=True
                ).start()
            except (RuntimeError, MemoryError) as error:
                raise TargetError(
                    f"threads: expected {threads} to start; got {k} ({error}): the system has no room for more (see ulimit -u and "
                    "ulimit -v); give fewer threads"
                ) from error


def _cores_from_here() -> list[int]:
    """The cores this process may use, beginning with the one it is on; empty where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return []
    usable = sorted(os.sched_getaffinity(0))
    here = ctypes.CDLL(None).sched_getcpu()
    first = usable.index(here) if here in usable else 0
    return usable[first:] + usable[:first]


def _begin(worker: Any, code: object, k: int, core: int | None) -> None:
    """A new thread begins on the core of its maker, and on a busy machine the system may leave both there for a tenth of
    a second of running, which is longer than a candidate is timed. So it is moved once, and free to go from there. It holds the
    ``code`` that it runs: where a later thread does not start there is no pool, but this thread runs on."""
    if core is not None:
        with contextlib.suppress(OSError):
            usable = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {core})
            os.sched_setaffinity(0, usable)
    worker(k)


_pools: dict[int, Pool] = {}
_making = threading.Lock()


def pool(threads: int) -> Pool:
    """The pool of this process for ``threads`` threads; made once and kept for ever, as its threads never end. Raises TargetError
    if the system does not give as many threads."""
    with _making:
        return _pools.get(threads) or _pools.setdefault(threads, Pool(threads))


def region_cost_ns(threads: int, calls: int = 2000) -> float:
    """Median nanoseconds of an empty region."""
    text = f"""
declare void @{RUN}_{threads}(ptr, ptr, i64)
define internal void @nothing(ptr %a, i64 %f, i64 %t, i64 %k) {{
  ret void
}}
define void @once(ptr %a) {{
  call void @{RUN}_{threads}(ptr @nothing, ptr null, i64 {threads})
  ret void
}}
"""
    code: Any = jit.compile_text(text, Target.host(threads))
    run = code.function("once")
    samples = []
    for _ in range(calls):
        before = time.perf_counter_ns()
        run(0)
        samples.append(time.perf_counter_ns() - before)
    return float(np.median(samples))
