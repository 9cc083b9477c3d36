"""A server with a known knee: so many places, a known time in each, first come, first served.

Owns: the knee that a test looks for, in virtual time and over HTTP.
May not know: how the knee is looked for.
Read next: `test_ramp.py`, `test_real_load.py`.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from firsthand.loadtest.arrivals import times_at
from firsthand.loadtest.outcomes import Outcome
from firsthand.values import dataclass

NUM_TOKENS = 4


@dataclass(slots=True, eq=False)
class Virtual:
    """No time passes but its own. `max_waiting`: whoever comes while so many wait is refused.
    `slow_from_s`: from then on everything takes twice as long."""

    places: int
    service_s: float
    jitter: float = 0.0
    max_waiting: int | None = None
    slow_from_s: float = math.inf
    now_s: float = 0.0
    seed: int = 0

    @property
    def knee(self) -> float:
        return self.places / self.service_s

    def clock(self) -> float:
        return self.now_s

    def hold(self, rate: float, seconds: float, burstiness: float) -> list[Outcome]:
        self.seed += 1
        draw = random.Random(self.seed)
        free = [0.0] * self.places
        starts: list[float] = []
        found = []
        for at_s in times_at(rate, max(1, round(rate * seconds)), burstiness, draw):
            if self.max_waiting is not None and self.max_waiting <= sum(
                start > at_s for start in starts[-self.places - self.max_waiting :]
            ):
                found.append(Outcome(at_s, at_s, at_s + 1e-4, fault="status 503"))
                continue
            start_s = max(at_s, heapq.heappop(free))
            starts.append(start_s)
            slowness = 2 if self.now_s >= self.slow_from_s else 1
            took_s = slowness * self.service_s * draw.uniform(1 - self.jitter, 1 + self.jitter)
            heapq.heappush(free, start_s + took_s)
            times = tuple(start_s + took_s * (k + 1) / NUM_TOKENS for k in range(NUM_TOKENS))
            found.append(Outcome(at_s, at_s, times[-1], times, 8, NUM_TOKENS))
        self.now_s += max(seconds, *(one.ended_s for one in found))
        return found


@contextmanager
def serving(places: int, service_s: float) -> Iterator[str]:
    """A real one, in the form of OpenAI's API: its address."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    port = 0

    async def run() -> None:
        nonlocal port
        gate = asyncio.Semaphore(places)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError, asyncio.IncompleteReadError):
                    while True:
                        await _answer(reader, writer, gate, service_s)
            finally:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    ready.wait(30)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        if open_ones := asyncio.all_tasks(loop):
            for task in open_ones:
                task.cancel()
            loop.run_until_complete(asyncio.wait(open_ones))
        loop.close()


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    gate: asyncio.Semaphore,
    service_s: float,
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    if line.startswith("GET"):
        content = json.dumps({"object": "list", "data": [{"id": "queue"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
        return
    num_tokens = min(json.loads(body).get("max_tokens", NUM_TOKENS), NUM_TOKENS)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with gate:
        for number in range(num_tokens):
            await asyncio.sleep(service_s / num_tokens)
            last = number == num_tokens - 1
            reason = "length" if last else None
            text = {"text": " a", "delta": {"content": " a"}}  # as a completion, and as a chat
            _event(writer, {"choices": [{**text, "finish_reason": reason}]})
    _event(writer, {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": num_tokens}})
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _event(writer: asyncio.StreamWriter, value: object) -> None:
    _chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n" % len(content) + content + b"\r\n")
