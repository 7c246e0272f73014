"""Fault 21: what only reads makes no store and needs none; a place without a store has no records, and that is said once."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import numpy as np
import platformdirs
import pytest

import tilewright
from program import ordinary_user, run
from stored import HOST, HOT, hit, make, miss
from test_cli import call, refused, tiny
from tilewright.measure.lock import device_lock
from tilewright.tuning_logs import Store, StoreError

pytestmark = pytest.mark.workers

SHAPE = ("--shape", "x=4,8", "--threads", "1")


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder in which nothing may be made."""
    for name in ("user_data_dir", "user_cache_dir"):
        monkeypatch.setattr(platformdirs, name, lambda *_, **__: str(tmp_path / "home" / "data"))
    return tmp_path / "home"


@pytest.mark.parametrize("place", ["typo.sqlite", "no folder/typo.sqlite", "sqlite:///{}/typo.sqlite"])
def test_a_mistyped_store_is_not_made_and_said_once(tmp_path: Path, place: str) -> None:
    """By commands that only read, whatever they make of it; the path and the URL of a file are the same."""
    model = tiny(tmp_path / "m.onnx")
    store = place.format(tmp_path) if "://" in place else str(tmp_path / place)
    out = tmp_path / "out"
    out.mkdir()
    for code, *args in (
        (0, "compile", model, *SHAPE, "-o", out / "m.tw"),
        (0, "run", model, *SHAPE),
        (5, "best", model, *SHAPE),
        (5, "compile", model, *SHAPE, "-o", out / "n.tw", "--on-miss", "error"),
    ):
        result = call(*args, "--store", store)
        assert result.exit_code == code, result.output
        assert result.stderr.count("there is no store at") == 1
        assert "typo.sqlite" in result.stderr
    refused(call("records", "list", "--store", store), 2, "typo.sqlite", "expected an existing file")
    assert files(tmp_path) == ["m.onnx", "out/m.tw"]


def test_an_export_of_no_store_writes_no_file(tmp_path: Path) -> None:
    """It fails, and a file that is there stays."""
    kept = tmp_path / "kept.jsonl"
    kept.write_text("mine\n", encoding="utf-8")
    for file in (kept, tmp_path / "new.jsonl"):
        refused(call("records", "export", file, "--store", tmp_path / "typo.sqlite"), 2, "typo.sqlite")
    assert files(tmp_path) == ["kept.jsonl"]
    assert kept.read_text(encoding="utf-8") == "mine\n"


def test_a_failed_import_makes_no_store(tmp_path: Path) -> None:
    refused(call("records", "import", tmp_path / "none.jsonl", "--store", tmp_path / "new.sqlite"), 2, "none.jsonl")
    assert files(tmp_path) == []


def test_the_default_store_need_not_be_there(tmp_path: Path, home: Path) -> None:
    """Nobody has tuned yet: no records, and nothing is made in the home folder."""
    model = tiny(tmp_path / "m.onnx")
    result = call("compile", model, *SHAPE, "-o", tmp_path / "m.tw")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("there is no store at") == 1
    listed = call("records", "list", "--json")
    assert (listed.exit_code, json.loads(listed.stdout)) == (0, [])
    assert call("records", "path").stdout.strip() == str(home / "data" / "records.sqlite")
    refused(call("records", "export", tmp_path / "e.jsonl"), 2, "expected an existing file")
    assert not home.exists()


