"""What the log and the count say of a request is what became of it.

Owns: proof that each ending has its own word, and the status that its client was told.
Read next: `test_guard_http.py`; `test_lifecycle.py` (a drain), `test_losses.py` (a lost engine).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from firsthand.errors import EngineClosed, EngineError, EngineLost, EngineSlept
from firsthand.request import Finish, FinishReason
from firsthand.server.guard.call import Call
from firsthand.server.guard.queue import Bounds
from tests.server.fakes import Script
from tests.server.guarded import AUTH, CHAT, STREAM, Guarded, guarded, post

pytestmark = pytest.mark.process

PATH = "/v1/chat/completions"
FAULTS = {
    "engine_lost": (Script(fault=EngineLost("it was lost with this request")), 503),
    "shutdown": (Script(fault=EngineClosed("it was ended with this request")), 503),
    "sleep": (Script(fault=EngineSlept("it was ended with this request")), 503),
    "failed": (Script(fault=EngineError("a fault")), 500),
    "deadline": (Script(finish=Finish(FinishReason.DEADLINE)), 504),
    "cancelled": (Script(finish=Finish(FinishReason.CANCELLED)), 503),
}


def watched(server: Guarded) -> list[tuple[str | None, int]]:
    """The word and the status of each call, as they are logged from now on."""
    seen: list[tuple[str | None, int]] = []

    def log(call: Call, scope: Any, status: int, now: float) -> None:
        seen.append((call.outcome, status))

    server.running.guard.log = log
    return seen


def counted(server: Guarded, reason: str, status: int) -> bool:
    line = f'endpoint="{PATH}",finish_reason="{reason}",status="{status}"}} 1.0'
    return line in server.get("/metrics")[1].decode()


def wait_for(condition: Callable[[], object]) -> None:
    until = time.perf_counter() + 30
    while not condition():
        assert time.perf_counter() < until, "it did not come"
        time.sleep(0.005)


@pytest.mark.parametrize("word", FAULTS)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_breaks_off_says_how(word: str, streamed: bool) -> None:
    """A stream had begun with 200; the log tells what its error event told."""
    script, status = FAULTS[word]
    with guarded(script) as server:
        seen = watched(server)
        _, answer = server.post(PATH, STREAM if streamed else CHAT)
        assert re.search(rb'"code":"\w+"', answer) and b"[DONE]" not in answer
        wait_for(lambda: seen)
        assert seen == [(word, status)]
        assert counted(server, word, status)


def test_a_whole_answer_is_done() -> None:
    with guarded() as server:
        seen = watched(server)
        for body in (CHAT, STREAM):
            server.post(PATH, body)
        wait_for(lambda: len(seen) == 2)
        assert seen == [("done", 200)] * 2


def test_a_client_that_goes_is_499() -> None:
    with guarded(Script(pause_s=0.01, endless=True)) as server:
        seen = watched(server)
        for body in (STREAM, CHAT):
            with server.connect() as opened:
                opened.sendall(post(PATH, body))
                wait_for(lambda: server.running.gate.num_open == 1)
            wait_for(lambda: server.running.gate.num_open == 0)
        wait_for(lambda: len(seen) == 2)
        assert seen == [("client_closed", 499)] * 2
        wait_for(lambda: 'finish_reason="client_closed",status="499"} 2.0' in metrics(server))


def test_a_reader_that_takes_nothing_is_stalled() -> None:
    script = Script(pieces=("x" * 10_000,), endless=True)
    with guarded(script, stall_timeout=0.3) as server, server.connect(4096) as opened:
        seen = watched(server)
        opened.sendall(post(PATH, STREAM))
        wait_for(lambda: seen)
        assert seen == [("stalled", 499)]


def test_who_is_not_let_in_is_refused_and_who_asks_wrongly_is_invalid() -> None:
    with guarded() as server:
        seen = watched(server)
        server.post(PATH, b"{}")
        server.post(PATH, CHAT, "")
        server.running.gate.set_bounds(Bounds(0, 0))
        server.post(PATH, CHAT)
        assert seen == [("invalid", 400), ("invalid", 401), ("refused", 503)]


def test_o_8_who_is_ended_for_want_of_memory_is_told_so() -> None:
    """At 98 % of the machine's memory; the fake's generation ends as an aborted one does."""
    script = Script(pause_s=0.01, endless=True)
    with guarded(script) as server:
        seen = watched(server)
        with server.connect() as opened:
            opened.sendall(post(PATH, STREAM, AUTH + "X-Priority: background\r\n"))
            wait_for(lambda: server.running.gate.num_open == 1)
            server.running.gate.memory_used = 0.99
            wait_for(lambda: server.running.gate.end_one())
            answer = b""
            while b'"error"' not in answer:
                answer += opened.recv(65536)
        assert b'"code":"degraded"' in answer and b"memory is spent" in answer
        wait_for(lambda: seen)
        assert seen == [("memory", 503)]


def metrics(server: Guarded) -> str:
    return server.get("/metrics")[1].decode()
