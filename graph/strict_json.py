"""JSON from files, read strictly: what two readers would understand differently, or what would exhaust one, is refused.

The standard library takes ``NaN``, keeps the last of two equal keys without a word, and lets nesting decide how much stack is used.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

DEPTH = 64
"""Objects and lists inside each other: many times what our own texts have."""


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for text that is no JSON or no UTF-8, for ``NaN`` and ``Infinity``, for an object
    with the same key twice, for integers of thousands of digits, and for nesting deeper than :data:`DEPTH`."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {DEPTH} levels") from error
    opening = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if opening > DEPTH:
        _check_depth(value)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"finite numbers only, got {name!r}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"each key once, got {twice[:60]!r} twice")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        outer = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        if not outer:
            return
        level = [inner for values in outer for inner in values]
    raise ValueError(f"nested deeper than {DEPTH} levels")
