"""Where a store lives, and how its database is opened: safely for writers, and without a trace for readers.

SQLite runs in WAL mode: a committed transaction survives the death of the process, and readers do not block
the writer. `synchronous=NORMAL` means that a power cut may lose the last transactions, but never damages
older ones. Writers take the write lock when a transaction begins, so two of them queue instead of failing
half-way. A file is looked at before SQLite is let near it: nothing that is not a store is ever changed.
"""

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import sqlalchemy as sa
from sqlalchemy import event, exc, pool

BUSY_SECONDS = 60.0
_HEADER = b"SQLite format 3\0"
_MEMORY = ":memory:"
_LOCK_NUMBER = 7_451_936_220  # of the advisory lock that serialises layout changes on PostgreSQL
_WRITE = "tilewright_write"


class StoreError(Exception):
    """A store cannot be used; the text says where, what was expected, what came, and what to do."""


class MissingStoreError(StoreError):
    """There is no store yet where one was to be read."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file, a database URL, or (neither) memory."""

    text: str
    path: Path | None = None
    url: sa.URL | None = None


def default_path() -> Path:
    """The file used when none is given, in the user's data directory."""
    return Path(platformdirs.user_data_dir("tilewright", appauthor=False)) / "records.sqlite"


def locate(url_or_path: str | Path | None) -> Location:
    """Understand what the user gave. Raises `StoreError` for a URL that cannot be one."""
    if url_or_path is None:
        return _file(default_path())
    if isinstance(url_or_path, Path):
        return _file(url_or_path)
    if url_or_path == _MEMORY:
        return Location(_MEMORY)
    if "://" not in url_or_path:
        return _file(Path(url_or_path))
    try:
        url = sa.make_url(url_or_path)
        name = url.get_backend_name()
    except (exc.ArgumentError, ValueError) as error:  # the URL may hold a password: it is not shown
        raise StoreError("store URL: expected scheme://user@host/database, got something else") from error
    shown = url.render_as_string(hide_password=True)
    if name != "sqlite":
        return Location(shown, url=url)
    if url.query:
        raise StoreError(f"store {shown}: expected sqlite:///path without options, got {dict(url.query)}")
    return Location(_MEMORY) if url.database in (None, "", _MEMORY) else _file(Path(str(url.database)))


def open_engine(location: Location, read_only: bool) -> sa.Engine:
    """An engine for `location`; the tables are not looked at. Raises `StoreError`."""
    if location.url is not None:
        return _server_engine(location, location.url, read_only)
    if location.path is not None:
        _check_file(location, location.path, read_only)
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: _connect(location, read_only),
        poolclass=pool.StaticPool if location.path is None else pool.QueuePool,
    )
    event.listen(engine, "begin", _begin)
    return engine


def for_writing(engine: sa.Engine) -> sa.Engine:
    """The same engine, whose transactions take the write lock at once."""
    return engine.execution_options(**{_WRITE: True})


def serialise(connection: sa.Connection) -> None:
    """Let other serialised transactions wait until this one ends (SQLite writers always do)."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))


def _file(path: Path) -> Location:
    try:
        path = path.expanduser().absolute()
    except RuntimeError as error:
        raise StoreError(
            f"store {path}: expected a user with a home folder, got none; set HOME, or give the store's path"
        ) from error
    return Location(str(path), path=path)


def _begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _check_file(location: Location, path: Path, read_only: bool) -> None:
    there = False
    try:
        there = path.exists()
        if there and path.is_dir():
            raise StoreError(
                f"store {location.text}: expected a file, got a directory; name a file in it, such as "
                f"{path / 'records.sqlite'}"
            )
        if not there:
            if read_only:
                raise MissingStoreError(
                    f"store {location.text}: expected an existing file to read, got none; check the path, or tune first"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            return
        if not path.is_file():
            raise StoreError(f"store {location.text}: expected a file, got a device or a pipe; give another path")
        with path.open("rb") as stream:
            start = stream.read(len(_HEADER))
    except OSError as error:
        kind = (
            StoreError if there else MissingStoreError
        )  # in a folder that may not be looked into, there is none for us
        raise kind(f"store {location.text}: expected a file that can be opened, got: {error}") from error
    if start not in (b"", _HEADER):
        raise StoreError(
            f"store {location.text}: expected an SQLite database, got a file that starts with {start!r}; "
            "it was left as it is: give another path (JSON Lines are read by import)"
        )


def _connect(location: Location, read_only: bool) -> sqlite3.Connection:
    if location.path is None:
        return _configured(_MEMORY, read_only=False)
    uri = location.path.as_uri()
    if not read_only:
        return _configured(f"{uri}?mode=rwc", read_only=False)
    try:
        return _configured(f"{uri}?mode=ro", read_only=True)
    except sqlite3.OperationalError:
        # Where the directory cannot be written, SQLite cannot set up its shared-memory file. If no writer
        # has left a log behind, the file itself is complete and can be read as it is.
        log = Path(f"{location.path}-wal")
        if log.exists() and log.stat().st_size > 0:
            raise StoreError(
                f"store {location.text}: expected a folder that can be written, because a writer left {log.name} there, which "
                "SQLite has to read through a file of its own; copy the store with that file to another folder, or open it once "
                "as a user who may write there"
            ) from None
        return _configured(f"{uri}?mode=ro&immutable=1", read_only=True)


def _configured(uri: str, read_only: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        else:
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _text(content: bytes) -> str:
    """Text of the database. What is no UTF-8 is damage, and is seen as such where the text is read: one row costs only itself."""
    return content.decode("utf-8", "surrogateescape")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; the busy timeout does not cover this switch, so wait for other openers here."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _server_engine(location: Location, url: sa.URL, read_only: bool) -> sa.Engine:
    try:
        engine = sa.create_engine(url)
    except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
        raise StoreError(
            f"store {location.text}: expected a database whose driver is installed, got: {error}; "
            "for PostgreSQL write postgresql+psycopg://... and install tilewright[postgres]"
        ) from error
    if read_only and engine.dialect.name == "postgresql":
        engine = engine.execution_options(postgresql_readonly=True)
    return engine
