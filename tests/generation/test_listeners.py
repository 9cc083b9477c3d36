"""Whoever listens is never a reason for what it is told of to fail."""

from __future__ import annotations

import logging

import pytest

from firsthand.generation.listeners import Listeners


def test_obs_2_one_that_raises_is_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    listeners: Listeners[int] = Listeners()
    seen: list[int] = []

    def broken(value: int) -> None:
        raise ValueError("a counter cannot go down")

    listeners.add(broken)
    end = listeners.add(seen.append)
    with caplog.at_level(logging.ERROR):
        listeners.tell(1)
        listeners.tell(2)
    assert seen == [1, 2] and len(caplog.records) == 1
    end()
    listeners.tell(3)
    assert seen == [1, 2]
