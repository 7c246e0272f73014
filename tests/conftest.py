"""What every test gets: golden programs, the verifier after every apply, and reproducible hypothesis runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from needs import told
from tilewright.graph.workload import Workload
from tilewright.schedules import kernel
from tilewright.schedules.apply import apply
from tilewright.schedules.nest import Program
from tilewright.schedules.steps import Schedule
from tilewright.schedules.verify import verify

GOLDEN = Path(__file__).parent / "golden"
OTHER_HOST = Path(__file__).parent / "other_host"

settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
settings.load_profile("reproducible")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` rewrites the expected programs, ``--host-target`` runs the tests as on another processor."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the files in tests/golden")
    parser.addoption(
        "--host-target", metavar="NAME", help="take the target of this name for the host, if it can run its code"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported: what the host is."""
    name = config.getoption("--host-target")
    if name:
        sys.path.insert(0, str(OTHER_HOST))
        from host_target import pretend

        pretend(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The smallest test runs first: if it fails, nothing else means anything."""
    items.sort(key=lambda item: item.path.name != "test_tiny.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test says what it needs."""
    with told(item):
        return (yield)


FIGURES: list[str] = []
"""What tests found worth telling; printed at the end of the run."""


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Tell a figure in the closing summary (how many cases passed, how large an error was)."""
    return FIGURES.append


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several hands its figures on."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The figures of a process that has ended."""
    FIGURES.extend(getattr(node, "workeroutput", {}).get("figures", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures."""
    if FIGURES:
        terminalreporter.section("figures")
        for text in FIGURES:
            terminalreporter.line(text)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with ``tests/golden/<test file>/<test name>.txt``."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    path = GOLDEN / request.path.stem / f"{name}.txt"
    update = bool(request.config.getoption("--update-golden"))

    def compare(text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path.relative_to(GOLDEN)} is missing; run pytest --update-golden and read what it writes")
        assert text == path.read_text(encoding="utf-8"), (
            "the program changed; if on purpose, run pytest --update-golden"
        )

    return compare


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program that a test builds obeys the rules of the loop language."""

    def apply_and_verify(workload: Workload, schedule: Schedule) -> Program:
        program = apply(workload, schedule)
        verify(program)
        return program

    monkeypatch.setattr(kernel, "apply", apply_and_verify)
