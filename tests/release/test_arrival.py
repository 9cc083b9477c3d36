"""A server that takes another's place: its settings are those of the files, its models the other's.

Owns: proof of what is read at its start and again. Read next: `test_engines.py`, real processes.
"""

from __future__ import annotations

import socket

import pytest

from firsthand.errors import InvalidRequest
from firsthand.server.arrival import Arrival
from firsthand.server.configured import Configured, changed
from firsthand.server.model_entries import ModelEntry
from firsthand.server.settings import Settings


def settings(*paths: str) -> Settings:
    return Settings(model=tuple(map(ModelEntry, paths)))


def arrived(places: list[str | None]) -> Arrival:
    channel = socket.socket()
    channel.close()
    return Arrival(channel, [], None, channel, places, [0 for _ in places])


def test_a_release_that_was_put_in_place_since_is_no_change_of_the_settings() -> None:
    taken = arrived([None, "/store/releases/2"])
    read = Configured(settings("plain", "/store/current"), {})
    taken.check_models(read.settings)
    now = taken.placed(read).settings
    assert [one.path for one in now.model] == ["plain", "/store/releases/2"]
    assert changed(now, taken.placed(read).settings) == ([], [])


def test_other_models_are_refused_at_the_start_and_told_when_they_are_read_again() -> None:
    taken = arrived(["/store/releases/2"])
    now = taken.placed(Configured(settings("/store/current"), {})).settings
    more = Configured(settings("/store/current", "plain"), {})
    with pytest.raises(InvalidRequest, match="the settings name 2 now, and 1 are served"):
        taken.check_models(more.settings)
    assert changed(now, taken.placed(more).settings) == ([], ["model"])
