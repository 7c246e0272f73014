"""The onnx package's own node tests, through the importer and the oracle (``onnx_node_tests.py`` runs them).

Every case whose operators the importer knows must pass, but for those listed with a reason in ``onnx_backend_exceptions.toml``; an
exception that passes is stale and fails the test.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

from onnx_node_tests import all_cases, failures, main, obstacle, oracle

EXCEPTIONS: dict[str, str] = tomllib.loads(
    (Path(__file__).parent / "onnx_backend_exceptions.toml").read_text(encoding="utf-8")
)["exceptions"]


@cache
def relevant_cases() -> tuple[Any, ...]:
    """All cases in scope, in the package's order."""
    return tuple(c for c in all_cases() if obstacle(c) is None)


@pytest.mark.slow
def test_node_cases(figure: Callable[[str], None]) -> None:
    """Every case in scope passes, but exactly the ones listed."""
    cases = relevant_cases()
    failed = failures(cases, oracle)
    passed = len(cases) - len(failed)
    figure(f"{passed} of {len(cases)} ONNX node tests passed (oracle)")
    new = {n: e for n, e in failed.items() if n not in EXCEPTIONS}
    assert not new, "\n".join(f"{n}: {e}" for n, e in new.items())
    stale = sorted(set(EXCEPTIONS) - set(failed))
    assert not stale, f"exceptions that pass or are out of scope: {stale}"
    assert passed >= 1300


@pytest.mark.slow
def test_all_node_tests_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints how many of all node tests pass, and reasons that add up to the others."""
    assert main() == 0
    first, *rest = capsys.readouterr().out.splitlines()
    word, passed, of, total = first.split()
    assert (word, of) == ("passed", "of")
    assert int(total) == len(all_cases())
    assert int(passed) + sum(int(line.split()[0]) for line in rest) == int(total)


def test_reasons_are_given() -> None:
    """Each exception has a reason of more than a word."""
    short = [n for n, reason in EXCEPTIONS.items() if len(reason.split()) < 3]
    assert not short
