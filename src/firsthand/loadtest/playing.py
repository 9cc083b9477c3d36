"""Requests sent when they are due, whether earlier ones were answered or not.

Owns: the clock of the load, the bodies, how many may be under way, when it is given up.
May not know: why these arrivals; what the times mean.
Read next: `arrivals.py`, `exchange.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from firsthand.addresses import Address, is_loopback
from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.loadtest.arrivals import Arrival
from firsthand.loadtest.exchange import Answer, Pool
from firsthand.loadtest.outcomes import Outcome, outcome_of
from firsthand.values import dataclass

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDPOINTS = (COMPLETIONS, CHAT)
LEAD_S = 0.05  # between the first look at the clock and the first request
LATE = "not answered when the load was given up"


@dataclass(frozen=True, slots=True)
class Target:
    """Whom the requests go to, and what all of them have in common."""

    address: Address
    model: str
    endpoint: str = COMPLETIONS
    ignore_eos: bool = True

    @property
    def path(self) -> str:
        return self.address.path.removesuffix("/v1") + self.endpoint

    def body(self, arrival: Arrival) -> bytes:
        asked: dict[str, Any] = {
            "model": self.model,
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == CHAT:
            asked["messages"] = [{"role": "user", "content": arrival.prompt}]
        else:
            asked["prompt"] = arrival.prompt
        if self.ignore_eos:
            asked["ignore_eos"] = True
        return json.dumps(asked).encode()


def check_host(address: Address, allowed: str | None) -> None:
    """A load is for a server of one's own: on this machine, or one that was named for it."""
    if not is_loopback(address.host) and address.host != (allowed or "").lower():
        message = f"{address.host} is another machine; to load it, add --allow-host {address.host}"
        raise InvalidRequest("url", message)


def play(
    target: Target,
    arrivals: Sequence[Arrival],
    max_concurrency: int | None = None,
    patience_s: float = 600.0,
) -> list[Outcome]:
    """One outcome per arrival, in their order. `patience_s` after the last arrival whatever is
    still under way is given up. Where `max_concurrency` are under way, others wait, and their wait
    counts. Raises EngineUnavailable where this machine has no more connections: that would say
    nothing of the server."""
    return asyncio.run(_play(target, arrivals, max_concurrency, patience_s))


async def _play(
    target: Target, arrivals: Sequence[Arrival], max_concurrency: int | None, patience_s: float
) -> list[Outcome]:
    bodies = [target.body(arrival) for arrival in arrivals]  # not while the load lasts
    pool = Pool(target.address)
    places = asyncio.Semaphore(max_concurrency or len(arrivals) or 1)
    zero_s = time.perf_counter() + LEAD_S
    sent: dict[int, float] = {}

    async def ask(index: int, body: bytes) -> Answer:
        async with places:
            sent[index] = time.perf_counter() - zero_s
            return await pool.post(target.path, body)

    tasks = []
    for index, (arrival, body) in enumerate(zip(arrivals, bodies, strict=True)):
        wait_s = zero_s + arrival.at_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(ask(index, body)))
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    pool.close()
    given_up = Answer(ended_s=time.perf_counter(), fault=LATE)
    answers = [given_up if task.cancelled() else task.result() for task in tasks]
    ours = [one.fault for one in answers if one.is_ours]
    if ours:
        message = f"this machine had no connection for {len(ours)} of {len(answers)} requests"
        raise EngineUnavailable(f"{message} ({ours[0]}): send fewer at once, or raise ulimit -n")
    return [
        outcome_of(answer, arrival.at_s, sent.get(index, given_up.ended_s - zero_s), zero_s)
        for index, (answer, arrival) in enumerate(zip(answers, arrivals, strict=True))
    ]
