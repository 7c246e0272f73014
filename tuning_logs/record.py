"""The record: what one measurement of one candidate said, and everything needed to believe it later.

A record is plain data: it knows no class of the layers below, only their printed forms, so that an upgrade of
the code never orphans a log. Every `Record` in memory is valid, because the constructor checks each field; a
line that is not valid never becomes one.

Schema: a field may be *added* without a new `SCHEMA_VERSION`; a reader that does not know it keeps it in
`extra` and writes it back. Changing or removing the meaning of a field takes a new version, which older code
refuses.

Key: workload, *hard* fields of the target, measurement policy, schema version. The soft fields of a target
(clock governor, driver build...) are stored and compared, but do not separate records.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tilewright.tuning_logs import fields as check
from tilewright.tuning_logs.fields import RecordError, canonical_json, digest, parse_json, refuse

SCHEMA_VERSION = 1

STATUSES = (
    "ok",
    "rejected",
    "compile_error",
    "compile_timeout",
    "run_error",
    "crash",
    "run_timeout",
    "wrong_result",
    "duplicate",
    "pruned_slow",
)


class Key(NamedTuple):
    """What must be equal for one record to answer for another."""

    workload_hash: str
    target_hash: str
    policy_hash: str
    schema: int = SCHEMA_VERSION

    def digest(self) -> str:
        """One short text for the whole key."""
        return digest(canonical_json(list(self)))


def target_hash(target: Mapping[str, object]) -> str:
    """The hash of the hard fields of `target`, a mapping `{"hard": {...}, "soft": {...}}`.

    Raises `RecordError`.
    """
    return digest(canonical_json(_target(target)["hard"]))


def policy_text(policy: str | Mapping[str, object]) -> str:
    """The canonical text of a measurement policy, given as a mapping or as JSON text.

    Raises `RecordError`.
    """
    value = parse_json(policy, "policy") if isinstance(policy, str) else policy
    return canonical_json(check.mapping("policy", value))


def policy_hash(policy: str | Mapping[str, object]) -> str:
    """The hash of a measurement policy. Raises `RecordError`."""
    return digest(policy_text(policy))


def candidate_id(schedule: str, params: Mapping[str, int]) -> str:
    """The identity of a candidate within a key: its printed steps and its parameters.

    Raises `RecordError`.
    """
    return _candidate_id(check.text("schedule", schedule), check.integers("params", params))


def utc_now() -> str:
    """The time as records write it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _candidate_id(schedule: str, params: dict[str, int]) -> str:
    return digest(canonical_json([schedule, params]))


def _target(value: object) -> dict[str, Any]:
    result = check.mapping("target", value)
    if set(result) != {"hard", "soft"}:
        refuse("target", 'an object with exactly the parts "hard" and "soft"', value)
    for part in ("hard", "soft"):
        if not isinstance(result[part], dict):
            refuse(f"target.{part}", "an object", result[part])
    return result


def _json_text(name: str, value: object) -> str:
    text = check.text(name, value)
    parse_json(text, name)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        refuse(name, "text that UTF-8 can hold", text)
    return text


def _status(name: str, value: object) -> str:
    if not isinstance(value, str) or value not in STATUSES:
        refuse(name, f"one of {', '.join(STATUSES)}", value)
    return value


def _schema(name: str, value: object) -> int:
    version = check.integer(name, value, 1)
    if version > SCHEMA_VERSION:
        refuse(name, f"a schema version up to {SCHEMA_VERSION} (newer records need a newer tilewright)", value)
    return version


def _optional_text(name: str, value: object) -> str | None:
    return None if value is None else check.text(name, value)


