"""Answers to "what is best for this key?", and to "why is there nothing?"."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.tuning_logs.checked import said
from tilewright.tuning_logs.record import Key, Record
from tilewright.tuning_logs.rows import Reader, select_rows, shared
from tilewright.tuning_logs.standing import Standing, Verdict
from tilewright.tuning_logs.tables import CONTEXTS, RECORDS

_CONTEXTS_COMPARED = 500


@dataclass(frozen=True, slots=True)
class Hit:
    """The answer of a lookup."""

    record: Record  # the latest "ok" measurement of the candidate
    time_ns: float  # what it was ranked by, see `standing`
    noise: float
    measurements: int
    settled: bool = False  # whether it was measured side by side with the default
    is_default: bool = False  # whether it is the default of the key
    contested: bool = False  # whether any candidate was measured side by side with the default
    default_ns: float | None = None  # of the default of the key; None if none stands
    soft_differences: tuple[str, ...] = ()  # soft fields of the target that differ from those asked for


@dataclass(frozen=True, slots=True)
class Miss:
    """No usable record for a key, and why."""

    reasons: tuple[str, ...]  # at least one
    nearest: Record | None = None  # the fastest record of the nearest key, or its latest if none is "ok"
    default_ns: float | None = None  # of the default of the key, where it stays for want of a contest

    def __str__(self) -> str:
        return "; ".join(self.reasons)


@dataclass(frozen=True, slots=True)
class Asked:
    """A lookup as it was asked: the key, and what is known besides to explain a miss."""

    key: Key
    target: dict[str, Any]
    policy: dict[str, Any]
    family: str | None = None
    workload: object = None


def hit(item: Standing, asked_target: dict[str, Any], found: Verdict | None = None) -> Hit:
    """The answer that `item` is, for a target whose hard fields match; `found` is the verdict on its key."""
    return Hit(
        record=item.record,
        time_ns=item.time_ns,
        noise=item.noise,
        measurements=item.measurements,
        settled=item.settled,
        is_default=item.is_default,
        contested=found is not None and found.contested,
        default_ns=None if found is None or found.default is None else found.default.time_ns,
        soft_differences=tuple(differences(asked_target["soft"], item.record.target["soft"], "target.soft")),
    )


def explain(connection: sa.Connection, reader: Reader, asked: Asked, keys: Sequence[str], found: Verdict) -> Miss:
    """Say why `asked` has no answer: the reason of its verdict, or which field differs from the nearest stored key. `keys` are
    the digests of the keys that may answer."""
    if found.reason:
        default_ns = None if found.default is None else found.default.time_ns
        return Miss((found.reason,), _sample(connection, reader, keys), default_ns)
    same_key = _counts(connection, RECORDS.c.key_digest.in_(keys))
    if same_key:
        return _nothing_usable(connection, reader, keys, same_key)
    nearest = _nearest(connection, asked, CONTEXTS.c.workload_hash == asked.key.workload_hash)
    if nearest is not None:
        return Miss(tuple(nearest.reasons), _sample(connection, reader, [nearest.key_digest]))
    if asked.family is not None:
        nearest = _nearest(connection, asked, CONTEXTS.c.family == asked.family)
        if nearest is not None:
            first = f"workload family known with other shapes: {nearest.workloads} workload(s) stored"
            return Miss((first, *nearest.reasons), _sample(connection, reader, [nearest.key_digest]))
        return Miss(("no record of this workload or its family",))
    return Miss(("no record of this workload (no family was given to look for other shapes)",))


def differences(asked: object, stored: object, name: str) -> list[str]:
    """Each leaf in which two JSON values differ, as `name.field: asked 2, stored 1`."""
    if isinstance(asked, dict) and isinstance(stored, dict):
        found = []
        for part in sorted(asked.keys() | stored.keys()):
            found += differences(asked.get(part, _ABSENT), stored.get(part, _ABSENT), f"{name}.{part}")
        return found
    if isinstance(asked, list) and isinstance(stored, list) and len(asked) == len(stored):
        pairs = enumerate(zip(asked, stored, strict=True))
        return [text for index, (a, s) in pairs for text in differences(a, s, f"{name}[{index}]")]
    if asked == stored and type(asked) is type(stored):
        return []
    return [f"{name}: asked {_shown(asked)}, stored {_shown(stored)}"]


@dataclass(frozen=True, slots=True)
class _Nearest:
    key_digest: str
    reasons: list[str]
    workloads: int


_ABSENT = object()


def _shown(value: object) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value)


def _counts(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> dict[str, int]:
    rows = connection.execute(sa.select(RECORDS.c.status, sa.func.count()).where(condition).group_by(RECORDS.c.status))
    return {status: count for status, count in rows}


def _nothing_usable(connection: sa.Connection, reader: Reader, keys: Sequence[str], counts: dict[str, int]) -> Miss:
    parts = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=lambda c: -c[1]))
    reasons = [f"the key is stored, but none of its candidates stands: {parts}"]
    found = reader.read(
        connection,
        select_rows()
        .where(RECORDS.c.key_digest.in_(keys))
        .where(RECORDS.c.status.not_in(("ok", "duplicate", "pruned_slow")))
        .order_by(RECORDS.c.id)
        .limit(1),
    )
    if found and found[0][1].error:
        reasons.append(f"first failure ({found[0][1].status}): {found[0][1].error}")
    return Miss(tuple(reasons), _sample(connection, reader, keys))


def _nearest(connection: sa.Connection, asked: Asked, condition: sa.ColumnElement[bool]) -> _Nearest | None:
    contexts = connection.execute(
        sa.select(CONTEXTS).where(condition).order_by(CONTEXTS.c.id.desc()).limit(_CONTEXTS_COMPARED)
    ).all()
    compared = [(found, row.id, row) for row in contexts if (found := _compare(asked, row)) is not None]
    if not compared:
        return None
    (_, _, texts), _, row = min(compared, key=lambda item: (item[0][:2], -item[1]))
    count = connection.scalar(
        sa.select(sa.func.count()).select_from(RECORDS).where(RECORDS.c.key_digest == row.key_digest)
    )
    return _Nearest(
        key_digest=row.key_digest,
        reasons=[f"{text} ({count} record{'' if count == 1 else 's'})" for text in texts],
        workloads=len({other.workload_hash for other in contexts}),
    )


def _compare(asked: Asked, row: Any) -> tuple[int, float, list[str]] | None:
    """How far a context is from what was asked: differing fields, distance of shape, and the texts; None for a damaged row."""
    stored = shared(row)
    if stored is None:
        return None
    texts = differences(asked.target["hard"], stored.target["hard"], "target.hard")
    texts += differences(*said(asked.policy, stored.policy), "policy")
    key_fields = len(texts)
    distance = 0.0
    if row.workload_hash != asked.key.workload_hash and asked.workload is not None:
        texts += differences(asked.workload, stored.workload, "workload")
        distance = shape_distance(asked.workload, stored.workload)
    if not texts and row.workload_hash == asked.key.workload_hash:
        texts.append(f"schema: asked {asked.key.schema}, stored another version")
    return (
        key_fields,
        distance,
        texts or [f"workload: asked {asked.key.workload_hash}, stored {row.workload_hash}"],
    )


def shape_distance(one: object, other: object) -> float:
    """How far two workloads of a family are apart: the sum of |log2| of the ratios of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(one.get(name), other.get(name)) for name in one.keys() | other.keys()]
        return sum(shape_distance(a, b) for a, b in pairs)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return sum(shape_distance(a, b) for a, b in zip(one, other, strict=True))
    if one == other:
        return 0.0
    if isinstance(one, int | float) and isinstance(other, int | float) and one > 0 and other > 0:
        return abs(math.log2(one) - math.log2(other))
    return 1.0


def _sample(connection: sa.Connection, reader: Reader, keys: Sequence[str]) -> Record | None:
    of_key = select_rows().where(RECORDS.c.key_digest.in_(keys))
    fastest = of_key.where(RECORDS.c.status == "ok").order_by(RECORDS.c.median_ns, RECORDS.c.id).limit(1)
    latest = of_key.order_by(RECORDS.c.id.desc()).limit(1)
    found = reader.read(connection, fastest) or reader.read(connection, latest)
    return found[0][1] if found else None
