"""Fault 23: Ctrl-C, a second one, and being told to end: at any moment one documented exit code, no traceback, nothing lost or left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from program import interrupted
from test_cli import tiny
from tilewright.tuning_logs import Store

pytestmark = pytest.mark.workers

LONG = ("--shape", "x=3000,8", "--threads", "1", "--strategy", "exhaustive")


def tune(folder: Path, *more: object) -> list[object]:
    """A tuning run that does not end by itself."""
    return ["tune", tiny(folder / "m.onnx"), *LONG, "--time", "10m", "--store", folder / "r.sqlite", *more]


def surroundings(folder: Path) -> dict[str, str]:
    """Temporary files of their own, to see what is left."""
    (folder / "tmp").mkdir()
    return {"TMPDIR": str(folder / "tmp")}


@pytest.mark.parametrize("delay", [0.15, 0.3, 0.5, 0.8, 1.3, 2.0])
def test_an_interrupt_at_any_moment_ends_with_130(tmp_path: Path, delay: float) -> None:
    """Imports, the search space, preflight, measuring."""
    code, _, err = interrupted(tune(tmp_path), [delay], env=surroundings(tmp_path))
    assert code == 130, err
    assert "Traceback" not in err
    assert not [p for p in (tmp_path / "tmp").iterdir() if delay > 1]  # (while starting it ends at once)


@pytest.mark.parametrize(
    ("after", "delays"), [("", (0.5, 0.01)), ("", (1.5, 0.01)), ("measured", (0.0, 0.0)), ("measured", (0.3, 0.05))]
)
def test_a_second_interrupt_ends_at_once_with_130(tmp_path: Path, after: str, delays: tuple[float, ...]) -> None:
    """Also while the first one is being seen to. What was measured is in the store."""
    code, _, err = interrupted(tune(tmp_path), delays, env=surroundings(tmp_path), after=after)
    assert code == 130, err
    assert "Traceback" not in err
    if after:
        with Store(tmp_path / "r.sqlite", read_only=True) as store:
            assert len(list(store.records())) > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_end_is_an_interrupt_too(tmp_path: Path, number: signal.Signals) -> None:
    """128 and the number; what was measured is shown and kept; no temporary file stays."""
    code, out, err = interrupted(tune(tmp_path), [0.3], number, surroundings(tmp_path), after="1 measured")
    assert code == 128 + number, err
    assert "Traceback" not in err
    assert "(interrupted)" in out
    with Store(tmp_path / "r.sqlite", read_only=True) as store:
        assert store.count() > 0
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("args", [["bench", "--time", "100s"], ["compile", "-o", "out.tw"], ["best"]])
def test_other_commands_are_interrupted_alike(tmp_path: Path, args: list[str]) -> None:
    """They end with 130 wherever they are, or had ended before."""
    model = tiny(tmp_path / "m.onnx")
    args = [str(tmp_path / a) if a == "out.tw" else a for a in args]
    line = [args[0], model, "--shape", "x=64,8", *args[1:], "--store", tmp_path / "none.sqlite"]
    for delay in (0.3, 0.6, 0.9):
        code, _, err = interrupted(line, [delay])
        assert code in ((130,) if args[0] == "bench" else (130, 0, 5)), err
        assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".tw") == ["m.onnx"]


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As under ``nohup``: the run goes on."""
    code, _, err = interrupted(
        ["bench", tiny(tmp_path / "m.onnx"), "--shape", "x=4,8", "--time", "3s", "--store", tmp_path / "none.sqlite"],
        [1.0],
        signal.SIGHUP,
        ignored=True,
    )
    assert code == 0, err
