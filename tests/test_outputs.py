"""Fault 22: outputs that cannot be written are one clear error, and what was there before is never half-overwritten."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from program import command, environment, limited, ordinary_user, run
from stored import make
from test_cli import call, refused, tiny
from tilewright.array_files import output_files
from tilewright.compiled import ModelError
from tilewright.files import DRAFT, WriteError, refuse_unwritable, replacing
from tilewright.tuning_logs import Store, export_jsonl

pytestmark = pytest.mark.workers

SHAPE = ("--shape", "x=4,8", "--threads", "1")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with records."""
    with Store(tmp_path / "r.sqlite") as opened:
        opened.add_many(make(trial=t, run_id="r") for t in range(40))
    return tmp_path / "r.sqlite"


def unwritable(tmp_path: Path) -> list[Path]:
    """Places for a file that cannot be one."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    return [
        tmp_path / "none" / "f",
        tmp_path / "file" / "f",
        tmp_path / "folder",
        Path("/dev/full"),
        tmp_path / ("n" * 300),
    ]


def test_unwritable_files(tmp_path: Path, store: Path) -> None:
    """A model, an export, from the command line and from Python: exit code 2, one message, nothing left behind."""
    model = tiny(tmp_path / "m.onnx")
    for place in unwritable(tmp_path):
        refused(call("compile", model, *SHAPE, "-o", place, "--store", store), 2, place.name[:50])
        refused(call("records", "export", place, "--store", store), 2, place.name[:50])
        with pytest.raises(WriteError, match="cannot write"), replacing(place) as stream:
            stream.write(b"x" * 10)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    assert not list(tmp_path.rglob(f"*{DRAFT}*"))


def test_unwritable_folders_of_outputs(tmp_path: Path) -> None:
    """``run --output-dir`` at a file, below one, and in a folder that is full of other things by that name."""
    model = tiny(tmp_path / "m.onnx")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "out" / "y.npy").mkdir(parents=True)
    for place, text in (("file", "file"), ("file/below", "cannot make the folder"), ("out", "cannot write")):
        refused(call("run", model, *SHAPE, "--output-dir", tmp_path / place), 2, text)


def test_a_read_only_folder(tmp_path: Path, store: Path) -> None:
    """In a process for which permissions count; the same for a file that is read-only."""
    model, out = tiny(tmp_path / "m.onnx"), tmp_path / "out"
    out.mkdir()
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    (tmp_path / "kept").chmod(0o444)
    out.chmod(0o555)
    for place in (out / "f", tmp_path / "kept"):
        for line in (("compile", model, *SHAPE, "-o", place), ("records", "export", place)):
            done = run(*line, "--store", store, preexec_fn=ordinary_user)
            assert done.returncode == 2, done.stderr
            assert "cannot write" in done.stderr
            assert "read-only" in done.stderr
    done = run("run", model, *SHAPE, "--output-dir", out / "below", "--store", store, preexec_fn=ordinary_user)
    assert (done.returncode, "cannot make the folder" in done.stderr) == (2, True)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "mine"
    out.chmod(0o755)


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, store: Path) -> None:
    """The limit of a file's size stands for the disk: the write fails half-way."""
    model, old = tiny(tmp_path / "m.onnx"), b"what was there"
    full = limited(resource.RLIMIT_FSIZE, 4000)
    for name, *line in (
        ("m.tw", "compile", model, *SHAPE, "-o", tmp_path / "m.tw"),
        ("e.jsonl", "records", "export", tmp_path / "e.jsonl"),
        ("out/y.npy", "run", model, "--shape", "x=400,8", "--output-dir", tmp_path / "out"),
    ):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(old)
        with Store(
            store, read_only=True
        ):  # another reader has its files beside the store, so that this process makes none
            done = run(*line, "--store", store, preexec_fn=full)
        assert done.returncode == 2, done.stderr
        assert "cannot write" in done.stderr
        assert (tmp_path / name).read_bytes() == old
    assert not list(tmp_path.rglob(f"*{DRAFT}*"))


