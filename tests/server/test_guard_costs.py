"""What one request may cost: ranges, links, many faults, many prompts; limits that are reloaded.

Owns: proof that a refused request costs no more than its reading. Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pydantic import ValidationError

from firsthand.errors import ContextLengthExceeded
from firsthand.server.configured import Configured
from firsthand.server.wire.chat import ChatBody
from tests.server.guarded import AUTH, CHAT, Guarded, guarded, statuses
from tests.server.test_guard_http import PATH, error

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as found:
        yield found


def test_s_33_ranges_are_not_looked_at(server: Guarded) -> None:
    """A header of ten thousand ranges costs what a header costs."""
    parts = ",".join(f"{at}-{at + 1}" for at in range(0, 4000, 2))
    began_s = time.process_time()
    statuses_found = [server.get("/docs", AUTH + f"Range: bytes={parts}\r\n")[0] for _ in range(5)]
    assert set(statuses_found) <= {200, 431}
    assert time.process_time() - began_s < 0.5


@pytest.mark.parametrize(
    "link",
    ["http://127.0.0.1:{port}/x.png", "![](http://127.0.0.1:{port}/x)", "file:///etc/passwd"],
)
def test_s_91_no_link_in_a_text_is_followed(server: Guarded, link: str) -> None:
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.settimeout(0.2)
        link = link.format(port=trap.getsockname()[1])
        text = {"messages": [{"role": "user", "content": link}], "max_tokens": 8}
        image = [{"type": "image_url", "image_url": {"url": link}}]
        asked = {"messages": [{"role": "user", "content": image}], "max_tokens": 8}
        assert server.post(PATH, json.dumps(text).encode())[0] == 200
        assert server.post(PATH, json.dumps(asked).encode())[0] == 400
        with pytest.raises(TimeoutError):
            trap.accept()


def test_a_reload_changes_the_limits_of_what_comes_in() -> None:
    """Each setting that says so; the next request is held to it."""
    large = CHAT + b" " * 8000
    with guarded(max_body_size=4096, max_header_size=2048, receive_timeout=60.0) as server:
        many = AUTH + "".join(f"X-{number}: {'a' * 300}\r\n" for number in range(9))
        assert server.post(PATH, large)[0] == 413
        assert server.post(PATH, CHAT, many)[0] == 431
        before = server.running.configured
        after = replace(
            before.settings, max_body_size=1 << 20, max_header_size=8192, receive_timeout=0.2
        )
        server.running.reread = lambda: Configured(after, before.origins)
        found = server.running.reload()
        assert set(found["changed"]) == {"max_body_size", "max_header_size", "receive_timeout"}
        assert server.post(PATH, large)[0] == 200
        assert server.post(PATH, CHAT, many)[0] == 200
        assert statuses(server.exchange(b"GET /health HT")) == [408]


def test_what_was_admitted_and_can_never_run_costs_its_key_nothing() -> None:
    """The prompt's length is seen after the gate; the same answer comes again and again."""

    def refuse(*_: object, **__: object) -> None:
        raise ContextLengthExceeded("prompt", "it is too long")

    with guarded(tokens_per_minute=100) as server:
        server.service.submit = refuse  # type: ignore[method-assign, assignment]
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60}
        for _ in range(4):
            status, answer = server.post(PATH, json.dumps(asked).encode())
            assert (status, error(answer)["code"]) == (400, "context_length_exceeded")
        assert server.running.gate.num_open == 0
        assert server.running.gate.queue("micro").ended_per_s is None


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": [{"type": "zzz", "text": 1}] * 5000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 5000}]},
        {"messages": [{"role": "nobody"}] * 1000},
        {"logit_bias": {str(number): "x" for number in range(5000)}},
    ],
    ids=["parts of no kind", "many parts", "messages of nobody", "biases"],
)
def test_prompt_10_many_faults_are_not_all_written(more: dict[str, object]) -> None:
    """The first one ends the reading of its list."""
    with pytest.raises(ValidationError) as found:
        ChatBody.model_validate({"messages": [{"role": "user", "content": "hi"}], **more})
    assert found.value.error_count() <= 3  # a choice of forms has one of each


def test_prompt_10_many_fields_are_refused_before_they_are_looked_at(server: Guarded) -> None:
    body = json.dumps({f"f{number}": 1 for number in range(300)}).encode()
    status, answer = server.post(PATH, body)
    assert (status, error(answer)["message"]) == (400, "the body: at most 256 fields")


def test_a_request_of_many_prompts_is_refused_whole() -> None:
    """More than there ever are is the caller's to change; one that is refused is no load."""
    with guarded(max_num_queued_reqs=4) as server:
        bounds = server.running.gate.queue("micro").bounds
        server.running.gate.set_bounds(replace(bounds, max_running=4))
        asked = {"prompt": ["a"] * 60, "max_tokens": 1}
        status, answer = server.post("/v1/completions", json.dumps(asked).encode())
        assert (status, error(answer)["param"]) == (400, "prompt")
        assert server.running.gate.level() == 0
