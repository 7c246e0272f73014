"""Priority of measuring processes: asked for, and refused without harm."""

import os

import pytest

from tilewright.measure import priority


def test_it_asks_for_the_highest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "setpriority", lambda *a: asked.append(a))
    monkeypatch.setattr(os, "getsid", lambda _: -1)  # not the leader: the session's weight stays as it is
    assert priority.take_priority()
    assert asked == [(os.PRIO_PROCESS, 0, priority.HIGHEST)]


def test_a_refusal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("no rights")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert not priority.take_priority()