def test_standard_output_that_is_full_or_closed(tmp_path: Path, store: Path) -> None:
    """A full disk is an error (2); a reader that has gone is none (141): no word. ``--json``, tables, plain lines, the help."""
    model = tiny(tmp_path / "m.onnx")
    lines = [
        ("records", "list", "--json", "--store", store),
        ("records", "list", "--store", store),
        ("run", model, *SHAPE, "--store", store),
        ("--help",),
    ]
    for line in lines:
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = run(*line, stdout=full)
        assert done.returncode == 2, line
        assert "No space left on device" in done.stderr
        reader, writer = os.pipe()
        os.close(reader)
        done = run(*line, stdout=writer)
        os.close(writer)
        assert done.returncode == 141, (line, done.stderr)
        assert "error" not in done.stderr
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&- 2>&-', "sh", *command("run", model, *SHAPE, "--store", store)],
        env=environment(),
        check=False,
        timeout=60,
    )
    assert closed.returncode == 0


def test_progress_that_nobody_reads_is_no_reason_to_stop(tmp_path: Path) -> None:
    """A run whose stderr is closed or full goes on to its end."""
    model = tiny(tmp_path / "m.onnx")
    line = command("tune", model, *SHAPE, "--trials", "4", "--store", tmp_path / "t.sqlite", "--json")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=writer, env=environment(), check=False, timeout=100)
    os.close(writer)
    assert done.returncode == 0
    assert done.stdout.startswith(b"{")


def test_what_is_no_ordinary_file_is_written_straight(tmp_path: Path, store: Path) -> None:
    """``/dev/null`` stays what it is, ``/dev/stdout`` gets the records, and the links to a file are followed."""
    assert call("records", "export", "/dev/null", "--store", store).exit_code == 0
    assert call("compile", tiny(tmp_path / "m.onnx"), *SHAPE, "-o", "/dev/null", "--store", store).exit_code == 0
    assert Path("/dev/null").is_char_device()
    done = run("records", "export", "/dev/stdout", "--store", store)
    assert len(done.stdout.splitlines()) == 41
    (tmp_path / "target").write_text("old", encoding="utf-8")
    (tmp_path / "target").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with Store(store, read_only=True) as opened:
        assert export_jsonl(opened, tmp_path / "link") == 40
    assert (tmp_path / "link").is_symlink()
    assert len((tmp_path / "target").read_text(encoding="utf-8").splitlines()) == 40
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640


KILLED = """
import os, signal, sys
from tilewright.files import replacing
with replacing(sys.argv[1]) as stream:
    stream.write(b"half of it")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    """Its draft is removed by the next writer to the same file; a living writer's is not."""
    file = tmp_path / "f"
    file.write_bytes(b"old")
    subprocess.run([sys.executable, "-c", KILLED, str(file)], env=environment(), check=False, timeout=60)
    assert file.read_bytes() == b"old"
    assert len(list(tmp_path.glob(f"{DRAFT}*"))) == 1
    with replacing(file) as first:
        first.write(b"first")
        with replacing(file) as second:
            second.write(b"second")
            assert len(list(tmp_path.glob(f"{DRAFT}*"))) == 2
        assert file.read_bytes() == b"second"
    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(ZeroDivisionError), replacing(file) as stream:
        stream.write(bytes(1 // len(b"")))
    assert list(tmp_path.iterdir()) == [file]
    refuse_unwritable(file)


def test_outputs_never_share_a_file(tmp_path: Path) -> None:
    """Names that look alike once they are file names get numbers, long ones are cut; nothing is written outside the folder."""
    found = output_files(
        str(tmp_path / "a" / "b"), ["a/b", "a_b", "a:b", "../x", "y" * 300, "y" * 299, "Ünï", "", ".."]
    )
    assert len(set(found)) == len(found) == 9
    assert {f.parent for f in found} == {tmp_path / "a" / "b"}
    for file in found:
        file.write_bytes(b"")
    assert [f.name for f in found[:3]] == ["a_b.npy", "a_b_2.npy", "a_b_3.npy"]


def test_saving_from_python_is_a_model_error(tmp_path: Path) -> None:
    import tilewright

    graph = tilewright.Graph()
    graph.output(graph.input("x", (4,)) * 2.0, "y")
    model = tilewright.compile(graph)
    for place in unwritable(tmp_path):
        with pytest.raises(ModelError, match="cannot write"):
            model.save(place)
    model.save(tmp_path / "m.tw")
    assert tilewright.load_compiled(tmp_path / "m.tw")(np.ones(4, np.float32))[0].tolist() == [2.0] * 4
