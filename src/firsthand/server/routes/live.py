"""What the engines do now, as one answer and as a stream of changes, and who waits for them.

Owns: these routes; how often a watcher is told; in teaching mode, the pace of an engine.
May not know: what is in the feed, how it is drawn.
Read next: `../../observe/live.py`, the feed; `../page/feed.js` and `../../cli/top.py`, its readers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from firsthand.generation.service import Status
from firsthand.observe.live import LOOK_S
from firsthand.server.body import read_body
from firsthand.server.guard.call import GATE, call_of
from firsthand.server.guard.gate import Gate
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.submitting import json_reply
from firsthand.server.sse import EventStreamResponse, event
from firsthand.server.wire.live import EngineNow, PaceBody, PaceReply, QueueNow

STATE = "/firsthand/engine/state"
STREAM = "/firsthand/engine/stream"
QUEUE = "/firsthand/queue"
PACE = "/firsthand/engine/pace"
TICK_S = 0.1
HEALTH_S = 1.0


def live_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.get(
        STATE, **described(None, EngineNow, "What the engines do now", errors=(400, 500, 503))
    )
    async def state(request: Request) -> Response:
        with house.live.watch(_key_id(request.scope)) as watch:
            watch.look()
            await asyncio.sleep(LOOK_S)  # in which they answer, and may make a step
            around = _around(house, _gate(request.scope))
            return json_reply({"at_s": house.models[0].clock(), **around, **watch.news()})

    @router.get(QUEUE, **described(None, QueueNow, "Who waits, and why", errors=(400, 500, 503)))
    async def queue(request: Request) -> Response:
        with house.live.watch(_key_id(request.scope)) as watch:
            watch.look()
            await asyncio.sleep(LOOK_S)
            return json_reply({"at_s": house.models[0].clock(), "models": watch.queues()})

    @router.get(
        STREAM,
        **described(None, None, "The same, then whatever changes", streams=True, errors=(400, 500)),
    )
    async def stream(request: Request) -> Response:
        return EventStreamResponse(_events(house, request.scope), house.stream)

    if house.demo:

        @router.post(PACE, **described(PaceBody, PaceReply, "Hold an engine back, for learners"))
        async def pace(request: Request) -> Response:
            body = await read_body(request, PaceBody, house.body_limits)
            _, service = house.find(body.model)
            delay_s = body.delay_ms / 1e3
            service.set_pace(paused=body.paused, num_steps=body.num_steps, delay_s=delay_s)
            return json_reply({"paused": body.paused, "delay_ms": body.delay_ms})

    return router


async def _events(house: House, scope: Scope) -> AsyncGenerator[bytes, None]:
    """Until the engines are closed, so that a page that is left open holds no server up, or others
    are in their place: whoever watches then asks again."""
    told: dict[str, Any] = {}
    due_s = 0.0
    gate = _gate(scope)
    with house.live.watch(_key_id(scope)) as watch:
        models = house.models
        while house.models == models and any(
            one.state.status is not Status.CLOSED for one in models
        ):
            news = watch.news()
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + HEALTH_S
                around = _around(house, gate)
                news |= {name: value for name, value in around.items() if told.get(name) != value}
                told = around
            if news:
                yield event({"at_s": house.models[0].clock(), **news})
            await asyncio.sleep(TICK_S)


def _around(house: House, gate: Gate | None) -> dict[str, Any]:
    """What is known of the server around the engines."""
    queues = {} if gate is None else gate.queues
    return {
        "version": house.version,
        "demo": house.demo,
        "checks": [
            {"name": name, "ok": check.ok, "detail": check.detail}
            for name, check in house.checks.run().items()
        ],
        "alerts": house.alerts.since_yesterday(time.time()),
        "releases": {
            "drill_age_s": house.drill_age_s(),
            "canaries": [one.told() for one in house.canaries.by_model.values()],
        },
        "gpus": house.gpus(),
        "degradation": {name: queue.level for name, queue in queues.items()},
    }


def _gate(scope: Scope) -> Gate | None:
    found: Gate | None = scope.get("state", {}).get(GATE)
    return found


def _key_id(scope: Scope) -> str:
    return call_of(scope).caller.key_id
