"""Between records and table rows. A row that cannot be read is set aside and counted, never fatal."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from tilewright.tuning_logs.engine import StoreError, serialise
from tilewright.tuning_logs.fields import RecordError, canonical_json, digest, parse_json, text
from tilewright.tuning_logs.record import Record
from tilewright.tuning_logs.tables import CONTEXTS, RECORDS

# These live in the shared context of a record, not in its body.
_SHARED = ("workload_hash", "family", "target_hash", "policy_hash", "workload", "target", "policy")
_BATCH = 200
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What a damaged row raises: RecordError and JSONDecodeError are ValueErrors; a body may be no text, or no object, or too deep."""


def _context_row(record: Record) -> dict[str, Any]:
    """The row of the texts that `record` shares with others."""
    row: dict[str, Any] = {name: getattr(record, name) for name in _SHARED}
    row["target"] = canonical_json(record.target)
    row["key_digest"] = record.key().digest()
    row["digest"] = digest(canonical_json(row))
    return row


def _record_row(record: Record, context_id: int) -> dict[str, Any]:
    """The row of `record` itself."""
    whole = record.to_dict()
    body = {name: value for name, value in whole.items() if name not in _SHARED}
    return {
        "context_id": context_id,
        "key_digest": record.key().digest(),
        "candidate": record.candidate,
        "status": record.status,
        "median_ns": record.median_ns,
        "is_default": record.is_default,
        "run_id": record.run_id,
        "digest": digest(record.to_json_line()),  # equal exactly for equal records
        "body": canonical_json(body),
    }


def batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Slices that fit into one statement on every database."""
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]


def grouped(measurements: Iterable[tuple[int, Record]]) -> dict[str, list[tuple[int, Record]]]:
    """The `(position, record)` pairs by candidate, each group in the order given."""
    groups: dict[str, list[tuple[int, Record]]] = {}
    for position, record in measurements:
        groups.setdefault(record.candidate, []).append((position, record))
    return groups


@dataclass(frozen=True, slots=True)
class Shared:
    """What the texts of a context say."""

    target: dict[str, Any]
    policy: dict[str, Any]
    workload: Any


def shared(row: Any) -> Shared | None:
    """The texts of a row of `CONTEXTS`, parsed; None for a damaged row."""
    try:
        texts = {name: text(name, getattr(row, name)) for name in _SHARED}
        target, policy, workload = (parse_json(texts[name], name) for name in ("target", "policy", "workload"))
    except RecordError:
        return None
    right = isinstance(target, dict) and all(isinstance(target.get(part), dict) for part in ("hard", "soft"))
    return Shared(target, policy, workload) if right and isinstance(policy, dict) else None


class Reader:
    """Turns rows into records; remembers the contexts, and the rows that could not be read."""

    def __init__(self) -> None:
        self.unreadable: dict[int, str] = {}  # row number -> reason
        self._contexts: dict[int, dict[str, Any]] = {}

    def records(self, connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[tuple[int, Record]]:
        """All readable `(row number, record)` that fulfil `condition`, in the order they were added."""
        return self.read(connection, select_rows().where(condition).order_by(RECORDS.c.id))

    def read(self, connection: sa.Connection, statement: sa.Select[tuple[int, int, str]]) -> list[tuple[int, Record]]:
        """The readable rows of a `select_rows()` statement, in its order."""
        rows = connection.execute(statement).all()
        self._load_contexts(connection, {row.context_id for row in rows if isinstance(row.context_id, int)})
        found = []
        for row in rows:
            try:
                body = json.loads(row.body)
                if not row.body.isascii():  # as it is written; other bytes are damage
                    raise RecordError("expected ASCII text")
                found.append((row.id, Record.from_dict(body | self._contexts[row.context_id])))
            except _UNREADABLE as error:
                self.unreadable[row.id] = f"{type(error).__name__}: {error}"
        return found

    def _load_contexts(self, connection: sa.Connection, wanted: Iterable[int]) -> None:
        for batch in batches(sorted(set(wanted) - set(self._contexts))):
            for row in connection.execute(sa.select(CONTEXTS).where(CONTEXTS.c.id.in_(batch))):
                texts = shared(row)
                if texts is not None:  # else its records are reported one by one
                    self._contexts[row.id] = {name: getattr(row, name) for name in _SHARED} | {"target": texts.target}


def select_rows() -> sa.Select[tuple[int, int, str]]:
    """What `Reader.read` needs of each row."""
    return sa.select(RECORDS.c.id, RECORDS.c.context_id, RECORDS.c.body)


def insert_records(
    connection: sa.Connection, records: Sequence[Record], context_ids: dict[str, int], skip_known: bool
) -> int:
    """Insert within the caller's transaction; return how many. `context_ids` is a cache that is added to.

    With `skip_known`, records equal to a stored one, or to an earlier one of `records`, are left out.
    """
    rows = [_record_row(record, _context_id(connection, record, context_ids)) for record in records]
    if skip_known:
        rows = _unknown(connection, rows)
    if rows:
        connection.execute(sa.insert(RECORDS), rows)
    return len(rows)


def _context_id(connection: sa.Connection, record: Record, known: dict[str, int]) -> int:
    row = _context_row(record)
    name = row["digest"]
    find = sa.select(CONTEXTS.c.id).where(CONTEXTS.c.digest == name)
    if name not in known:
        found = connection.scalar(find)
        if found is None:
            try:
                with connection.begin_nested():
                    connection.execute(sa.insert(CONTEXTS).values(row))
            except exc.IntegrityError:  # another writer of a server database was faster
                pass
            found = connection.scalar(find)
        if found is None:
            raise StoreError("expected a stored context, got none; the database lost a row")
        known[name] = found
    return known[name]


def _unknown(connection: sa.Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    serialise(connection)
    by_digest = {row["digest"]: row for row in reversed(rows)}  # the first of equal ones stays
    for batch in batches(list(by_digest)):
        for name in connection.scalars(sa.select(RECORDS.c.digest).where(RECORDS.c.digest.in_(batch))):
            by_digest.pop(name, None)
    return [row for row in rows if by_digest.get(row["digest"]) is row]
