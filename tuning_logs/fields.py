"""Canonical text, hashes and the checks that every field of a record goes through.

One place makes the error text, so that each refusal reads the same: which field, what was expected, what
came. Numbers are normalised to plain `int` and `float` here (NumPy scalars are accepted), so that what was
stored is what is read back.
"""

import hashlib
import json
import math
import numbers
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from tilewright.graph import strict_json

_TOKEN = re.compile(r"[!-~]{1,200}")
_SHOWN = 120


class RecordError(ValueError):
    """Not a valid record, or line of one; the text says which field, what was expected, what came."""


def refuse(field: str, expected: str, got: object) -> NoReturn:
    """Raise the `RecordError` for `field`."""
    shown = repr(got)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + f"... ({len(shown)} characters)"
    raise RecordError(f"record field '{field}': expected {expected}, got {shown}")


def canonical_json(value: object, field: str = "value") -> str:
    """The one ASCII text of a JSON value: keys sorted, no spaces.

    Raises `RecordError` for what JSON cannot hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        refuse(field, f"plain JSON data with finite numbers ({error})", value)


def parse_json(text: str | bytes, field: str) -> Any:
    """Parse strict JSON (see `strict_json`). Raises `RecordError`."""
    try:
        return strict_json.loads(text)
    except ValueError as error:
        refuse(field, f"JSON text ({error})", text)


def digest(text: str) -> str:
    """A 128-bit content hash of `text` as 32 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def text(field: str, value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        refuse(field, "a string", value)
    return str(value)


def token(field: str, value: object) -> str:
    """A hash, an identifier: text that any database can index."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        refuse(field, "1 to 200 printable ASCII characters without spaces", value)
    return str(value)


def flag(field: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(field, "true or false", value)
    return value


def integer(field: str, value: object, least: int | None = None) -> int:
    """An integer, not a truth value; at least `least` and below 2**63 where a bound is given."""
    expected = "an integer" if least is None else f"an integer >= {least} and < 2**63"
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        refuse(field, expected, value)
    number = int(value)
    if least is not None and not least <= number < 2**63:
        refuse(field, expected, value)
    return number


def number(field: str, value: object, positive: bool = False) -> float:
    """A finite number, not negative; above zero if `positive`."""
    expected = "a finite number > 0" if positive else "a finite number >= 0"
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        refuse(field, expected, value)
    try:
        result = float(value)
    except OverflowError:
        refuse(field, expected, value)
    if not math.isfinite(result) or result < 0 or (positive and result == 0):
        refuse(field, expected, value)
    return result


def optional_number(field: str, value: object, positive: bool = False) -> float | None:
    """None, or a number as above."""
    return None if value is None else number(field, value, positive)


def numbers_tuple(field: str, value: object) -> tuple[float, ...]:
    """A tuple (in JSON a list) of finite numbers >= 0."""
    if not isinstance(value, tuple | list):
        refuse(field, "a list of finite numbers", value)
    return tuple(number(f"{field}[{index}]", item) for index, item in enumerate(value))


def mapping(field: str, value: object) -> dict[str, Any]:
    """An own copy of a JSON object, with sorted keys."""
    if not isinstance(value, Mapping):
        refuse(field, "an object with string keys", value)
    return cast("dict[str, Any]", json.loads(canonical_json(dict(value), field)))


def integers(field: str, value: object) -> dict[str, int]:
    """An object of integers."""
    if not isinstance(value, Mapping):
        refuse(field, "an object of integers", value)
    for name in value:
        text(f"{field} key", name)
    return {name: integer(f"{field}.{name}", value[name]) for name in sorted(value)}


def strings(field: str, value: object) -> dict[str, str]:
    """An object of strings."""
    if not isinstance(value, Mapping):
        refuse(field, "an object of strings", value)
    for name in value:
        text(f"{field} key", name)
    return {name: text(f"{field}.{name}", value[name]) for name in sorted(value)}


def utc_time(field: str, value: object) -> str:
    """An ISO 8601 time in UTC."""
    expected = "an ISO 8601 time in UTC such as 2025-01-31T12:00:00+00:00"
    if not isinstance(value, str):
        refuse(field, expected, value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        refuse(field, expected, value)
    if moment.utcoffset() != timedelta(0):
        refuse(field, expected, value)
    return str(value)


_COMPARISON = ("ratio", "low", "high", "margin")


def comparisons(field: str, value: object) -> dict[str, dict[str, float]]:
    """An own copy of comparisons: candidate -> ratio, low and high (numbers above 0) and margin (at least 0).

    What else an entry holds is kept, if it is a number.
    """
    found: dict[str, dict[str, float]] = {}
    for candidate, entry in mapping(field, value).items():
        name = f"{field}.{candidate}"
        token(name, candidate)
        if not isinstance(entry, dict) or not set(_COMPARISON) <= set(entry):
            refuse(name, f"an object with {', '.join(_COMPARISON)}", entry)
        found[candidate] = {k: number(f"{name}.{k}", v, positive=k in _COMPARISON[:3]) for k, v in entry.items()}
    return found