def test_a_read_only_home_and_a_read_only_store(tmp_path: Path) -> None:
    """In a process for which permissions count: a home without a store, and one whose store and folder cannot be written."""
    model, data = tiny(tmp_path / "m.onnx"), tmp_path / "home" / "data" / "tilewright"
    data.mkdir(parents=True)
    with Store(data / "records.sqlite") as store:
        store.add(make())
    (data / "records.sqlite").chmod(0o444)
    out = tmp_path / "out"
    out.mkdir()
    env = {
        "HOME": str(tmp_path / "home"),
        "XDG_DATA_HOME": str(data.parent),
        "XDG_CACHE_HOME": str(tmp_path / "home" / "c"),
    }
    for folder in (data, tmp_path / "home"):
        folder.chmod(0o555)
    try:
        for name in (data, tmp_path / "home"):
            line = ("compile", model, *SHAPE, "-o", out / "m.tw")
            done = run(
                *line,
                env={**env, "XDG_DATA_HOME": str(name.parent if name == data else name)},
                preexec_fn=ordinary_user,
            )
            assert done.returncode == 0, done.stderr
            assert ("there is no store" in done.stderr) is (name != data)
        listed = run("records", "list", "--json", env=env, preexec_fn=ordinary_user)
        assert len(json.loads(listed.stdout)) == 1, listed.stderr
        assert files(tmp_path / "home") == ["data/tilewright/records.sqlite"]
    finally:
        for folder in (tmp_path / "home", data):
            folder.chmod(0o755)


def test_a_log_in_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    """A killed writer's log needs a folder that can be written: one clear refusal, no half of the records."""
    folder = tmp_path / "store"
    folder.mkdir()
    with Store(folder / "r.sqlite") as store:
        store.add(make())
    writer = sqlite3.connect(folder / "r.sqlite")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE tilewright_more (a)")
    writer.commit()
    log = (folder / "r.sqlite-wal").read_bytes()
    writer.close()
    (folder / "r.sqlite-wal").write_bytes(log)
    (folder / "r.sqlite-shm").unlink(missing_ok=True)
    folder.chmod(0o555)
    try:
        done = run("records", "list", "--store", folder / "r.sqlite", preexec_fn=ordinary_user)
        assert done.returncode == 2
        assert "r.sqlite-wal" in done.stderr
    finally:
        folder.chmod(0o755)


def test_reading_from_python(tmp_path: Path) -> None:
    """``missing_ok`` reads a place without a store as one without records; without it, it is refused. ``compile`` takes either."""
    place = tmp_path / "none" / "r.sqlite"
    with pytest.raises(StoreError, match="expected an existing file to read, got none"):
        Store(place, read_only=True)
    with pytest.raises(ValueError, match="missing_ok: expected read_only=True"):
        Store(place, missing_ok=True)
    graph = tilewright.Graph()
    graph.output(graph.input("x", (4,)) * 2.0, "y")
    with Store(place, read_only=True, missing_ok=True) as store:
        assert store.missing
        assert (store.count(), list(store.records()), store.summary()) == (0, [], [])
        miss(store.best("w1", HOST, HOT))
        assert store.path_text == str(place)
        with pytest.raises(StoreError, match="read_only=True"):
            store.add(make())
        (y,) = tilewright.compile(graph, store=store)(np.arange(4, dtype=np.float32))
        assert y.tolist() == [0, 2, 4, 6]
    assert not place.parent.exists()
    (tmp_path / "empty").touch()
    with Store(tmp_path / "empty", read_only=True, missing_ok=True) as store:
        assert store.missing
    with Store(place) as store:
        store.add(make(is_default=True))
    with Store(place, read_only=True, missing_ok=True) as store:
        assert not store.missing
        hit(store.best("w1", HOST, HOT))
    (tmp_path / "text").write_text("x" * 100, encoding="utf-8")
    with pytest.raises(StoreError, match="expected an SQLite database"):
        Store(tmp_path / "text", read_only=True, missing_ok=True)


def test_the_lock_of_the_device_may_be_another_users(tmp_path: Path) -> None:
    """A lock file that cannot be written is shared all the same; one that cannot be opened is a DeviceError."""
    lock = tmp_path / "device.lock"
    lock.touch(0o444)
    with device_lock(lock) as waited:
        assert waited >= 0
    with (
        pytest.raises(tilewright.measure.DeviceError, match="lock of the device"),
        device_lock(tmp_path / "no" / "lock"),
    ):
        os.abort()