# How each field is checked and normalised, in the order in which a record is written.
_CHECKS: dict[str, Callable[[str, object], object]] = {
    "schema": _schema,
    "workload_hash": check.token,
    "workload": _json_text,
    "family": check.token,
    "target": lambda name, value: _target(value),
    "policy": lambda name, value: policy_text(check.text(name, value)),
    "sketch": check.text,
    "schedule": check.text,
    "params": check.integers,
    "is_default": check.flag,
    "status": _status,
    "median_ns": lambda name, value: check.optional_number(name, value, positive=True),
    "samples_ns": check.numbers_tuple,
    "noise": check.optional_number,
    "stop_reason": check.text,
    "error": _optional_text,
    "max_error": check.optional_number,
    "error_bound": lambda name, value: check.optional_number(name, value, positive=True),
    "build_s": check.number,
    "run_s": check.number,
    "run_id": check.token,
    "trial": lambda name, value: check.integer(name, value, 0),
    "elapsed_s": check.number,
    "predicted_ns": lambda name, value: check.optional_number(name, value, positive=True),
    "strategy": check.text,
    "seed": check.integer,
    "created": check.utc_time,
    "versions": check.strings,
    "load": check.mapping,
    "compared": check.comparisons,
    "extra": check.mapping,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement of one candidate. Raises `RecordError` for a field that is not valid.

    `target_hash` and `policy_hash` follow from `target` and `policy`: leave them out. If given, they must
    agree. `status` is "ok" exactly when `median_ns` is given. A relative error or a prediction that is not
    finite is written as None; put the story into `error`.
    """

    # key
    workload_hash: str
    workload: str  # canonical JSON text
    family: str  # hash of the workload with its extents abstracted
    target: dict[str, Any]  # {"hard": {...}, "soft": {...}}
    policy: str  # canonical JSON text, e.g. {"cache":"hot","timer":"loop"}
    target_hash: str = ""
    policy_hash: str = ""
    # candidate
    sketch: str
    schedule: str  # printed steps
    params: dict[str, int]
    is_default: bool
    # outcome
    status: str
    median_ns: float | None = None
    samples_ns: tuple[float, ...] = ()
    noise: float | None = None  # relative half-width of the confidence interval of the median
    stop_reason: str = ""
    error: str | None = None
    max_error: float | None = None  # checked relative error
    error_bound: float | None = None
    """Of an algorithm that magnifies rounding errors: the largest error of an element over the sum of the magnitudes of its
    terms, for any input. None for sums as they are written."""
    build_s: float = 0.0
    run_s: float = 0.0
    # provenance
    run_id: str
    trial: int
    elapsed_s: float  # since the start of the run
    predicted_ns: float | None = None
    strategy: str = ""
    seed: int = 0
    created: str = field(default_factory=utc_now)
    versions: dict[str, str] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    compared: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of a default that was measured side by side with others: candidate -> its time over the default's (`ratio`,
    with the interval `low` to `high`) and the `margin` by which the default differed from itself."""
    schema: int = SCHEMA_VERSION
    extra: dict[str, Any] = field(default_factory=dict)  # fields of a newer writer, kept as they came

    def __post_init__(self) -> None:
        for name, checked in _CHECKS.items():
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        self._derive("target_hash", digest(canonical_json(self.target["hard"])))
        self._derive("policy_hash", digest(self.policy))
        if (self.status == "ok") != (self.median_ns is not None):
            expected = "a number > 0, because status is ok" if self.status == "ok" else f"null for {self.status}"
            refuse("median_ns", expected, self.median_ns)
        clash = sorted(set(self.extra) & _NAMES)
        if clash:
            refuse("extra", "only names that are not fields of a record", clash)

    def _derive(self, name: str, value: str) -> None:
        if getattr(self, name) not in ("", value):
            refuse(name, f"{value} (or leave it out: it follows from the data)", getattr(self, name))
        object.__setattr__(self, name, value)

    @property
    def candidate(self) -> str:
        """The identity of the candidate, equal for repeated measurements of it."""
        return _candidate_id(self.schedule, self.params)

    def key(self) -> Key:
        """What must be equal for this record to answer a lookup."""
        return Key(self.workload_hash, self.target_hash, self.policy_hash, self.schema)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this record, with the fields of `extra` at its top level."""
        data = {name: getattr(self, name) for name in _WRITTEN}
        data["samples_ns"] = list(self.samples_ns)
        if self.error_bound is None:
            del data["error_bound"]
        if not self.compared:
            del data["compared"]  # most records have none; and older ones stay equal to themselves
        return data | self.extra

    def to_json_line(self) -> str:
        """One line of ASCII JSON, without the newline. `from_json_line` gives an equal record back."""
        return canonical_json(self.to_dict(), "record")

    @classmethod
    def from_dict(cls, data: object) -> "Record":
        """The record of a JSON object. Raises `RecordError`."""
        if not isinstance(data, dict):
            refuse("(whole line)", "a JSON object", data)
        _schema("schema", data.get("schema"))  # before anything else: a newer schema may lack or rename fields
        missing = sorted(_REQUIRED - set(data))
        if missing:
            refuse(missing[0], "a value", "nothing: the field is missing")
        known = {name: data[name] for name in _WRITTEN if name in data}
        return cls(**known, extra={name: value for name, value in data.items() if name not in known})

    @classmethod
    def from_json_line(cls, line: str | bytes) -> "Record":
        """The record of one line. Raises `RecordError` saying which field, expected what, got what."""
        return cls.from_dict(parse_json(line, "(whole line)"))


_WRITTEN = tuple(f.name for f in dataclasses.fields(Record) if f.name != "extra")
_NAMES = frozenset(_WRITTEN) | {"extra"}
_REQUIRED = frozenset(
    f.name
    for f in dataclasses.fields(Record)
    if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
) | {"schema", "created"}

__all__ = [
    "SCHEMA_VERSION",
    "STATUSES",
    "Key",
    "Record",
    "RecordError",
    "candidate_id",
    "policy_hash",
    "policy_text",
    "target_hash",
    "utc_now",
]
