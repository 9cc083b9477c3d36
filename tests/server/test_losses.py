"""The engine's process dies or a client asks for too much: what the others notice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from tests.server.conftest import Live, live_server
from tests.server.running import post
from tests.server.test_connections import CHAT, body, events, read_all, until

pytestmark = pytest.mark.native


@pytest.fixture
def mortal(micro_folder: Path) -> Iterator[Live]:
    options = ServiceOptions(micro_folder, LoadOptions(threads=1), name="micro")
    with live_server(options) as server:
        yield server


def test_ops_1_a_dead_engine_is_seen_told_and_replaced(mortal: Live) -> None:
    with mortal.running.connect() as opened:
        opened.sendall(post(CHAT, body(max_tokens=450, ignore_eos=True, n=16)))
        until(lambda: mortal.service.load.num_used_blocks > 0)
        pid = mortal.service.state.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        started_s = time.monotonic()
        found = events(read_all(opened))
        assert time.monotonic() - started_s < 20
    last = json.loads(found.split(b"\n\n")[-2].removeprefix(b"data: "))
    assert last["error"]["code"] == "loading"
    assert "lost with this request" in last["error"]["message"]
    assert b"[DONE]" not in found
    url = mortal.running.url
    assert httpx.get(f"{url}/livez").status_code == 200
    until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
    assert mortal.service.state.num_restarts == 1
    answer = mortal.client.completions.create(model="micro", prompt="abc", max_tokens=3)
    assert answer.usage.completion_tokens > 0


def test_prompt_10_a_huge_prompt_holds_nobody_up(live: Live) -> None:
    url = live.running.url

    def huge() -> openai.APIStatusError:
        with pytest.raises(openai.BadRequestError) as refused:
            live.client.completions.create(model="micro", prompt="word " * 1_000_000)
        return refused.value

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(huge)
        longest_s = 0.0
        while not asked.done():
            started_s = time.monotonic()
            assert httpx.get(f"{url}/health").status_code == 200
            longest_s = max(longest_s, time.monotonic() - started_s)
    assert asked.result().code == "context_length_exceeded"
    assert longest_s < 1.0


def test_s_51_equal_request_ids_do_not_meet(live: Live) -> None:
    prompts = [f"{number:03}" for number in range(24)]
    headers = {"X-Request-Id": "same"}

    def ask(prompt: str, more: dict[str, str]) -> str:
        answer = live.client.completions.create(
            model="micro", prompt=prompt, max_tokens=8, seed=1, extra_headers=more
        )
        assert not more or answer._request_id == "same"
        text: str = answer.choices[0].text
        return text

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda prompt: ask(prompt, headers), prompts))
    assert together == [ask(prompt, {}) for prompt in prompts]


def test_s_43_what_can_never_fit_is_refused_at_once(live: Live) -> None:
    started_s = time.monotonic()
    with pytest.raises(openai.BadRequestError):
        live.client.completions.create(model="micro", prompt=[1] * 5000)
    assert time.monotonic() - started_s < 2.0
