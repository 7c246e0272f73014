"""LLVM IR of the timing loops: nothing but the kernel and the clock is inside the timed region."""

from __future__ import annotations

import functools
import time

from tilewright.schedules.target import Target

_COMMON = f"""
declare i32 @clock_gettime(i32, ptr)

define internal i64 @tw_now() noinline {{
  %stamp = alloca [2 x i64], align 8
  %unused = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %stamp)
  %seconds = load i64, ptr %stamp, align 8
  %next = getelementptr inbounds i64, ptr %stamp, i64 1
  %rest = load i64, ptr %next, align 8
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %rest
  ret i64 %now
}}

define i64 @time_loop(ptr %fn, ptr %args, i64 %calls) {{
entry:
  %start = call i64 @tw_now()
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %following, %loop ]
  call void %fn(ptr %args)
  %following = add i64 %k, 1
  %more = icmp slt i64 %following, %calls
  br i1 %more, label %loop, label %done
done:
  %stop = call i64 @tw_now()
  %taken = sub i64 %stop, %start
  ret i64 %taken
}}

define i64 @time_rotating(ptr %fn, ptr %table, i64 %copies, i64 %first, i64 %calls) {{
entry:
  %start = call i64 @tw_now()
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %following, %loop ]
  %turn = phi i64 [ %first, %entry ], [ %wrapped, %loop ]
  %slot = getelementptr inbounds ptr, ptr %table, i64 %turn
  %args = load ptr, ptr %slot, align 8
  call void %fn(ptr %args)
  %next = add i64 %turn, 1
  %last = icmp eq i64 %next, %copies
  %wrapped = select i1 %last, i64 0, i64 %next
  %following = add i64 %k, 1
  %more = icmp slt i64 %following, %calls
  br i1 %more, label %loop, label %done
done:
  %stop = call i64 @tw_now()
  %taken = sub i64 %stop, %start
  ret i64 %taken
}}

define i64 @time_cold(ptr %fn, ptr %args, i64 %calls, ptr %flush) {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %following, %loop ]
  %total = phi i64 [ 0, %entry ], [ %sum, %loop ]
  call void @flush(ptr %flush)
  %start = call i64 @tw_now()
  call void %fn(ptr %args)
  %stop = call i64 @tw_now()
  %taken = sub i64 %stop, %start
  %sum = add i64 %total, %taken
  %following = add i64 %k, 1
  %more = icmp slt i64 %following, %calls
  br i1 %more, label %loop, label %done
done:
  ret i64 %sum
}}

define void @nothing(ptr %args) {{
  ret void
}}

; read one word of every line of bytes lo to hi: args = address, size, so that it serves as a kernel too
define internal void @tw_touch(ptr %base, i64 %lo, i64 %hi) noinline {{
entry:
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %loop, label %done
loop:
  %at = phi i64 [ %lo, %entry ], [ %following, %loop ]
  %address = getelementptr inbounds i8, ptr %base, i64 %at
  %unused = load volatile i64, ptr %address, align 8
  %following = add i64 %at, LINE
  %more = icmp slt i64 %following, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define void @sweep(ptr %args) {{
  %base = load ptr, ptr %args, align 8
  %at = getelementptr inbounds i64, ptr %args, i64 1
  %size = load i64, ptr %at, align 8
  call void @tw_touch(ptr %base, i64 0, i64 %size)
  ret void
}}
"""

_FLUSH_ONE = """
define void @flush(ptr %args) {
  call void @sweep(ptr %args)
  ret void
}
"""

# Every thread reads its share of the buffer, so that the private caches of all cores are emptied.
_FLUSH_ALL = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define internal void @tw_flush_share(ptr %args) {
  %base = load ptr, ptr %args, align 8
  %at = getelementptr inbounds i64, ptr %args, i64 1
  %size = load i64, ptr %at, align 8
  %thread = call i32 @omp_get_thread_num()
  %team = call i32 @omp_get_num_threads()
  %t = zext i32 %thread to i64
  %n = zext i32 %team to i64
  %share = udiv i64 %size, %n
  %lines = and i64 %share, -4096
  %lo = mul i64 %t, %lines
  %hi = add i64 %lo, %lines
  call void @tw_touch(ptr %base, i64 %lo, i64 %hi)
  ret void
}

define void @flush(ptr %args) {
  call void @GOMP_parallel(ptr @tw_flush_share, ptr %args, i32 THREADS, i32 0)
  ret void
}
"""


@functools.cache
def loops(target: Target) -> str:
    """The module of the timing loops.

    ``time_loop(fn, args, calls)``, ``time_rotating(fn, table, copies, first, calls)`` and ``time_cold(fn,
    args, calls, flush)`` return nanoseconds; ``flush`` and ``sweep`` take ``{address, size in bytes}``.
    """
    flush = _FLUSH_ALL.replace("THREADS", str(target.threads)) if target.threads > 1 else _FLUSH_ONE
    return _COMMON.replace("LINE", str(target.line_bytes)) + flush
