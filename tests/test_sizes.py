"""Fault 25: sizes that cannot be are refused before any work, with the limit's name: memory, addresses, threads, numbers."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright
from program import limited, run
from test_cli import call, refused, tiny
from tilewright.graph import ops
from tilewright.graph.dtypes import GraphError
from tilewright.graph.stage import LARGEST_BYTES, MOST_POINTS, TensorType
from tilewright.measure import memory
from tilewright.measure.memory import MemoryLimit
from tilewright.schedules.target import MOST_THREADS, Target, TargetError
from tilewright.search_space.strategy import LARGEST_SEED, SearchConfig

pytestmark = pytest.mark.workers

HUGE = 99_999_999_999
TARGET = Target.host(threads=1)


def doubled(*shape: int) -> tilewright.Graph:
    graph = tilewright.Graph()
    graph.output(graph.input("x", shape) * 2.0, "y")
    return graph


@pytest.mark.timing
@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (f"{HUGE},8", "memory"),  # fits no machine
        (f"{HUGE}000,8", "process can address"),
        ("999999999999999999,8", "process can address"),  # its bytes overflow 64 bits
        ("9" * 30 + ",8", "expected NAME=SIZE"),
        ("9" * 5000 + ",8", "expected NAME=SIZE"),
    ],
)
def test_shapes_larger_than_any_memory(tmp_path: Path, sizes: str, text: str) -> None:
    """``compile``, ``tune``, ``run``: at once, and nothing is written."""
    model = tiny(tmp_path / "m.onnx")
    start = time.monotonic()
    for line in (["compile", model, "-o", tmp_path / "m.tw"], ["run", model], ["bench", model]):
        refused(call(*line, "--shape", f"x={sizes}", "--store", tmp_path / "none"), 2, text)
    refused(call("tune", model, "--shape", f"x={sizes}", "--store", tmp_path / "r.sqlite"), 2, text)
    assert time.monotonic() - start < 20
    assert not (tmp_path / "m.tw").exists()


def test_shapes_larger_than_any_memory_in_python() -> None:
    """ModelError before any work where this machine is the target; GraphError for what no process can address."""
    with pytest.raises(
        tilewright.ModelError, match=rf"needs 51\.2 TB of memory .*input x of {HUGE}x64.*more than it may have"
    ):
        tilewright.compile(doubled(HUGE, 64))
    with tilewright.Store(":memory:") as store, pytest.raises(tilewright.ModelError, match="of memory"):
        tilewright.tune(doubled(HUGE, 64), TARGET, store, tilewright.Budget(trials=1))
    for shape in ((1 << 62, 4), (1 << 20, 1 << 20, 1 << 20), (LARGEST_BYTES // 4 + 1,)):
        with pytest.raises(GraphError, match=rf"expected at most {LARGEST_BYTES} bytes"):
            doubled(*shape)
    assert TensorType((LARGEST_BYTES // 4,), "float32").nbytes == LARGEST_BYTES


def test_products_of_sizes_that_overflow() -> None:
    """Extents of a stage multiply without a tensor as large: more points than are counted exactly are refused."""
    graph = tilewright.Graph()
    x = graph.input("x", (4,))
    for extents in ((1 << 40, 1 << 40), (MOST_POINTS,)):
        with pytest.raises(GraphError, match=rf"expected at most {MOST_POINTS} points"):
            graph.compute((4,), lambda i, *_: x[i], reduce=extents, reducer="sum")
    a, b = graph.input("a", (1 << 20, 1 << 20)), graph.input("b", (1 << 20, 1 << 20))
    with pytest.raises(GraphError, match="points"):
        ops.matmul(a, b)


def test_a_compiled_model_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between the kernels counts too, and it is refused before it is allocated."""
    graph = tilewright.Graph()
    x = graph.input("x", (512, 512))
    graph.output(ops.softmax(ops.matmul(ops.softmax(ops.matmul(x, x)), x)), "y")
    compiled = tilewright.api.compile_for(graph, TARGET)
    assert tilewright.Executable(compiled).compiled is compiled
    inputs_and_outputs = 2 * 512 * 512 * 4
    monkeypatch.setattr(memory, "memory_limit", lambda: MemoryLimit(inputs_and_outputs + 1000, "a test"))
    with pytest.raises(
        tilewright.ModelError, match=r"between the kernels.*more than it may have here: 2\.1 MB \(a test\)"
    ):
        tilewright.Executable(compiled)
    with pytest.raises(tilewright.ModelError, match=r"input x of 513x512"):
        tilewright.compile(doubled(513, 512), TARGET)


