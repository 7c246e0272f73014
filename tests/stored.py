"""Records for the tests of the store, and what a look-up must answer."""

from typing import Any

from tilewright.tuning_logs import Hit, Miss, Record

HOST: dict[str, Any] = {"hard": {"arch": "x86", "threads": 1}, "soft": {"governor": "performance"}}
HOT = {"cache": "hot", "timer": "loop"}


def make(**changes: Any) -> Record:
    """A valid record with `changes`."""
    values: dict[str, Any] = {
        "workload_hash": "w1",
        "workload": '{"op":"matmul","shape":[64,64]}',
        "family": "f1",
        "target": HOST,
        "policy": '{"cache":"hot","timer":"loop"}',
        "sketch": "contraction",
        "schedule": "split i 4",
        "params": {"tile": 4},
        "is_default": False,
        "status": "ok",
        "median_ns": 100.0 if changes.get("status", "ok") == "ok" else None,
        "run_id": "run",
        "trial": 0,
        "elapsed_s": 1.0,
        "created": "2025-01-01T00:00:00+00:00",
    }
    return Record(**(values | changes))


def hit(answer: Hit | Miss) -> Hit:
    """The answer, which must be a hit."""
    assert isinstance(answer, Hit), answer
    return answer


def miss(answer: Hit | Miss) -> Miss:
    """The answer, which must be a miss."""
    assert isinstance(answer, Miss), answer
    return answer
