"""Where a store may be: places, files that are something else, readers."""

import hashlib
import os
import sqlite3
from pathlib import Path

import platformdirs
import pytest
import sqlalchemy as sa

from stored import HOST, HOT, hit, make, miss
from tilewright.tuning_logs import Store, StoreError, tables


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "records.sqlite"


def test_the_default_place_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *args, **kwargs: str(tmp_path / "data"))
    with Store() as store:
        assert store.path_text == str(tmp_path / "data" / "records.sqlite")
        assert repr(store) == f"Store({store.path_text!r}, read_only=False)"
    assert (tmp_path / "data" / "records.sqlite").is_file()


def test_sqlite_urls_and_plain_paths_are_the_same_place(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        store.add(make())
    with Store(str(path)) as store:
        assert store.count() == 1
        assert store.path_text == str(path)
    with Store("sqlite://") as store:
        assert store.path_text == ":memory:"


def test_a_strange_file_name_works(tmp_path: Path) -> None:
    name = tmp_path / "a b?c#d%20é.sqlite"
    with Store(name) as store:
        store.add(make())
    assert name.is_file()
    with Store(name, read_only=True) as store:
        assert store.count() == 1


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("content", [b"hello\n", b'{"schema":1}\n', b"SQLite format 3\0" + b"x" * 2000])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_store_is_refused_and_kept(tmp_path: Path, content: bytes, read_only: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"file: expected .*database.* got"):
        Store(path, read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_something_else_is_refused_and_kept(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE studies (id INTEGER)")
    connection.commit()
    connection.close()
    before = digest_of(path)
    with pytest.raises(StoreError, match=r"something else \(tables: studies\); give another path"):
        Store(path, read_only=read_only)
    assert digest_of(path) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_store_is_refused_and_kept(path: Path, read_only: bool) -> None:
    with Store(path) as store:
        store.add(make())
    connection = sqlite3.connect(path)
    connection.execute("UPDATE tilewright_layout SET version = 99")
    connection.commit()
    connection.close()
    before = digest_of(path)
    with pytest.raises(StoreError, match=r"expected layout version 1 or older, got 99.*upgrade tilewright"):
        Store(path, read_only=read_only)
    assert digest_of(path) == before


def test_places_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    with pytest.raises(StoreError, match="expected a file, got a directory"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="expected an existing file to read, got none"):
        Store(tmp_path / "none.sqlite", read_only=True)
    os.mkfifo(tmp_path / "pipe")
    for place in (Path("/dev/null"), tmp_path / "pipe"):
        for read_only in (False, True):
            with pytest.raises(StoreError, match="expected a file, got a device or a pipe"):
                Store(place, read_only=read_only)
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(StoreError, match="expected a file that can be opened, got"):
        Store(tmp_path / "plain" / "records.sqlite")
    with pytest.raises(StoreError, match="driver is installed"):
        Store("nosuch://host/db")
    with pytest.raises(StoreError, match="store URL: expected scheme"):
        Store("://secret")
    with pytest.raises(StoreError, match="without options"):
        Store(f"sqlite:///{tmp_path}/x.sqlite?mode=ro")
    with pytest.raises(StoreError, match="empty memory store"):
        Store(":memory:", read_only=True)
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="got no tables of a store"):
        Store(tmp_path / "empty", read_only=True)
    with Store(tmp_path / "empty") as store:
        assert store.count() == 0


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreError) as caught:
        Store("nosuch://me:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="got a closed one"):
        store.count()


def test_an_older_layout_is_migrated_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store:
        store.add(make())
    monkeypatch.setattr(tables, "LAYOUT_VERSION", 2)
    with pytest.raises(StoreError, match="got the older layout version 1; open it for writing once"):
        Store(path, read_only=True)
    with pytest.raises(StoreError, match="expected a migration from layout version 1"):
        Store(path)
    calls = []

    def migrate(connection: sa.Connection) -> None:
        calls.append(1)
        connection.exec_driver_sql("CREATE TABLE tilewright_new (id INTEGER)")

    monkeypatch.setitem(tables.MIGRATIONS, 1, migrate)
    for _ in range(2):
        with Store(path) as store:
            assert list(store.records()) == [make()]
    assert calls == [1]


def test_readers_change_nothing(path: Path) -> None:
    with Store(path) as store:
        store.add(make(is_default=True))
    before = digest_of(path)
    stat = path.stat()
    with Store(path, read_only=True) as reader:
        assert list(reader.records()) == [make(is_default=True)]
        hit(reader.best("w1", HOST, HOT))
        miss(reader.best("w2", HOST, HOT))
        assert len(reader.summary()) == 1
        with pytest.raises(StoreError, match="got read_only=True"):
            reader.add(make())
    assert digest_of(path) == before
    assert path.stat().st_mtime_ns == stat.st_mtime_ns


def test_a_reader_sees_what_a_living_writer_committed(path: Path) -> None:
    with Store(path) as writer, Store(path, read_only=True) as reader:
        for number in range(3):
            writer.add(make(trial=number))
            assert reader.count() == number + 1
        paused = reader.records()
        next(paused)
        writer.add(make(trial=3))  # is not held up by the reader
