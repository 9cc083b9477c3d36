"""Who waits, in which order and why: of an engine that is written down.

Owns: proof of `queue_view.py` and of its route. Read next: `tests/server/page/test_engine_view.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from firsthand.generation.frames import Pace
from firsthand.generation.service import Load
from firsthand.observe.metrics import Metrics
from firsthand.observe.queue_view import REASONS, queue_of
from firsthand.scheduling.picture import Picture, Pictured
from firsthand.server.house import House
from tests.server.conftest import asking
from tests.server.fakes import FakeService

WAITS = Pictured("e-1", 0, 1, 0, 4.0, 20, 24, 0, 0)
RUNS = (replace(WAITS, request_id="e-0"),) * 8
LOAD = Load(9, 1, 8, (0, 1, 0), (0, 8, 0), 30, 32, 0, 0, 0, 0, 0, 0, 0.5, 0.0, 0.0)


class Busy(FakeService):
    """Eight run, one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False
        self.load_now = LOAD
        self.picture_now = Picture(10.0, RUNS, (WAITS,), (), (8, 4, 1))

    @property
    def load(self) -> Load:
        return self.load_now

    @property
    def pace(self) -> Pace:
        return Pace(paused=self.is_paused)

    @property
    def picture(self) -> Picture:
        return self.picture_now


def row(service: Busy) -> dict[str, Any]:
    (found,) = queue_of(service, lambda request_id: f"my-{request_id}")["queue"]
    assert isinstance(found, dict)
    return found


def test_a_place_in_the_queue_is_told_with_all_that_decides_it() -> None:
    service = Busy()
    assert row(service) == {
        "position": 1, "id": "my-e-1", "engine_id": "e-1", "class": "normal", "level": "urgent",
        "age_s": 6.0, "prompt_tokens": 20, "preemptions": 0, "starts_in_s": 2.0, "why": "full",
    }  # fmt: skip
    found = queue_of(service, lambda request_id: None)
    assert (found["running"], found["places"], found["waiting"]) == (8, 8, 1)
    owed = [one["guaranteed"] for one in found["classes"]]
    assert owed == pytest.approx([8 / 13, 4 / 13, 1 / 13])
    service.load_now = replace(LOAD, ended_per_s=0.0)
    assert row(service)["starts_in_s"] is None


def test_each_reason_to_wait_is_found() -> None:
    service, seen = Busy(), set()
    for running, free, changed in (
        (RUNS, 2, {}),
        ((), 2, {"num_preemptions": 1}),
        ((), 1, {}),
        ((), 2, {"level": -1}),
        ((), 2, {}),
    ):
        waits = replace(WAITS, **changed)  # type: ignore[arg-type]
        service.picture_now = Picture(10.0, running, (waits,), (), (8, 4, 1))
        service.load_now = replace(LOAD, num_used_blocks=LOAD.num_blocks - free)
        seen.add(row(service)["why"])
    service.is_paused = True
    seen.add(row(service)["why"])
    assert seen == set(REASONS)


def test_the_route_tells_of_every_model_and_of_ones_own_ids_alone() -> None:
    service = Busy()
    house = House({"micro": service}, Metrics())
    ask = asking(house)
    house.live.name(service, "e-1", "mine", "")
    (model,) = ask("GET", "/firsthand/queue").json()["models"]
    assert (model["name"], model["queue"][0]["id"]) == ("micro", "mine")
    house.live.name(service, "e-1", "another's", "another-key")
    (model,) = ask("GET", "/firsthand/queue").json()["models"]
    assert model["queue"][0]["id"] is None
