"""What is read from a model file, checked before it is used. Each refusal is a ValueError; the file's reader says which file."""

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tilewright.cost_model.dataset import TrainingSummary

MOST_THREADS = 1024


def integer(data: Mapping[str, Any], name: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """The integer `name`, from `least` to `most`."""
    value = data[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}: expected an integer from {least} to {most}, got {value!r}")
    return value


def number(data: Mapping[str, Any], name: str) -> float:
    """The finite number `name`."""
    value = data[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return float(value)


def flag(data: Mapping[str, Any], name: str) -> bool:
    """The truth value `name`."""
    value = data[name]
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected true or false, got {value!r}")
    return value


def text(data: Mapping[str, Any], name: str) -> str:
    """The text `name`."""
    value = data[name]
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a string, got {value!r}")
    return value


def mapping(data: object, name: str) -> dict[str, Any]:
    """`data`, which must be an object."""
    if not isinstance(data, dict):
        raise ValueError(f"{name}: expected an object, got {data!r}")
    return data


def summary(value: object) -> TrainingSummary:
    """A summary with a number in every field."""
    data = mapping(value, "summary")
    names = {f.name for f in fields(TrainingSummary)}
    if set(data) != names:
        raise ValueError(f"summary: expected {', '.join(sorted(names))}, got {', '.join(sorted(data))}")
    counts = {name: integer(data, name) for name in names - {"schema_digest"}}
    return TrainingSummary(**counts, schema_digest=text(data, "schema_digest"))


def threads(settings: Mapping[str, Any]) -> int:
    """How many threads a ranker uses: no more than there are cores here, as more would only wait for each other."""
    return min(integer(settings, "n_jobs", 1, MOST_THREADS), os.cpu_count() or 1)
