"""What a store holds, one row for each key."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.tuning_logs.lookup import ranked
from tilewright.tuning_logs.record import Key
from tilewright.tuning_logs.rows import Reader, grouped, shared
from tilewright.tuning_logs.standing import standing, winner
from tilewright.tuning_logs.tables import CONTEXTS, RECORDS


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """What is stored for one key."""

    key: Key
    family: str
    workload: str
    target: dict[str, Any]
    policy: str
    counts: dict[str, int]  # by status; only those that occur
    best_ns: float | None  # of the winner, by the rule of `standing`
    default_ns: float | None


def summarise(connection: sa.Connection, reader: Reader) -> list[SummaryRow]:
    """One row for each key, in the order in which they were first stored."""
    counts: dict[str, dict[str, int]] = {}
    by = (RECORDS.c.key_digest, RECORDS.c.status)
    for key_digest, status, count in connection.execute(sa.select(*by, sa.func.count()).group_by(*by)):
        counts.setdefault(key_digest, {})[status] = count
    rows: dict[str, SummaryRow] = {}
    for context in connection.execute(sa.select(CONTEXTS).order_by(CONTEXTS.c.id)).all():
        if context.key_digest in rows or context.key_digest not in counts:
            continue
        texts = shared(context)
        if texts is None:
            continue
        key = Key(context.workload_hash, context.target_hash, context.policy_hash)
        best = winner(ranked(connection, reader, key))
        rows[context.key_digest] = SummaryRow(
            key=key,
            family=context.family,
            workload=context.workload,
            target=texts.target,
            policy=context.policy,
            counts=dict(sorted(counts[context.key_digest].items(), key=str)),
            best_ns=best.time_ns if best else None,
            default_ns=min(_default_times(connection, reader, context.key_digest), default=None),
        )
    return list(rows.values())


def _default_times(connection: sa.Connection, reader: Reader, key_digest: str) -> Iterator[float]:
    of_key = RECORDS.c.key_digest == key_digest
    defaults = sa.select(RECORDS.c.candidate).where(of_key, RECORDS.c.is_default).distinct()
    measurements = reader.records(connection, sa.and_(of_key, RECORDS.c.candidate.in_(defaults)))
    for group in grouped(measurements).values():
        item = standing(group)
        if item is not None:
            yield item.time_ns
