"""The thread pool: every iteration runs exactly once, whatever the sizes and whoever else calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from program import environment
from tilewright.schedules import jit
from tilewright.schedules.pool import LEAST, RUN, pool, region_cost_ns
from tilewright.schedules.target import Target

THREADS = 3
REGIONS = 20_000
SHARE = 10 * LEAST
"""Iterations of each thread in the region whose pieces are looked at."""

_TEXT = f"""
declare void @{RUN}_{THREADS}(ptr, ptr, i64)

define internal void @count(ptr %a, i64 %from, i64 %to, i64 %thread) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ %from, %entry ], [ %i1, %loop ]
  %p = getelementptr i64, ptr %a, i64 %i
  %v = load i64, ptr %p
  %v1 = add i64 %v, 1
  store i64 %v1, ptr %p
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %to
  br i1 %more, label %loop, label %out
out:
  ret void
}}

define internal void @size(ptr %a, i64 %from, i64 %to, i64 %thread) {{
entry:
  %n = sub i64 %to, %from
  br label %loop
loop:
  %i = phi i64 [ %from, %entry ], [ %i1, %loop ]
  %p = getelementptr i64, ptr %a, i64 %i
  store i64 %n, ptr %p
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %to
  br i1 %more, label %loop, label %out
out:
  ret void
}}

define void @sizes(ptr %a) {{
  call void @{RUN}_{THREADS}(ptr @size, ptr %a, i64 {THREADS * SHARE})
  ret void
}}

define void @go(ptr %a) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %w = urem i64 %i, 50
  %total = add i64 %w, 1
  call void @{RUN}_{THREADS}(ptr @count, ptr %a, i64 %total)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, {REGIONS}
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


@pytest.fixture(scope="module")
def code() -> jit.Code:
    """Regions of 1 to 50 iterations, one after the other; each iteration adds one to its own cell."""
    return jit.compile_text(_TEXT, Target.host(threads=THREADS))


def test_pieces_shrink_to_the_least_part_of_a_share(code: jit.Code) -> None:
    """Half of what is left each time, and no less than the least piece: few pieces, and threads that end close together."""
    cells = np.zeros(THREADS * SHARE, np.int64)
    code.function("sizes")(cells.ctypes.data)
    for share in cells.reshape(THREADS, SHARE):
        pieces = []
        at = 0
        while at < SHARE:
            pieces.append(int(share[at]))
            at += pieces[-1]
        left = SHARE
        for piece in pieces:
            assert piece == min(left, max((left + 1) // 2, SHARE // LEAST))
            left -= piece
        assert left == 0


def expected(runs: int) -> list[int]:
    """How often each cell is counted."""
    return [runs * REGIONS * (50 - i) // 50 if i < 50 else 0 for i in range(64)]


def test_each_iteration_runs_once(code: jit.Code) -> None:
    """More threads than cores, regions smaller than the team, many in a row."""
    cells = np.zeros(64, np.int64)
    go = code.function("go")
    for run in range(1, 4):
        go(cells.ctypes.data)
        assert cells.tolist() == expected(run)


def test_two_callers(code: jit.Code) -> None:
    """A caller that finds the pool busy runs its loop alone; both are right."""
    go = code.function("go")
    cells = [np.zeros(64, np.int64) for _ in range(2)]
    callers = [threading.Thread(target=go, args=(c.ctypes.data,)) for c in cells]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert [c.tolist() for c in cells] == [expected(1), expected(1)]


@pytest.mark.workers
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_after_fork(code: jit.Code) -> None:
    """A forked child has no worker threads, and is not held up by missing them."""
    go = code.function("go")
    child = os.fork()
    if child == 0:
        cells = np.zeros(64, np.int64)
        go(cells.ctypes.data)
        os._exit(0 if cells.tolist() == expected(1) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_region_cost_is_measured() -> None:
    """The cost of an empty region, as reports show it."""
    assert region_cost_ns(2, calls=200) > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity is Linux's")
def test_threads_of_the_pool_may_run_anywhere() -> None:
    """They are moved off their maker's core once, and not kept anywhere."""
    pool(2)
    ours = [t for t in threading.enumerate() if t.name.startswith("tilewright-")]
    assert ours
    everywhere = os.sched_getaffinity(0)
    for thread in ours:
        assert thread.native_id is not None
        for _ in range(200):  # it may be on its way
            if os.sched_getaffinity(thread.native_id) == everywhere:
                break
            time.sleep(0.01)
        assert os.sched_getaffinity(thread.native_id) == everywhere


_REFUSED = """
import gc, sys, threading
from tilewright.schedules import jit
from tilewright.schedules.pool import Pool
from tilewright.schedules.target import TargetError

start, started = threading.Thread.start, []

def few(thread):
    if len(started) == 3:
        raise RuntimeError("can't start new thread")
    started.append(thread)
    start(thread)

threading.Thread.start = few
for _ in range(4):
    try:
        Pool(8)
    except TargetError as error:
        assert "expected 8 to start; got 4" in str(error), error
    else:
        sys.exit("a pool of three")
    started.clear()
assert sum(t.is_alive() for t in threading.enumerate()) == 13
gc.collect()
held = sum(isinstance(o, jit.Code) for o in gc.get_objects())
assert held == 4, held
"""


@pytest.mark.workers
def test_threads_of_a_pool_that_is_refused_run_on() -> None:
    """Where the system has no room for all threads the call is refused, and those that did start keep the code that they run."""
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
