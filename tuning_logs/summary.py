"""What a store holds, one row for each key."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.tuning_logs.candidates import Candidates
from tilewright.tuning_logs.record import Key
from tilewright.tuning_logs.rows import Reader, shared
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
    best_ns: (
        float | None
    )  # of the winner, by the rule of `standing`; of the default where that stays for want of a contest
    default_ns: float | None  # of the default that stands


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
        found = Candidates(connection, reader, key, texts.policy).verdict()
        rows[context.key_digest] = SummaryRow(
            key=key,
            family=context.family,
            workload=context.workload,
            target=texts.target,
            policy=context.policy,
            counts=dict(sorted(counts[context.key_digest].items(), key=str)),
            best_ns=found.kept.time_ns if found.kept else None,
            default_ns=found.default.time_ns if found.default else None,
        )
    return list(rows.values())
