"""How strictly a record was checked, and which requests it may answer for that.

The tolerance of the check is part of a record's policy, and so of its key: a schedule accepted at a loose one says nothing to a
strict request. The other way round it does: what passed a stricter check passes a looser one, so a request is answered from
its own key and from those that differ in nothing but a smaller tolerance.

A policy that names no tolerance was checked at `UNSAID_TOLERANCE`: records were, before there was any other.
"""

import json
from collections.abc import Mapping

import sqlalchemy as sa

from tilewright.tuning_logs.fields import RecordError, parse_json
from tilewright.tuning_logs.record import Key, Record
from tilewright.tuning_logs.tables import CONTEXTS

UNSAID_TOLERANCE = 1e-4
_NAME = "tolerance"


def tolerance(policy: Mapping[str, object]) -> float | None:
    """The tolerance that a policy was checked at; None for a value that is none."""
    value = policy.get(_NAME, UNSAID_TOLERANCE)
    return None if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 else float(value)


def said(one: Mapping[str, object], other: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Two policies for comparing field by field: if one names its tolerance, both do."""
    unsaid: dict[str, object] = {_NAME: UNSAID_TOLERANCE} if _NAME in one or _NAME in other else {}
    return {**unsaid, **one}, {**unsaid, **other}


def answers(stored: Mapping[str, object], asked: Mapping[str, object]) -> bool:
    """Whether records under a stored policy may answer a request: it is the same, or differs in nothing but a smaller
    tolerance."""
    if stored == asked:
        return True
    strict, loose = tolerance(stored), tolerance(asked)
    same = {k: v for k, v in stored.items() if k != _NAME} == {k: v for k, v in asked.items() if k != _NAME}
    return same and strict is not None and loose is not None and strict <= loose


def counts(record: Record, asked: Mapping[str, object]) -> bool:
    """Whether a record of a key that may answer says something to the request. That a result was too far off for a stricter
    check does not; that one was not even finite, or that memory was damaged, does."""
    if record.status != "wrong_result" or record.max_error is None:
        return True
    strict, loose = tolerance(json.loads(record.policy)), tolerance(asked)
    return strict is None or loose is None or strict >= loose


def answering_keys(connection: sa.Connection, key: Key, policy: Mapping[str, object]) -> list[str]:
    """The digests of the keys whose records may answer a request for `key` under `policy`; its own comes first."""
    found = {key.digest(): None}
    of_pair = sa.and_(CONTEXTS.c.workload_hash == key.workload_hash, CONTEXTS.c.target_hash == key.target_hash)
    columns = (CONTEXTS.c.key_digest, CONTEXTS.c.policy)
    for row in connection.execute(sa.select(*columns).where(of_pair).order_by(CONTEXTS.c.id)):
        stored = _policy(row.policy)
        if stored is not None and answers(stored, policy):
            found[row.key_digest] = None
    return list(found)


def _policy(text: object) -> dict[str, object] | None:
    """A stored policy; None for a damaged one."""
    try:
        found = parse_json(text, "policy") if isinstance(text, str) else None
    except RecordError:
        return None
    return found if isinstance(found, dict) else None