def test_a_kernel_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs and outputs with a large tensor between them: refused before any kernel is built, by ``compile`` and ``tune``."""
    graph = tilewright.Graph()
    x, a, b = graph.input("x", (512, 4)), graph.input("a", (4, 100_000)), graph.input("b", (100_000, 4))
    graph.output(ops.matmul(ops.matmul(x, a), b), "y")
    monkeypatch.setattr(memory, "memory_limit", lambda: MemoryLimit(100_000_000, "a test"))
    monkeypatch.setattr("tilewright.compiler.build", None)
    with pytest.raises(tilewright.ModelError, match=r"needs 206 MB of memory \(206 MB for kernel .*a test"):
        tilewright.compile(graph, TARGET)
    with tilewright.Store(":memory:") as store, pytest.raises(tilewright.ModelError, match="for kernel"):
        tilewright.tune(graph, TARGET, store, tilewright.Budget(trials=1))


def test_other_machines_are_not_judged_by_this_ones_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: MemoryLimit(10, "a test"))
    compiled = tilewright.api.compile_for(doubled(1000, 64), Target.load("x86-64-v3"))
    assert compiled.inputs[0].shape == (1000, 64)


def test_ulimit_is_a_limit_that_is_named(tmp_path: Path) -> None:
    """Below what the model needs it is refused by name; above, it runs."""
    model, gigabytes = tiny(tmp_path / "m.onnx"), limited(resource.RLIMIT_AS, 3_000_000_000)
    line = ("run", model, "--threads", "1", "--store", tmp_path / "none")
    done = run(*line, "--shape", "x=40000000,8", preexec_fn=gigabytes)
    assert done.returncode == 2
    assert "needs 3.84 GB of memory" in done.stderr
    assert "ulimit -v" in done.stderr
    assert run(*line, "--shape", "x=4,8", preexec_fn=gigabytes).returncode == 0


def test_the_limits_of_control_groups(tmp_path: Path) -> None:
    """Both versions, own group and outer ones; ``max`` and absent files are no limits."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n", encoding="ascii")
    (tmp_path / "a" / "memory.max").write_text("5000\n", encoding="ascii")
    old = tmp_path / "memory" / "c"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("7000\n", encoding="ascii")
    own = tmp_path / "own"
    own.write_text("5:cpu,memory:/c\n4:pids:/x\n0::/a/b\n", encoding="ascii")
    assert sorted(limit.nbytes for limit in memory._group_limits(tmp_path, own)) == [5000, 7000]
    assert list(memory._group_limits(tmp_path, tmp_path / "none")) == []
    limit = memory.memory_limit()
    assert limit.nbytes > 1e8
    assert memory.shortage({"a": limit.nbytes // 2}) is None
    assert 0 < memory.worker_bytes() < 1e15


@pytest.mark.parametrize("command", ["tune", "compile", "run", "bench", "best", "device"])
def test_more_threads_than_there_may_be(tmp_path: Path, command: str) -> None:
    """The bound is in the message of every command."""
    model = [] if command == "device" else [tiny(tmp_path / "m.onnx"), "--store", tmp_path / "none"]
    output = ["-o", tmp_path / "m.tw"] if command == "compile" else []
    refused(call(command, *model, *output, "--threads", "1000000"), 2, f"1<=x<={MOST_THREADS}")
    assert not (tmp_path / "m.tw").exists()


def test_more_threads_than_there_may_be_in_python(tmp_path: Path) -> None:
    """TargetError from the target; the most that may be works, or says that the system has no room."""
    with pytest.raises(
        TargetError, match=rf"threads of target 'host': expected an integer of at most {MOST_THREADS}; got 1000000"
    ):
        Target.host(threads=1_000_000)
    with pytest.raises(TargetError, match="expected an integer of at most"):
        TARGET.with_threads(1 << 70)
    assert TARGET.with_threads(MOST_THREADS).threads == MOST_THREADS
    line = (
        "run",
        tiny(tmp_path / "m.onnx"),
        "--shape",
        "x=40000,8",
        "--store",
        tmp_path / "none",
        "--threads",
        MOST_THREADS,
    )
    done = run(*line, preexec_fn=limited(resource.RLIMIT_AS, 4_000_000_000))
    assert done.returncode == 2
    assert f"expected {MOST_THREADS} to start" in done.stderr
    assert "give fewer threads" in done.stderr


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """Budgets, seeds and shares: not a number, infinite, too large, of another type."""
    model = tiny(tmp_path / "m.onnx")
    for option, value in (
        *(("--time", v) for v in ("0", "-1", "nan", "inf", "1e400", "", "s", "5x")),
        *(("--trials", v) for v in ("0", "-1", "1.5", "nan")),
        *(("--seed", v) for v in ("-1", "nan", str(LARGEST_SEED + 1), "9" * 30)),
        *(("--max-noise", v) for v in ("0", "-1", "nan", "inf", "1e400", "x")),
        *(("--threads", v) for v in ("0", "-1", "1.5", "nan")),
    ):
        refused(call("tune", model, "--shape", "x=4,8", "--store", tmp_path / "r", option, value), 2, option)
    assert not (tmp_path / "r").exists()
    nan = float("nan")
    for arguments in ({"seconds": nan}, {"seconds": 0}, {"trials": 0}, {"trials": 1.5}, {"trials": True}):
        with pytest.raises(ValueError, match="budget"):
            tilewright.Budget(**arguments)
    for seed in (-1, LARGEST_SEED + 1, 1.0, True):
        with pytest.raises(ValueError, match="seed: expected an integer from 0"):
            SearchConfig(seed=seed)  # type: ignore[arg-type]
    with tilewright.Store(":memory:") as store, pytest.raises(ValueError, match="max_noise"):
        tilewright.tune(doubled(4, 4), TARGET, store, max_noise=nan)
    assert np.isfinite(SearchConfig(seed=LARGEST_SEED).seed)
