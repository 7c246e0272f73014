"""Injected faults: no candidate that crashes, hangs, lies or computes wrong numbers wins, or stops a run."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil
import pytest

from tilewright.graph.graph import Graph
from tilewright.graph.workload import Workload, canonical
from tilewright.measure import DeviceError, LocalRunner, Outcome, Policy
from tilewright.schedules.target import Target

pytestmark = pytest.mark.workers

TARGET = Target.host(threads=1)
QUICK = Policy(
    min_time_s=0.0,
    max_time_s=0.02,
    min_samples=6,
    max_samples=20,
    cutoff=None,
    build_timeout_s=1.5,
    run_timeout_s=1.5,
)
LONG = 60.0


FAULTY = "test_measure_faulty_worker"


def matmul(m: int, n: int, k: int) -> Workload:
    g = Graph()
    a, b = g.input("a", (m, k)), g.input("b", (k, n))
    c = g.compute((m, n), lambda i, j, r: a[i, r] * b[r, j], reduce=(k,), reducer="sum")
    return canonical(g.nodes, c.name, g.types, ())[0]


W = matmul(24, 32, 16)


def fault(stage: str, kind: str) -> str:
    return f"# fault: {stage} {kind}\n"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[LocalRunner]:
    with LocalRunner(TARGET, QUICK, lock_file=tmp_path / "lock", worker_module=FAULTY) as runner:
        yield runner


def measure(runner: LocalRunner, *schedules: str) -> list[Outcome]:
    return list(runner.measure(runner.request(W.text, s) for s in schedules))


# ---------------------------------------------------------------- one candidate fails, the run goes on


FAULTS = [
    ("build", "segfault", "crash", "while building: the worker ended .killed by SIGSEGV"),
    ("build", "hang", "compile_timeout", "no answer within 1.5 s"),
    ("build", "raise", "crash", "(?s)while building: the worker ended .exit code 1.*KeyError: 'a bug"),
    ("build", "wrong code", "wrong_result", "integers inputs: [0-9]+ of 768 elements are wrong"),
    ("check", "abort", "crash", "while checking: the worker ended .killed by SIGABRT"),
    ("check", "exit", "crash", "while checking: the worker ended .exit code 3"),
    ("check", "hang with children", "run_timeout", "while checking: no answer within 1.5 s"),
    ("check", "garbage", "crash", "while checking: the worker answered nonsense"),
    ("check", "no status", "crash", "while checking: the worker answered nonsense: expected a status"),
    ("check", "memory", "crash", "while checking: out of memory .*no room"),
    ("time", "segfault", "crash", "while timing: the worker ended .killed by SIGSEGV"),
    ("time", "hang", "run_timeout", "while timing: no answer within"),
]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run with every fault in it and one good candidate at its end."""

    outcomes: list[Outcome]
    best: float | None
    children: int
    """Processes alive at its end, before the runner was closed."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    lock = tmp_path_factory.mktemp("faults") / "lock"
    with LocalRunner(TARGET, QUICK, lock_file=lock, worker_module=FAULTY) as runner:
        outcomes = measure(runner, *(fault(stage, kind) for stage, kind, *_ in FAULTS), "# good\n")
        return Run(outcomes, runner.best(W.hash), len(psutil.Process().children(recursive=True)))


@pytest.mark.parametrize("index", range(len(FAULTS)), ids=[f"{f[0]} {f[1]}" for f in FAULTS])
def test_a_fault_is_an_outcome(run: Run, index: int) -> None:
    outcome, (_, _, status, error) = run.outcomes[index], FAULTS[index]
    assert outcome.status == status
    assert outcome.median_ns is None
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(outcome.error)


def test_faults_do_not_stop_a_run_and_never_win(run: Run) -> None:
    assert len(run.outcomes) == len(FAULTS) + 1
    assert run.outcomes[-1].ok
    assert run.best == run.outcomes[-1].median_ns
    assert run.children == 1  # the worker in use; none that hung is left, nor what it had started


def worker_pid(runner: LocalRunner) -> int:
    process = runner._pool.slots[0].process
    assert process is not None
    return process.pid


def test_a_crash_in_a_used_worker_is_tried_once_more(runner: LocalRunner) -> None:
    # the candidate is good; the worker was damaged by the one before
    outcomes = measure(runner, "# good\n", fault("check", "damaged worker"))
    assert [o.status for o in outcomes] == ["ok", "ok"]
    # a bad one is bad in a fresh worker too
    assert measure(runner, fault("check", "segfault"))[0].status == "crash"


def test_the_same_failure_is_not_measured_twice(runner: LocalRunner) -> None:
    outcomes = measure(runner, fault("check", "exit"), fault("check", "exit"))
    assert [o.status for o in outcomes] == ["crash", "duplicate"]
    assert "exit code 3" in str(outcomes[1].error)


def test_faults_among_candidates_built_side_by_side(tmp_path: Path) -> None:
    schedules = [
        "# 1\n", fault("build", "segfault"), "# 2\n", fault("check", "exit"),
        fault("build", "hang"), "# 3\n", fault("build", "wrong code"), "# 4\n",
    ]  # fmt: skip
    with LocalRunner(TARGET, QUICK, 2, lock_file=tmp_path / "lock", worker_module=FAULTY) as runner:
        statuses = [o.status for o in measure(runner, *schedules)]
    assert statuses == ["ok", "crash", "ok", "crash", "compile_timeout", "ok", "wrong_result", "ok"]


def test_faults_in_a_contest(runner: LocalRunner) -> None:
    """Contestants that fail have their outcome; the others compete, in a fresh worker where one was lost."""
    texts = ["# 1\n", fault("check", "segfault"), "# 2\n", fault("build", "segfault"), fault("check", "exit"), "# 3\n"]
    outcomes = runner.contest([runner.request(W.text, t) for t in texts], rounds=6)
    assert [o.status for o in outcomes] == ["ok", "crash", "ok", "crash", "crash", "ok"]
    assert [o.stop_reason for o in outcomes if o.ok] == ["rounds"] * 3
    # what happens while timing is nobody's: each is measured by itself
    texts = ["# 4\n", fault("time", "segfault"), "# 5\n"]
    outcomes = runner.contest([runner.request(W.text, t) for t in texts], rounds=6)
    assert [o.ok for o in outcomes][::2] == [True, True]


@pytest.mark.timing
def test_limits_adapt_to_what_is_seen(runner: LocalRunner) -> None:
    patient = dataclasses.replace(QUICK, run_timeout_s=LONG, build_timeout_s=LONG)
    runner.policy = patient
    measure(runner, *(f"# {k}\n" for k in range(4)))
    start = time.monotonic()
    assert measure(runner, fault("check", "hang"))[0].status == "run_timeout"
    assert time.monotonic() - start < LONG / 2


# ---------------------------------------------------------------- the run itself ends


def test_an_interrupt_kills_the_workers_and_is_raised(runner: LocalRunner) -> None:
    measure(runner, "# good\n")
    pid = worker_pid(runner)
    runner.policy = dataclasses.replace(QUICK, run_timeout_s=LONG)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            measure(runner, fault("check", "hang"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not psutil.pid_exists(pid)
    assert measure(runner, "# still usable\n")[0].ok


def test_a_worker_dies_with_its_parent() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from tempfile import mkdtemp
from test_measure_faults import FAULTY, LONG, QUICK, TARGET, W, fault
from tilewright.measure import LocalRunner
from dataclasses import replace
policy = replace(QUICK, run_timeout_s=LONG)
runner = LocalRunner(TARGET, policy, lock_file=Path(mkdtemp()) / "lock", worker_module=FAULTY)
runner.preflight()
print(runner._pool.slots[0].process.pid, flush=True)
runner.measure_one(runner.request(W.text, fault("check", "hang")))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    time.sleep(0.3)  # it hangs by now
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10
    while _running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _running(pid)


def _running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_nothing_is_left_open(tmp_path: Path) -> None:
    process = psutil.Process()
    before = process.num_fds()
    for kind in ("exit", "hang"):
        with LocalRunner(TARGET, QUICK, lock_file=tmp_path / "lock", worker_module=FAULTY) as runner:
            measure(runner, "# good\n", fault("check", kind))
    assert process.num_fds() <= before
    assert process.children() == []


# ---------------------------------------------------------------- the device is broken


def test_a_worker_that_cannot_start_is_the_device_s_fault(tmp_path: Path) -> None:
    with (
        LocalRunner(TARGET, QUICK, lock_file=tmp_path / "lock", worker_module="no_such_module") as runner,
        pytest.raises(DeviceError, match=r"(?s)exit code 1.*No module named 'no_such_module'"),
    ):
        runner.preflight()


def test_preflight_says_why_a_device_cannot_measure(tmp_path: Path) -> None:
    broken = dataclasses.replace(TARGET, triple="avr-unknown-none", name="broken")
    with (
        LocalRunner(broken, QUICK, lock_file=tmp_path / "lock") as runner,
        pytest.raises(DeviceError, match="expected a known-good kernel to be measured; got "),
    ):
        runner.preflight()
