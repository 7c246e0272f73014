"""Fault 31: tests say what they need, so that what times something runs by itself and the rest runs side by side."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from needs import durations
from tilewright.measure.timing import Clock
from tilewright.schedules.target import Target

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent


def starts(how: Callable[[], object]) -> None:
    """Do what needs a marker: in a test without it that is a failure."""
    with pytest.raises(pytest.fail.Exception, match=r"mark it with pytest\.mark\.workers"):
        how()


@pytest.mark.parametrize(
    "how",
    [
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: os.fork(),  # looked up when the test runs
        lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
        lambda: os.system("true"),
        lambda: os.popen("true"),
    ],
    ids=["subprocess", "multiprocessing", "fork", "posix_spawn", "system", "popen"],
)
def test_a_process_needs_a_marker(how: Callable[[], object]) -> None:
    """However it is started."""
    starts(how)


def test_timing_and_models_need_a_marker() -> None:
    """A sample of the clock; a look for the files of an installed package."""
    with pytest.raises(pytest.fail.Exception, match=r"mark it with pytest\.mark\.timing"):
        Clock.sample(None, None, "hot", 1)  # type: ignore[arg-type]
    with pytest.raises(pytest.fail.Exception, match=r"mark it with pytest\.mark\.models"):
        importlib.metadata.files("numpy")


@pytest.mark.workers
def test_with_the_marker_it_may() -> None:
    assert subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, check=True).stdout == b"7\n"


@pytest.mark.workers
def test_fixtures_are_watched_too(pytester: pytest.Pytester) -> None:
    """What a fixture of a whole module starts is the business of the test for which it is made."""
    pytester.makeini("[pytest]\nmarkers = workers: starts other processes\n")
    pytester.makeconftest("""
        import pytest
        from needs import told

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            with told(item):
                return (yield)
    """)
    pytester.makepyfile("""
        import subprocess, sys
        import pytest

        @pytest.fixture(scope="module")
        def child():
            return subprocess.run([sys.executable, "-c", ""]).returncode

        @pytest.mark.workers
        def test_marked():
            assert subprocess.run([sys.executable, "-c", ""]).returncode == 0

        def test_unmarked(child):
            assert child == 0
    """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*this test starts other processes: mark it with pytest.mark.workers*"])


def test_what_measures_a_duration_is_found() -> None:
    """A deadline is no duration: only a clock's time minus an earlier one is."""
    text = dedent("""
        import time
        import pytest

        def test_takes_long():
            start = time.perf_counter()
            assert time.perf_counter() - start < 1

        def test_in_nanoseconds():
            start = perf_counter_ns()
            print(perf_counter_ns() - start)

        @pytest.mark.timing
        def test_marked():
            start = time.thread_time()
            assert time.thread_time() - start < 1

        def test_waits():
            end = time.monotonic() + 5
            while time.monotonic() < end:
                pass
    """)
    assert durations(text) == ["test_takes_long", "test_in_nanoseconds"]
    assert durations(text + "\npytestmark = [pytest.mark.workers, pytest.mark.timing]\n") == []


@pytest.mark.parametrize("path", sorted(TESTS.glob("*.py")), ids=lambda p: p.stem)
def test_what_measures_a_duration_says_so(path: Path) -> None:
    """A neighbour that is busy makes no test fail: these run alone."""
    assert not durations(path.read_text(encoding="utf-8")), f"mark these with pytest.mark.timing: {path.name}"


@pytest.mark.workers
def test_children_have_the_host_of_the_tests() -> None:
    """Under ``--host-target`` every child has that host too, also one whose environment is written out."""
    program = "from tilewright.schedules.target import Target; print(Target.host().to_json())"
    source = os.pathsep.join(p for p in sys.path if p)
    for environment in (None, {"PATH": "", "PYTHONPATH": source}):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == Target.host().to_json()
