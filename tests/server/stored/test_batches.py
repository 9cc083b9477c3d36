"""`/v1/batches` by the official client: each request once, whatever comes between.

Owns: proof of `stored/batches.py`, `stored/runner.py`, `stored/asking.py`. Read next:
`test_killed_batches.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from firsthand.errors import InvalidRequest
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.keys import KeyRing
from firsthand.server.guard.queue import Bounds
from firsthand.server.stored.asking import num_beside
from firsthand.server.stored.stored import owner_of
from tests.server.fakes import Script
from tests.server.guarded import CHAT, KEY, Guarded
from tests.server.stored.test_files import client_of, keeping, wait

URL = "/v1/chat/completions"


SLOW = Script(pause_s=0.2)  # so that a batch is in the middle when it is looked at


def request(number: int, **body: Any) -> dict[str, Any]:
    given = {"messages": [{"role": "user", "content": f"text {number}"}], "max_tokens": 4, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": URL, "body": given}


def lines(*requests: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in requests)


@contextmanager
def asking(folder: Path, **values: Any) -> Iterator[tuple[Guarded, Any]]:
    with keeping(folder, **values) as server, client_of(server) as client:
        yield server, client


def begin(client: Any, content: bytes, endpoint: str = URL, **more: Any) -> str:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    given = {"input_file_id": file.id, "completion_window": "24h", **more}
    return str(client.batches.create(endpoint=endpoint, **given).id)


def ended(client: Any, batch_id: str) -> Any:
    def look() -> bool:
        return client.batches.retrieve(batch_id).status in (
            *("completed", "failed"),
            *("expired", "cancelled"),
        )

    wait(look)
    return client.batches.retrieve(batch_id)


def rows(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).read().splitlines()]


def test_each_request_has_its_line(tmp_path: Path) -> None:
    wrong = request(2, max_tokens="four")
    with asking(tmp_path) as (server, client):
        content = lines(request(0), request(1), wrong, request(3))
        keep = {"anchor": "created_at", "seconds": 3600}
        name = begin(client, content, metadata={"job": "nightly"}, output_expires_after=keep)
        done = ended(client, name)
        assert (done.object, done.status, done.endpoint) == ("batch", "completed", URL)
        assert done.metadata == {"job": "nightly"} and done.errors is None
        assert done.expires_at == done.created_at + 86400
        assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (4, 3, 1)
        answers, errors = rows(client, done.output_file_id), rows(client, done.error_file_id)
        assert [one["custom_id"] for one in answers] == ["r0", "r1", "r3"]
        assert {one["response"]["status_code"] for one in answers} == {200}
        assert {one["error"] for one in answers} == {None}
        assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
        assert len({one["id"] for one in answers}) == 3
        assert [one["custom_id"] for one in errors] == ["r2"]
        assert errors[0]["response"]["status_code"] == 400
        assert errors[0]["response"]["body"]["error"]["param"] == "max_tokens"
        output = client.files.retrieve(done.output_file_id)
        assert (output.purpose, output.filename) == ("batch_output", f"{name}_output.jsonl")
        assert output.expires_at == output.created_at + 3600
        assert [one.id for one in client.files.list(purpose="batch_output")][-1] == output.id
        # Each is a request of its own to the recorder, under the key's name and its record's trace.
        known = answers[0]["response"]["request_id"]
        status, told = server.get(f"/firsthand/requests/{known}")
        assert status == 200 and f'"trace_id":"{known.removeprefix("rec-")}"'.encode() in told
        assert {one["priority"] for one in server.service.options} == {"background"}
        assert sorted(path.name for path in (tmp_path / "kept/work").iterdir()) == [
            f"{name}.out.jsonl.ledger"
        ]


def test_batches_have_pages_and_owners(tmp_path: Path) -> None:
    other = "other-key-0123456789"
    with asking(tmp_path, api_key=(KEY, other)) as (server, client):
        names = [begin(client, lines(request(0))) for _ in range(3)]
        for name in names:
            assert ended(client, name).status == "completed"
        page = client.batches.list(limit=2)
        assert [one.id for one in page.data] == names[:0:-1] and page.has_more
        assert [one.id for one in page] == names[::-1]
        with client_of(server, other) as foreign:
            assert foreign.batches.list().data == []
            for ask in (foreign.batches.retrieve, foreign.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    ask(names[0])
        with pytest.raises(openai.BadRequestError, match="completed"):
            client.batches.cancel(names[0])


def test_a_file_that_is_wrong_fails_as_a_whole_and_costs_nothing(tmp_path: Path) -> None:
    content = lines(
        request(0),
        request(0),
        {**request(1), "url": "/v1/embeddings"},
        {**request(2), "url": "/v1/models"},
        {**request(3), "method": "GET"},
        request(4, stream=True),
        {"custom_id": "r5"},
    )
    with asking(tmp_path) as (server, client):
        done = ended(client, begin(client, content + b"{\n"))
        assert done.status == "failed" and done.failed_at and done.in_progress_at is None
        assert [(one.line, one.code, one.param) for one in done.errors.data] == [
            (2, "duplicate_custom_id", "custom_id"),
            (3, "mismatched_endpoint", "url"),
            (4, "invalid", "url"),
            (5, "invalid", "method"),
            (6, "invalid", "body"),
            (7, "missing_field", "url"),
            (8, "bad_json", None),
        ]
        assert done.output_file_id is None and done.error_file_id is None
        done = ended(client, begin(client, b"\n\n"))
        assert [one.code for one in done.errors.data] == ["num_requests"]
        assert server.service.options == []


def test_a_batch_is_cancelled_and_what_was_answered_is_there(tmp_path: Path) -> None:
    with asking(tmp_path, max_num_seqs=2) as (server, client):
        server.service.script = SLOW
        name = begin(client, lines(*map(request, range(400))))
        wait(lambda: client.batches.retrieve(name).request_counts.completed > 0)
        assert client.batches.cancel(name).status == "cancelling"
        done = ended(client, name)
        assert done.status == "cancelled" and done.cancelled_at >= done.cancelling_at
        found = [one["custom_id"] for one in rows(client, done.output_file_id)]
        assert found == [f"r{number}" for number in range(done.request_counts.completed)]
        assert 0 < len(found) < 400
        wait(lambda: not server.running.gate.num_open)


def test_what_is_not_answered_when_a_batch_expires_is_told(tmp_path: Path) -> None:
    with asking(tmp_path, max_num_seqs=2) as (server, client):
        server.service.script = SLOW
        name = begin(client, lines(*map(request, range(300))))
        wait(lambda: client.batches.retrieve(name).request_counts.completed > 0)
        server.running.stored.batches.change(name, lambda now: replace(now, expires_at=1))
        done = ended(client, name)
        counts = done.request_counts
        assert done.status == "expired" and counts.completed + counts.failed == counts.total == 300
        answers, errors = rows(client, done.output_file_id), rows(client, done.error_file_id)
        assert [one["custom_id"] for one in answers + errors] == [f"r{n}" for n in range(300)]
        assert {one["error"]["code"] for one in errors} == {"batch_expired"}


def test_d_5_a_request_that_always_fails_is_told_and_holds_nobody_up(tmp_path: Path) -> None:
    with asking(tmp_path) as (server, client):
        server.service.script = Script(fault=ValueError("broken"))
        done = ended(client, begin(client, lines(request(0))))
        assert done.status == "completed" and done.request_counts.failed == 1
        (error,) = rows(client, done.error_file_id)
        assert (error["custom_id"], error["response"]) == ("r0", None)
        assert error["error"]["code"] == "poison" and len(server.service.options) == 3


def test_a_server_that_ends_and_comes_back_goes_on(tmp_path: Path) -> None:
    """Its input may be deleted meanwhile."""
    requests = [request(number) for number in range(200)]
    with asking(tmp_path, max_num_seqs=2) as (server, client):
        server.service.script = SLOW
        name = begin(client, lines(*requests))
        client.files.delete(client.batches.retrieve(name).input_file_id)
        wait(lambda: client.batches.retrieve(name).request_counts.completed > 0)
        server.running.begin_drain("test")
    with asking(tmp_path) as (server, client):
        done = ended(client, name)
        assert done.status == "completed" and done.request_counts.completed == 200
        found = [one["custom_id"] for one in rows(client, done.output_file_id)]
        assert found == [one["custom_id"] for one in requests]
        assert 0 < len(server.service.options) < 200


def test_a_batch_takes_no_rates_of_its_key_and_a_key_that_is_gone_ends_it(tmp_path: Path) -> None:
    with asking(tmp_path, requests_per_minute=1, max_concurrent_requests=1) as (server, client):
        done = ended(client, begin(client, lines(*map(request, range(8)))))
        assert done.request_counts.completed == 8
        assert server.post(URL, CHAT)[0] == 200
        assert server.post(URL, CHAT)[0] == 429
        server.service.script = Script(endless=True, pause_s=0.01)
        name = begin(client, lines(request(0)))
        wait(lambda: client.batches.retrieve(name).status == "in_progress")
    with keeping(tmp_path, api_key=("other-key-0123456789",)) as server:
        batches = server.running.stored.batches
        wait(lambda: (now := batches.now(name)) is not None and now.status == "failed")
        now = batches.now(name)
        assert now is not None and "no key any more" in now.errors[0]["message"]


def test_batches_leave_the_batch_and_the_queue_to_others() -> None:
    def room(running: int, waiting: int, num_others: int) -> int:
        gate = Gate(Bounds(max_running=running, max_waiting=waiting), lambda: 0.0, random.random)
        gate.queue("micro")
        gate._tickets.update((number, None) for number in range(num_others))  # type: ignore[misc]
        return num_beside(gate, 0)

    assert room(16, 256, 0) == 32
    assert room(4, 4, 0) == 5
    assert room(4, 0, 0) == 3
    assert room(1, 0, 0) == 1
    assert room(16, 256, 6) == 10
    assert room(16, 256, 40) == 1


def test_whose_batch_it_is() -> None:
    assert owner_of(KeyRing({}), "").key_id == ""
    with pytest.raises(InvalidRequest, match="no key"):
        owner_of(KeyRing({}), "abc")
