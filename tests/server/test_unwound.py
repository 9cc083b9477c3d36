"""A stream holds nothing of the framework's.

Owns: proof of `sse.Unwound`. Read next: `test_idle_streams.py`.
"""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack, ExitStack

import pytest

from tests.server.fakes import Script
from tests.server.guarded import STREAM, guarded, post
from tests.server.test_guard_http import PATH, wait_until

pytestmark = pytest.mark.process

NUM = 10


def alive(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())


def test_what_the_framework_put_around_a_route_has_gone_when_its_stream_is_open() -> None:
    before = alive(AsyncExitStack)
    with guarded(Script(pause_s=60.0)) as server, ExitStack() as held:
        for _ in range(NUM):
            held.enter_context(server.connect()).sendall(post(PATH, STREAM))
        wait_until(lambda: server.running.gate.num_open == NUM, 30)
        wait_until(lambda: len(server.service.streams) == NUM, 30)
        wait_until(lambda: alive(AsyncExitStack) - before < NUM, 30)
