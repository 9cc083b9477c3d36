"""What the routes of one server share.

Owns: which models there are by name, and the settings and helpers that every route is handed.
May not know: any route.
Read next: `app.py`, which builds the routes around it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from firsthand.generation.service import Service
from firsthand.observe.firing import RecentAlerts
from firsthand.observe.live import Live
from firsthand.observe.metrics import Metrics
from firsthand.observe.recorder import Recorder
from firsthand.server.asking import Admission, OpenDoor
from firsthand.server.body import read_body
from firsthand.server.canary import Canaries
from firsthand.server.cascade import Cascade
from firsthand.server.contract import DoorContract, contract_of
from firsthand.server.entrance import Entrance
from firsthand.server.guard.call import call_of
from firsthand.server.guard.incoming import IncomingLimits
from firsthand.server.guard.refusal import Refused
from firsthand.server.health import Checks
from firsthand.server.sse import StreamSettings
from firsthand.server.stored.stored import Stored
from firsthand.text.tool_calls import ToolFormat
from firsthand.values import dataclass

Body = TypeVar("Body", bound=BaseModel)

MAX_NAME_CHARS = 80
LEAST_RECORDER = 256 << 10  # bytes
REASONING_FIELDS = ("reasoning", "reasoning_content")


@dataclass(frozen=True, slots=True)
class House:
    """`services` by the names that callers use, at least one; the first is the default. Two names
    may stand for one service. `tool_format` is how models call tools where their template does not
    tell; `reasoning_fields` are the names under which reasoning is given out; `pooling` is how a
    text becomes a vector. `entrance` None: the engines are there, and stay. `adapters` are those of
    the names that call for an adapter of their service, with the model that it belongs to.
    `failures` is where records of failed requests are kept; None: nowhere. `demo`: whoever watches
    may hold an engine back. `drill_age_s`: since a rollback was drilled. `gpus`: their readings
    now. `stored` are files and batches; `contract` is what a text must be. `cascades` are virtual
    models by their names, which no service has. `lenient`: of OpenAI's bodies, fields that are not
    known here are left out. `repetition_guard`: what goes round in circles is ended, unless its
    request says otherwise."""

    services: Mapping[str, Service]
    metrics: Metrics
    admission: Admission = field(default_factory=OpenDoor)
    checks: Checks = field(default_factory=Checks)
    body_limits: IncomingLimits = field(default_factory=IncomingLimits)
    stream: StreamSettings = field(default_factory=StreamSettings)
    version: str = "unknown"
    tool_format: ToolFormat | None = None
    reasoning_fields: tuple[str, ...] = REASONING_FIELDS
    entrance: Entrance | None = None
    pooling: str = "last"
    adapters: Mapping[str, str] = field(default_factory=dict)
    recorder: Recorder = field(default_factory=lambda: Recorder(LEAST_RECORDER, time.perf_counter))
    failures: Path | None = None
    live: Live = field(default_factory=Live)
    drill_age_s: Callable[[], float | None] = lambda: None
    gpus: Callable[[], list[dict[str, Any]]] = list
    canaries: Canaries = field(default_factory=Canaries)
    alerts: RecentAlerts = field(default_factory=RecentAlerts)
    demo: bool = False
    stored: Stored = field(default_factory=Stored)
    contract: DoorContract = field(default_factory=lambda: contract_of(None))
    cascades: Mapping[str, Cascade] = field(default_factory=dict)
    lenient: bool = False
    repetition_guard: bool = False

    @property
    def models(self) -> list[Service]:
        """Each service once, whatever number of names it has."""
        return list({id(service): service for service in self.services.values()}.values())

    async def read(self, request: Request, model: type[Body]) -> Body:
        """The body of one of OpenAI's routes. Raises Refused."""
        return await read_body(request, model, self.body_limits, lenient=self.lenient)

    def find(self, name: str | None) -> tuple[str, Service]:
        """The model that a body names, or the default one. Raises Refused: 404, or 400 for a
        cascade, which is none."""
        if name is None:
            name = next(iter(self.services))
        service = self.services.get(name)
        if name in self.cascades:
            found = self.cascades[name].found
            message = f"model: {name!r} is {found.small} or {found.large}; ask one of them"
            raise Refused(400, message, "invalid_value", "model")
        if service is None:
            known = ", ".join((*self.services, *self.cascades))
            message = f"model: {name[:MAX_NAME_CHARS]!r} is not here; there are {known}"
            raise Refused(404, message, "model_not_found", "model")
        return name, service

    async def enter(self, request: Request, name: str | None) -> tuple[str, Service]:
        """As `find`, of a model whose engine takes requests until this one's end: if it is asleep,
        it is loaded first. Of one that has a canary it may be that one. Raises Refused."""
        found, service = self.find(name)
        if found not in self.adapters:
            service = self.canaries.choose(call_of(request.scope), service)
        await self.enter_service(request, service)
        return found, service

    async def enter_service(self, request: Request, service: Service) -> Callable[[], None]:
        """Into one that is known. The result lets go before the request's end. Raises Refused."""
        if self.entrance is None:
            return lambda: None
        return (await self.entrance.enter(request, service)).close
