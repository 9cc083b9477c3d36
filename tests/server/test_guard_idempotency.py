"""Repeated requests: the store, the key's forms, what of a reply is kept.

Owns: proof of `idempotency.py` and `replay.py`. Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.server.guard.idempotency import Replies, Reply, read_key
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.replay import ReplyCopy, fingerprint

REPLY = Reply(200, ((b"content-type", b"text/plain"),), (b"hello",))


def test_the_second_gets_the_reply_of_the_first() -> None:
    replies = Replies()
    assert replies.begin("t", "k", b"f", 0.0) is None
    replies.keep("t", "k", REPLY, 1.0)
    assert replies.begin("t", "k", b"f", 2.0) == REPLY


def refused(replies: Replies, tenant: str, key: str, print_: bytes, now: float) -> Refused:
    with pytest.raises(Refused) as found:
        replies.begin(tenant, key, print_, now)
    return found.value


def test_409_while_it_runs_and_422_for_another_payload() -> None:
    replies = Replies()
    replies.begin("t", "k", b"f", 0.0)
    running = refused(replies, "t", "k", b"f", 0.0)
    assert (running.status, running.code) == (409, "idempotency_in_progress")
    assert dict(running.headers())["retry-after"] == "1"
    reused = refused(replies, "t", "k", b"other", 0.0)
    assert (reused.status, reused.code) == (422, "idempotency_key_reused")
    replies.keep("t", "k", REPLY, 0.0)
    assert refused(replies, "t", "k", b"other", 0.0).status == 422


def test_a_key_belongs_to_one_caller() -> None:
    replies = Replies()
    replies.begin("a", "k", b"f", 0.0)
    replies.keep("a", "k", REPLY, 0.0)
    assert replies.begin("b", "k", b"f", 0.0) is None


def test_what_failed_is_forgotten() -> None:
    replies = Replies()
    replies.begin("t", "k", b"f", 0.0)
    replies.forget("t", "k")
    assert replies.begin("t", "k", b"f", 0.0) is None


def test_a_reply_expires() -> None:
    replies = Replies(ttl_s=10.0)
    replies.begin("t", "k", b"f", 0.0)
    replies.keep("t", "k", REPLY, 5.0)
    assert replies.begin("t", "k", b"f", 14.9) == REPLY
    assert replies.expires_in_s("t", "k", 14.5) == 0.5
    assert replies.begin("t", "k", b"other", 15.0) is None


def test_one_large_reply_does_not_drive_out_the_others() -> None:
    replies = Replies(max_bytes=8000)
    for key, size in (("small", 100), ("large", 1001)):
        replies.begin("t", key, b"f", 0.0)
        replies.keep("t", key, Reply(200, (), (bytes(size),)), 0.0)
    assert replies.begin("t", "small", b"f", 0.0) is not None
    assert replies.begin("t", "large", b"f", 0.0) is None


def test_keys_in_progress_are_bounded_too() -> None:
    replies = Replies(max_entries=3)
    for key in "abc":
        replies.begin("t", key, b"f", 0.0)
    assert refused(replies, "t", "d", b"f", 0.0).status == 503
    replies.keep("t", "a", REPLY, 0.0)
    assert replies.begin("t", "d", b"f", 0.0) is None
    assert len(replies) == 3


@given(
    st.lists(
        st.tuples(st.sampled_from(["keep", "forget"]), st.integers(0, 9), st.integers(0, 400)),
        max_size=80,
    )
)
@settings(deadline=None, max_examples=80)
def test_the_store_keeps_its_bounds(moves: list[tuple[str, int, int]]) -> None:
    replies, now = Replies(ttl_s=20.0, max_entries=6, max_bytes=1600), 0.0
    for verb, key, size in moves:
        now += 1.0
        try:
            kept = replies.begin("t", str(key), b"f", now)
        except Refused:
            continue
        if kept is None and verb == "keep":
            replies.keep("t", str(key), Reply(200, (), (bytes(size),)), now)
        elif kept is None:
            replies.forget("t", str(key))
        held = [entry.reply for entry in replies._entries.values() if entry.reply is not None]
        assert replies.num_bytes == sum(reply.num_bytes for reply in held) <= 1600
        assert len(replies) <= 6


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"abc", "abc"),
        (b'"abc"', "abc"),
        (b'"a b"', "a b"),
        (b'"a\\"b\\\\"', 'a"b\\'),
        (b"8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    ],
)
def test_forms_of_a_key(value: bytes, key: str) -> None:
    assert read_key([value]) == key


@pytest.mark.parametrize(
    "values",
    [
        [b""], [b'""'], [b"a b"], [b'"a'], [b'a"b'], [b"x" * 256], [b"\xff"], [b"a", b"a"],
        [b'"a\\x"'], [b"a\tb"],
    ],
)  # fmt: skip
def test_bad_keys(values: list[bytes]) -> None:
    with pytest.raises(Refused) as found:
        read_key(values)
    assert (found.value.status, found.value.param) == (400, "Idempotency-Key")


def test_no_key() -> None:
    assert read_key([]) is None


def test_fingerprints_differ_in_every_part() -> None:
    parts: list[Any] = ["POST", "/a", b"q", b"json", b"body"]
    whole = fingerprint(*parts)
    for index, part in enumerate(parts):
        changed = [*parts]
        changed[index] = part + (b"x" if isinstance(part, bytes) else "x")
        assert fingerprint(*changed) != whole
    assert fingerprint("POST", "/a", b"qj", b"son", b"body") != whole  # a border that moved


def recorded(*messages: MutableMapping[str, Any], max_bytes: int = 1000) -> ReplyCopy:
    sent = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    recorder = ReplyCopy(send, max_bytes, 60.0)

    async def run() -> None:
        for message in messages:
            await recorder(message)

    asyncio.run(run())
    for one, message in zip(sent, messages, strict=True):
        told = (b"idempotency-expires-in", b"60") in one.get("headers", ())
        assert told is (200 <= message.get("status", 0) < 300)  # else nothing is kept
        assert told or one == message
    return recorder


def start(status: int = 200) -> dict[str, Any]:
    headers = [(b"content-type", b"x"), (b"date", b"now"), (b"x-request-id", b"r")]
    return {"type": "http.response.start", "status": status, "headers": headers}


def chunk(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def test_a_stream_is_kept_chunk_by_chunk() -> None:
    kept = recorded(start(), chunk(b"a"), chunk(b"b"), chunk(b"", more=False)).reply()
    assert kept == Reply(200, ((b"content-type", b"x"),), (b"a", b"b"))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [start()],
        [start(), chunk(b"a")],
        [start(500), chunk(b"a", more=False)],
        [start(400), chunk(b"a", more=False)],
        [start(), chunk(b"x" * 1001, more=False)],
        [start(), chunk(b"a"), chunk(b'data: {"error": {}}\n\n'), chunk(b"", more=False)],
    ],
)
def test_what_is_not_whole_and_good_is_not_kept(messages: list[dict[str, Any]]) -> None:
    assert recorded(*messages).reply() is None


def test_when_to_come_back_is_what_such_requests_took_lately() -> None:
    replies = Replies()

    def wait_s(now: float) -> float | None:
        with pytest.raises(Refused) as running:
            replies.begin("t", "open", b"a", now)
        return running.value.retry_after_s

    assert replies.begin("t", "open", b"a", 0.0) is None
    assert wait_s(0.5) == 1.0  # nothing is known yet
    for key, took_s in (("b", 20.0), ("c", 30.0)):
        replies.begin("t", key, b"a", 0.0)
        replies.keep("t", key, REPLY, took_s)
    assert wait_s(2.0) == pytest.approx(20.0)  # 22 s, of which 2 have passed
    assert wait_s(40.0) == 1.0
