"""The store: append-only records in SQLite or PostgreSQL, looked up through indices.

Several processes may write to one store at once; each opens its own `Store` (do not carry one across a fork).
Threads may share one. Each `add` or `add_many` is one committed transaction: when it has returned, killing
the process loses nothing, and nobody ever sees half of it. A store opened with `read_only=True` changes
nothing in it (SQLite may put its `-wal` and `-shm` files beside the file, which are its own bookkeeping), and never
makes one: a place without a store is refused, or read as a store without records.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa
from sqlalchemy import exc

from tilewright.tuning_logs import engine as engines
from tilewright.tuning_logs import tables
from tilewright.tuning_logs.candidates import Candidates
from tilewright.tuning_logs.checked import answers
from tilewright.tuning_logs.engine import StoreError
from tilewright.tuning_logs.fields import mapping, parse_json
from tilewright.tuning_logs.lookup import Asked, Hit, Miss, explain, hit
from tilewright.tuning_logs.record import STATUSES, Key, Record, policy_hash, policy_text, target_hash
from tilewright.tuning_logs.rows import Reader, insert_records, select_rows, shared
from tilewright.tuning_logs.summary import SummaryRow, summarise
from tilewright.tuning_logs.tables import CONTEXTS, RECORDS

_PAGE = 500


class Store:
    """Tuning records, in an SQLite file (`url_or_path`; None: the file in the user's data folder), in memory (`:memory:`) or in
    PostgreSQL (a URL). Records are only ever added. To be used as a context manager, or closed.

    Opening makes what is missing, except with `read_only`; with `missing_ok` too, a place without a store is read as one
    without records (`missing` tells). Raises `StoreError` if the place cannot be opened, is not a store, or was written by a
    newer version; `ValueError` for `missing_ok` without `read_only`.
    """

    def __init__(
        self, url_or_path: str | Path | None = None, read_only: bool = False, *, missing_ok: bool = False
    ) -> None:
        if missing_ok and not read_only:
            raise ValueError("missing_ok: expected read_only=True with it; opened for writing, a missing store is made")
        self._location = engines.locate(url_or_path)
        if read_only and self._location == engines.locate(":memory:"):
            raise StoreError("store :memory:: expected a file or a database to read, got an empty memory store")
        self.read_only = read_only
        self.missing = False  # whether there was no store to read
        self._closed = False
        self._reader = Reader()
        self._context_ids: dict[str, int] = {}
        # A memory store is a single connection: its transactions take turns.
        in_memory = self._location.path is None and self._location.url is None
        self._turn: contextlib.AbstractContextManager[object] = (
            threading.RLock() if in_memory else contextlib.nullcontext()
        )
        path = self._location.path
        if not read_only and path is not None and path.is_file() and path.stat().st_size > 0:
            self._open_to_read()  # look before SQLite may touch the file: it could be somebody else's
            self._engine.dispose()
        if missing_ok:
            self._open_what_is_there()
        elif read_only:
            self._open_to_read()
        else:
            self._open_to_write()

    @property
    def path_text(self) -> str:
        """Where the records are: a path, or a URL without its password."""
        return self._location.text

    @property
    def unreadable(self) -> dict[int, str]:
        """The rows that were met so far and could not be read: row number and reason. They are skipped."""
        return dict(self._reader.unreadable)

    def add(self, record: Record) -> None:
        """Store one measurement durably. Raises `StoreError`."""
        self.add_many((record,))

    def add_many(self, records: Iterable[Record], skip_known: bool = False) -> int:
        """Store measurements in one transaction, all or none; return how many were added.

        With `skip_known`, records equal to a stored one (or to an earlier one of `records`) are left out.
        Raises `StoreError`.
        """
        batch = list(records)
        if self.read_only:
            raise StoreError(f"store {self.path_text}: expected a store opened for writing, got read_only=True")
        if not batch:
            return 0
        context_ids = dict(self._context_ids)
        with self._transaction(write=True) as connection:
            added = insert_records(connection, batch, context_ids, skip_known)
        self._context_ids = context_ids  # only now: a rolled-back transaction leaves no contexts
        return added

    def records(
        self,
        workload_hash: str | None = None,
        target_hash: str | None = None,
        policy_hash: str | None = None,
        run_id: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Record]:
        """The records stored at the time of the first step, in the order they were added, page by page.

        No transaction stays open between two steps. Raises `StoreError`, also for an unknown `status`.
        """
        if status is not None and status not in STATUSES:
            raise StoreError(f"status: expected one of {', '.join(STATUSES)}, got {status!r}")
        wanted = {"workload_hash": workload_hash, "target_hash": target_hash, "policy_hash": policy_hash}
        in_context = [CONTEXTS.c[name] == value for name, value in wanted.items() if value is not None]
        conditions: list[sa.ColumnElement[bool]] = []
        if in_context:
            conditions.append(RECORDS.c.context_id.in_(sa.select(CONTEXTS.c.id).where(*in_context)))
        if run_id is not None:
            conditions.append(RECORDS.c.run_id == run_id)
        if status is not None:
            conditions.append(RECORDS.c.status == status)
        return self._pages(conditions, limit)

    def measured(
        self, workload_hash: str, target: Mapping[str, object], policy: str | Mapping[str, object]
    ) -> dict[str, Record]:
        """What is already known for a request: `candidate_id(schedule, params)` -> the record that stands for it.

        That is the latest "ok" record of a candidate that stands (see `standing`), else its latest record of
        any status. A resumed run measures none of these again. Raises as `best` does.
        """
        asked = _asked(workload_hash, target, policy)
        with self._transaction() as connection:
            return Candidates(connection, self._reader, asked.key, asked.policy).measured()

    def best(
        self,
        workload_hash: str,
        target: Mapping[str, object],
        policy: str | Mapping[str, object],
        family: str | None = None,
        workload: str | None = None,
    ) -> Hit | Miss:
        """The winner of a key (by the rules of `standing` and `checked`), or why there is none.

        `target` is `{"hard": {...}, "soft": {...}}`. `family` and `workload` (its JSON text) are only used to
        explain a miss. Raises `RecordError` if an argument is not valid, `StoreError` if the store fails.
        """
        asked = _asked(workload_hash, target, policy, family, workload)
        with self._transaction() as connection:
            candidates = Candidates(connection, self._reader, asked.key, asked.policy)
            found = candidates.verdict()
            if found.winner is not None:
                return hit(found.winner, asked.target, found)
            return explain(connection, self._reader, asked, candidates.keys, found)

    def top(
        self,
        workload_hash: str,
        target: Mapping[str, object],
        policy: str | Mapping[str, object],
        n: int = 10,
    ) -> list[Hit]:
        """The `n` fastest candidates of a key, by time alone. Raises as `best` does."""
        asked = _asked(workload_hash, target, policy)
        with self._transaction() as connection:
            order = Candidates(connection, self._reader, asked.key, asked.policy).fastest_first()
            return [hit(item, asked.target) for _, item in zip(range(n), order, strict=False)]

    def family_best(self, family: str, target: Mapping[str, object], policy: str | Mapping[str, object]) -> list[Hit]:
        """The winner of each workload of a family: what a lookup of another shape may try.

        Raises as `best` does.
        """
        asked = _asked("any", target, policy, family)
        of_family = sa.and_(CONTEXTS.c.family == family, CONTEXTS.c.target_hash == asked.key.target_hash)
        with self._transaction() as connection:
            rows = connection.execute(sa.select(CONTEXTS).where(of_family)).all()
            texts = [(row.workload_hash, said) for row in rows if (said := shared(row)) is not None]
            hashes = {name for name, said in texts if answers(said.policy, asked.policy)}
            keys = [asked.key._replace(workload_hash=name) for name in sorted(hashes)]
            found = [Candidates(connection, self._reader, key, asked.policy).verdict() for key in keys]
            return [hit(v.winner, asked.target, v) for v in found if v.winner is not None]

    def summary(self) -> list[SummaryRow]:
        """One row for each key, in the order in which they were first stored. Raises `StoreError`."""
        with self._transaction() as connection:
            return summarise(connection, self._reader)

    def count(self) -> int:
        """How many records are stored. Raises `StoreError`."""
        with self._transaction() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(RECORDS)) or 0

    def close(self) -> None:
        """Give the connections back; a closed store answers nothing. Closing twice is fine."""
        self._closed = True
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.path_text!r}, read_only={self.read_only})"

    def _open_what_is_there(self) -> None:
        """To read; where no store is, empty tables in memory stand for it."""
        try:
            self._open_to_read()
        except engines.MissingStoreError:
            self.missing, self._turn = True, threading.RLock()
            self._engine = engines.open_engine(engines.locate(":memory:"), read_only=False)
            with self._transaction(write=True) as connection:
                tables.prepare_layout(connection)

    def _open_to_read(self) -> None:
        self._engine = engines.open_engine(self._location, read_only=True)
        with self._guarded(), self._transaction() as connection:
            version = tables.check_layout(connection)
            if self.read_only and version is None:
                raise engines.MissingStoreError(
                    f"store {self.path_text}: expected a store to read, got no tables of a store"
                )
            if self.read_only and version != tables.LAYOUT_VERSION:
                raise tables.LayoutError(
                    f"expected a store to read, got the older layout version {version}; open it for writing once"
                )

    def _open_to_write(self) -> None:
        self._engine = engines.open_engine(self._location, read_only=False)
        with self._guarded(), self._transaction(write=True) as connection:
            engines.serialise(connection)
            tables.prepare_layout(connection)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Leave no connection behind when opening fails."""
        try:
            yield
        except tables.LayoutError as error:
            self._engine.dispose()
            raise StoreError(f"store {self.path_text}: {error}") from error
        except BaseException:
            self._engine.dispose()
            raise

    @contextlib.contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sa.Connection]:
        if self._closed:
            raise StoreError(f"store {self.path_text}: expected an open store, got a closed one; open it again")
        engine = engines.for_writing(self._engine) if write else self._engine
        try:
            with self._turn, engine.begin() as connection:
                yield connection
        except (exc.SQLAlchemyError, UnicodeDecodeError) as error:  # SQLite's own message may quote what is damaged
            cause = getattr(error, "orig", None) or error
            raise StoreError(
                f"store {self.path_text}: expected a database that can be {'written' if write else 'read'}, "
                f"got: {cause}; nothing of this step was stored"
            ) from error

    def _pages(self, conditions: list[sa.ColumnElement[bool]], limit: int | None) -> Iterator[Record]:
        with self._transaction() as connection:
            end = connection.scalar(sa.select(sa.func.max(RECORDS.c.id))) or 0
        last, left = 0, limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            statement = select_rows().where(*conditions, RECORDS.c.id > last, RECORDS.c.id <= end)
            with self._transaction() as connection:
                statement = statement.order_by(RECORDS.c.id).limit(size)
                ids = connection.scalars(statement.with_only_columns(RECORDS.c.id)).all()
                found = self._reader.read(connection, statement)
            yield from (record for _, record in found)
            if len(ids) < size:
                return
            last = ids[-1]
            left = None if left is None else left - len(found)


def _asked(
    workload_hash: str,
    target: Mapping[str, object],
    policy: str | Mapping[str, object],
    family: str | None = None,
    workload: str | None = None,
) -> Asked:
    return Asked(
        key=Key(workload_hash, target_hash(target), policy_hash(policy)),
        target=mapping("target", target),
        policy=mapping("policy", parse_json(policy_text(policy), "policy")),
        family=family,
        workload=None if workload is None else parse_json(workload, "workload"),
    )
