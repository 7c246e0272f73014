"""What a test needs, as markers: a test that starts processes, times something or loads models of other packages says so, and one that
does without saying so fails, also if it does it in a fixture.

- ``workers``: starts other processes.
- ``timing``: times something, so nothing else may run beside it.
- ``models``: loads models of installed packages.
- ``slow``: many examples of one thing, or large ones (nothing watches this one).

:func:`told` watches a test while it runs; :func:`durations` finds, in the text of a module, the tests that measure a duration.
"""

from __future__ import annotations

import ast
import importlib.metadata
import multiprocessing.process
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tilewright.measure.timing import Clock

MARKERS: Final = {
    "workers": "starts other processes",
    "timing": "times something, so nothing else may run beside it",
    "models": "loads models of installed packages",
}
WATCHED: Final[tuple[tuple[Any, str, str], ...]] = (
    (subprocess.Popen, "__init__", "workers"),
    (multiprocessing.process.BaseProcess, "start", "workers"),
    *(
        (os, name, "workers")
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")
        if hasattr(os, name)
    ),
    (Clock, "sample", "timing"),
    (importlib.metadata, "files", "models"),
)
"""Where each of them is done: the owner of a function, its name, the marker."""
CLOCKS: Final = {"time", "monotonic", "perf_counter", "thread_time", "process_time"}


@contextmanager
def told(item: pytest.Item) -> Iterator[None]:
    """While a test is set up, runs and is taken down: what it does without a marker that says so is a failure."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, marker in WATCHED:
            if item.get_closest_marker(marker) is None:
                patch.setattr(owner, name, _refusal(marker))
        yield


def _refusal(marker: str) -> Any:
    def refused(*_: object, **__: object) -> None:
        pytest.fail(f"this test {MARKERS[marker].split(',')[0]}: mark it with pytest.mark.{marker}")

    return refused


def durations(text: str) -> list[str]:
    """The functions of a module, given as text, that measure a duration (a clock's time minus an earlier one) and are not marked
    ``timing``, alone or with the whole module."""
    module = ast.parse(text)
    if any(
        isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "pytestmark" and _says(s.value) for s in module.body
    ):
        return []
    functions = [f for f in ast.walk(module) if isinstance(f, ast.FunctionDef)]
    return [f.name for f in functions if not any(map(_says, f.decorator_list)) and any(map(_measures, ast.walk(f)))]


def _says(node: ast.expr) -> bool:
    return "mark.timing" in ast.unparse(node)


def _measures(node: ast.AST) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call)):
        return False
    called = ast.unparse(node.left.func).rpartition(".")[2]
    return called.removesuffix("_ns") in CLOCKS
