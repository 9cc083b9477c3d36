"""`/firsthand/engine/…`: the feed of a real engine, and that it costs nothing unseen.

Owns: proof of `routes/live.py` and `observe/live.py`. Read next: `page/test_engine_view.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from firsthand.errors import CapacityExceeded
from firsthand.observe.live import MAX_STEPS, MAX_WATCHERS
from firsthand.server.house import House
from tests.server.conftest import Client, Live

BODY = {"prompt": "abc", "max_tokens": 6, "ignore_eos": True}


def news(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def of_models(found: Iterator[dict[str, Any]], part: str) -> Iterator[Any]:
    """That part of each piece of news about the one model that has it."""
    for one in found:
        for model in one.get("models", ()):
            if part in model:
                yield model[part]


@pytest.mark.native
def test_a_watcher_sees_a_request_from_its_queue_to_its_end(live: Live) -> None:
    url = live.running.url
    with httpx.stream("GET", f"{url}/firsthand/engine/stream", timeout=20) as stream:
        found = news(stream)
        first = next(found)
        (model,) = first["models"]
        assert (model["name"], model["state"]["status"]) == ("micro", "ready")
        assert model["model"]["sha256"] == live.service.model.manifest_sha256
        assert {one["name"] for one in first["checks"]} >= {"engine:micro"}
        headers = {"x-request-id": "my-own-id"}
        httpx.post(f"{url}/v1/completions", json=BODY, headers=headers, timeout=20)
        steps: list[dict[str, Any]] = []
        for more in of_models(found, "steps"):
            steps += more
            if sum(step["num_finished"] for step in steps):
                break
        (began,) = [one for step in steps for one in step["began"]]
        assert began["name"] == "my-own-id"
        assert [step["who"][0] for step in steps] == [
            [began["id"], count] for count in (3, 1, 1, 1, 1, 1)
        ]
        numbers = [step["n"] for step in steps]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all(len(step["ms"]) == 5 and min(step["ms"]) >= 0 for step in steps)
        for picture in of_models(found, "picture"):
            if not picture["running"]:
                break


@pytest.mark.native
def test_the_state_is_one_answer(live: Live) -> None:
    state = httpx.get(f"{live.running.url}/firsthand/engine/state", timeout=20).json()
    assert state["demo"] is False and state["version"] == "unknown"
    (model,) = state["models"]
    assert model["picture"]["running"] == [] and model["picture"]["shares"] == [8, 4, 1]
    assert model["load"]["num_blocks"] == live.service.model.num_blocks


@pytest.mark.native
def test_nothing_is_kept_while_nobody_watches(live: Live) -> None:
    followed = live.house.live._followed[id(live.service)]
    httpx.post(f"{live.running.url}/v1/completions", json=BODY, timeout=20)
    assert len(followed.steps) == 0

    async def watch() -> tuple[int, int]:
        with live.house.live.watch() as watch:
            for _ in range(MAX_STEPS + 10):
                followed.stepped(FACTS)
            (model,) = watch.news()["models"]
            return len(model["steps"]), model["num_left_out"]

    from tests.generation.test_frames import FACTS

    assert live.running.call(watch) == (MAX_STEPS, 10)
    assert len(followed.steps) == 0


def test_so_many_may_watch(house: House) -> None:
    from contextlib import ExitStack

    with ExitStack() as held:
        for _ in range(MAX_WATCHERS):
            held.enter_context(house.live.watch())
        with pytest.raises(CapacityExceeded), house.live.watch():
            pass
    with house.live.watch():
        pass


def test_without_teaching_mode_an_engine_cannot_be_held(ask: Client) -> None:
    reply = ask("POST", "/firsthand/engine/pace", json={"paused": True})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
