"""What is shipped: every package of the tree is listed, and the links and the table agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

import tilewright

ROOT = Path(__file__).parent.parent
FOLDERS = ("graph", "schedules", "search_space", "cost_model", "measure", "tuning_logs")


def _table() -> dict[str, object]:
    data: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return data


def test_every_package_is_listed() -> None:
    """A sub-package missing from the list works in an editable install and is silently absent from the wheel."""
    found = {"tilewright"}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join(("tilewright", *init.parent.relative_to(ROOT).parts)))
    assert set(_table()["packages"]) == found  # type: ignore[call-overload]


def test_package_dir_matches() -> None:
    """Each package maps to its folder."""
    for name, folder in _table()["package-dir"].items():  # type: ignore[attr-defined]
        expected = "src/tilewright" if name == "tilewright" else name.removeprefix("tilewright.").replace(".", "/")
        assert folder == expected


def test_links_resolve() -> None:
    """``src/tilewright/<folder>`` is a relative link to the top-level folder, for editors and an uninstalled pytest."""
    for folder in FOLDERS:
        link = ROOT / "src" / "tilewright" / folder
        assert link.is_symlink()
        assert link.resolve() == ROOT / folder


def test_public_names_load() -> None:
    """Every public name exists."""
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    assert "tune" in dir(tilewright)
