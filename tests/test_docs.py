"""The documents against the code: examples run, options exist, links lead somewhere, the folders are there.

A fenced python block whose first line begins with ``# not run`` is shown only; all other blocks of a page run
in one process, in order. Commands that need a model are checked against the command line's own definition.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from tilewright import options, signals
from tilewright.__main__ import EXIT_CLOSED_PIPE, EXIT_USAGE
from tilewright.cli import main

pytestmark = pytest.mark.workers

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SECONDS = 120
"""Most seconds for one program; each takes a few on a quiet machine."""


def page_name(page: Path) -> str:
    """The id of a page in test names."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def runnable(page: Path) -> list[str]:
    """The python blocks that are meant to run."""
    return [b for b in blocks(page, "python") if not b.startswith("# not run")]


def commands() -> list[str]:
    """Every ``tilewright …`` line of a shell block of any page."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("tilewright ")})


def run(arguments: list[str], folder: Path) -> str:
    """Standard output of a Python program, which must succeed without a warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p)], ids=page_name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """What a page tells a reader to type works."""
    program = tmp_path / "page.py"
    program.write_text("\n".join(runnable(page)), encoding="utf-8")
    run([str(program)], tmp_path)


def test_readme_has_a_python_example() -> None:
    """The example is there and short."""
    (example,) = runnable(ROOT / "README.md")
    assert len(example.splitlines()) <= 25


@pytest.mark.parametrize("name", ["matmul", "own_operator"])
def test_examples_run(name: str, tmp_path: Path) -> None:
    """They check their own results and exit with 4 if those are wrong."""
    assert "default" in run([str(ROOT / "examples" / f"{name}.py"), "--time", "2"], tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "device --no-ceilings",
        "device --no-ceilings --json",
        "records path --store r.sqlite",
    ],
)
def test_commands_that_need_no_model(line: str, tmp_path: Path) -> None:
    """They run as a user's shell runs them."""
    assert run(["-m", "tilewright", *line.split()], tmp_path).strip()


@pytest.mark.parametrize("line", commands())
def test_documented_options_exist(line: str) -> None:
    """Every command line of the documents parses (nothing of it is executed)."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.commands.get(words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
    command.make_context("tilewright", list(words))


def test_command_overview_is_complete() -> None:
    """The README shows every command."""
    shown = {line.split()[1] for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()}
    assert shown == set(main.commands)


def test_exit_codes_are_documented() -> None:
    """The guide's table has each code of the command line."""
    source = (ROOT / "src" / "tilewright" / "options.py").read_text(encoding="utf-8")
    (codes,) = re.findall(r"^EXIT_USAGE.* = ([\d, ]+)$", source, re.MULTILINE)
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\d+) \|", guide, re.MULTILINE)
    assert table == sorted(["0", *codes.split(", "), str(signals.exit_code())], key=int)
    assert (EXIT_USAGE, EXIT_CLOSED_PIPE) == (options.EXIT_USAGE, options.EXIT_CLOSED_PIPE)


def test_make_targets_exist() -> None:
    """Every ``make …`` of the documents is a target."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"^ +make ([a-z]+)|`make ([a-z]+)`", text, re.MULTILINE))
    named = {a or b for a, b in named}
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_exist(page: Path) -> None:
    """Files exist, and so do the headings that a page links to in itself."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w\- ]", "", t).strip().lower().replace(" ", "-") for t in titles}
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        assert path == "" or (page.parent / path).exists(), f"{link} leads nowhere"
        assert path or anchor in headings, f"no heading for #{anchor}"


def test_folder_map_is_the_tree() -> None:
    """The README lists the folders that pyproject maps to packages, and the others; all of them exist."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([^`]+)/` \|", text, re.MULTILINE)
    assert shown[-4:] == ["tests", "benchmarks", "docs", "examples"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["package-dir"].values()
    top = {folder for folder in packages if "/" not in folder or folder.startswith("src/")}
    assert set(shown[:-4]) == top
    assert [folder for folder in shown if not (ROOT / folder).is_dir()] == []
