"""The page of reliability names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_named_tests_are_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    defined = {
        p.name: set(re.findall(r"^def (test_\w+)", p.read_text(encoding="utf-8"), re.M))
        for p in (ROOT / "tests").glob("test_*.py")
    }
    file, missing, found = "", [], 0
    for name in re.findall(r"test_\w+\.py|(?<=::)test_\w+", page):
        if name.endswith(".py"):
            file = name
            missing += [name] if name not in defined else []
        else:
            found += 1
            missing += [f"{file}::{name}"] if name not in defined.get(file, set()) else []
    assert not missing
    assert found > 90


def test_every_fault_has_a_row() -> None:
    """Numbers without one are named as open, or as without a test, on the page itself."""
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = {int(n) for n in re.findall(r"^\| \(?(\d+)", page, re.M)}
    said = {int(n) for n in re.findall(r"\b(\d+) \((?:speed|keys|`make)", page)} | {31}
    assert rows | said == set(range(1, 34))
