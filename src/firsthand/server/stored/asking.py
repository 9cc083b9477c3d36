"""What answers the requests of a batch: the server's own routes, asked as the batch's owner.

Owns: who is said to ask, in which class, and how many requests are open at once.
May not know: what is asked.
Read next: `../calling.py`, the call; `runner.py`.

A batch is background work. Its requests pass the guard as all do, are logged and recorded, and end
where the engine's queue says so; they take neither the key's rates nor its quota, which are for who
waits for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from starlette.types import ASGIApp

from firsthand.data.engines import Reply
from firsthand.request import Priority
from firsthand.server.calling import AHEAD, asked
from firsthand.server.guard.call import Caller, Quota
from firsthand.server.guard.gate import Gate


class OwnEngine:
    """`owner` is asked before each request, and raises FirsthandError where there is none any more;
    `num_at_once` is told how many requests of its own are open."""

    def __init__(
        self,
        app: ASGIApp,
        loop: asyncio.AbstractEventLoop,
        owner: Callable[[], Caller],
        num_at_once: Callable[[int], int],
    ) -> None:
        self._app = app
        self._loop = loop
        self._owner = owner
        self._num_at_once = num_at_once
        self._open: set[Future[Reply]] = set()

    @property
    def width(self) -> int:
        return self._num_at_once(len(self._open))

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        owner = self._owner()
        account = f"batches of {owner.key_id}"
        lowest = Priority.BACKGROUND
        own = replace(owner, highest_priority=lowest, quota=Quota(), account=account)
        call = asked(self._app, method, path, content, request_id, own)
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def close(self) -> None:
        """What still runs is given up; it is asked again."""
        for future in list(self._open):
            future.cancel()


def num_beside(gate: Gate, num_own: int) -> int:
    """How many requests of a batch may be open: alone as many as keep the engine's batch full,
    beside others what they leave free of it, and always one. Places to wait in are left to
    others."""
    bounds = [queue.bounds for queue in list(gate.queues.values())]
    num_running = max((one.max_running for one in bounds), default=1)
    num_others = max(0, gate.num_open - num_own)
    if num_others:
        return max(1, num_running - num_others)
    num_waiting = max((one.max_ordinary // 4 or -1 for one in bounds), default=0)
    return max(1, min(AHEAD * num_running, num_running + num_waiting))
