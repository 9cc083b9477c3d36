"""The server around its models, to its end: what stands where, and in which order it goes.

Owns: the parts of a running server and what connects them; signals; a reload.
May not know: how any part works.
Read next: `starting.py`, which comes before; `listening.py` (sockets), `lifecycle.py` (the door),
`guard/middleware.py` (requests).

SIGTERM or SIGINT begins the drain; a second one ends it at once. SIGHUP reads the settings again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from firsthand.config import read_environment
from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.generation.member import Member
from firsthand.generation.registry import Registry
from firsthand.memory.machine import used_share
from firsthand.near_names import near_names
from firsthand.observe.disk import DiskRoom
from firsthand.observe.gpus import find_gpus
from firsthand.observe.loaded_models import LoadedModels
from firsthand.observe.log_events import LogEvents
from firsthand.observe.metrics import Metrics
from firsthand.observe.trace_context import given_trace
from firsthand.server.admin import AdminApp
from firsthand.server.app import build_app
from firsthand.server.chaos import Chaos
from firsthand.server.configured import Configured, changed
from firsthand.server.ending import Ends, ends_of
from firsthand.server.entrance import Entrance
from firsthand.server.guard.admission import GateAdmission
from firsthand.server.guard.connection import Peers
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.gauges import GuardCollector
from firsthand.server.guard.idempotency import Replies
from firsthand.server.guard.incoming import IncomingLimits
from firsthand.server.guard.middleware import Guard
from firsthand.server.house import REASONING_FIELDS, House
from firsthand.server.lifecycle import Lifecycle
from firsthand.server.listening import (
    address,
    check_exposure,
    listener_of,
    remove_sockets,
    uvicorn_config,
)
from firsthand.server.logs import set_level, tell, tell_lost
from firsthand.server.rules import bounds_of, keys_of, rules_of, stays_of
from firsthand.server.selfchecks import SelfChecks, selfchecks_of
from firsthand.server.settings import MAX_BODY_BYTES, Settings
from firsthand.server.sse import StreamSettings
from firsthand.server.succession import Succession, names_of, succession_of
from firsthand.server.verbs import Verbs
from firsthand.text.tool_calls import FORMAT_NAMES
from firsthand.values import dataclass
from firsthand.version import VERSION

TICK_S = 1.0
FAREWELL_S = 2.0  # for the last bytes of answers that were cut
LAST_WORDS_S = 0.4  # for them after a second signal
INTERRUPTED = 130


@dataclass(slots=True)
class Serving:
    """One server. `configured` is what is in effect; `reread` reads all sources again."""

    configured: Configured
    reread: Callable[[], Configured]
    registry: Registry
    gate: Gate
    guard: Guard
    lifecycle: Lifecycle
    peers: Peers
    stopping: asyncio.Event
    metrics: Metrics
    ends: Ends
    selfchecks: SelfChecks
    succession: Succession

    @property
    def settings(self) -> Settings:
        return self.configured.settings

    def on_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGHUP:
            with suppress(FirsthandError):  # it is in the log
                self.reload()
        elif self.stopping.is_set():
            self.end_at_once()
        else:
            self.begin_drain(number.name)

    def end_at_once(self) -> None:
        """Whoever has an open request is told so; then nothing is waited for, not for a task, a
        thread or a buffer. A third signal does not even wait for that."""
        if self.lifecycle.patience_ended:
            self._leave()
        tell("stopped", "ends at once, by a second signal", logging.WARNING)
        self.lifecycle.end_patience()
        for member in self.registry.members:
            member.service.cut()
        bound = threading.Timer(LAST_WORDS_S, self._leave)
        bound.daemon = True
        bound.start()

    def _leave(self) -> None:
        remove_sockets(self.settings)
        os._exit(INTERRUPTED)

    def reload(self) -> dict[str, Any]:
        """All that may change, or, when anything is wrong, nothing. Raises InvalidRequest."""
        try:
            after = self.reread()
            keys = keys_of(after.settings)
            check_exposure(after.settings, keys)
        except FirsthandError as error:
            text = f"nothing was reloaded: {error}"
            tell("reload_refused", text, logging.ERROR)
            raise
        live, fixed = changed(self.settings, after.settings)
        kept = {name: getattr(self.settings, name) for name in fixed}
        settings = replace(after.settings, **kept)
        self.configured = Configured(settings, after.origins)
        self.guard.rules = rules_of(settings, keys)
        self.peers.limits = self.guard.rules.limits
        self.registry.stays = stays_of(settings)
        self.set_bounds()
        self.gate.rates.forget(frozenset(one.key_id for one in keys.callers.values()))
        set_level(settings.log_level)
        tell("reload", "reloaded", changed=live, needs_restart=fixed, num_keys=len(keys.callers))
        return {"changed": live, "needs_restart": fixed}

    async def replace(self, member: Member, folder: Path) -> dict[str, Any]:
        """A release in the place of a model. Raises FirsthandError."""
        if self.lifecycle.draining:
            raise InvalidRequest("model", "the server is draining")
        done = await self.succession.replace(member.name, folder)
        self.set_bounds()
        return done

    def set_bounds(self) -> None:
        """Of each model, as many run at once as its engine can."""
        shared = len(self.guard.rules.access.keys.callers) > 1
        for member in self.registry.members:
            num_running = member.service.model.max_sequences if member.resident else 0
            num_running = num_running or member.entry.service.load.max_sequences or 0
            bounds = bounds_of(self.settings, num_running, shared=shared)
            self.gate.set_bounds(bounds, member.name)

    def on_model(self, event: str, member: Member) -> None:
        """A model was loaded, or has left."""
        self.set_bounds()
        level = logging.ERROR if event == "model_failed" else logging.INFO
        text = f"{event.replace('_', ' ')}: {member.name}"
        tell(event, text, level, model=member.name, load_s=member.load_s)
        if event == "model_ready":
            self._tell_context(member)

    def _tell_context(self, member: Member) -> None:
        """Where memory made a model's window shorter than it is."""
        model, asked = member.service.model, member.entry.service.load.max_context
        text = None
        if asked is None and 0 < model.context_length < model.own_context_length:
            text = (
                f"{member.name}: memory is enough for {model.context_length} tokens of context, "
                f"the model has {model.own_context_length}; see --memory-limit, --max-num-seqs"
            )
        elif asked is not None and model.context_length < asked:
            text = (
                f"{member.name}: {asked} tokens of context were asked for by --max-model-len, the "
                f"model has {model.context_length}"
            )
        if text is not None:
            facts = {"model": member.name, "context_length": model.context_length}
            tell("context_lowered", text, logging.WARNING, **facts)

    def begin_drain(self, why: str) -> int:
        """The number of requests that are open."""
        self.lifecycle.begin_drain(why)
        self.stopping.set()
        return self.gate.num_open

    async def watch(self) -> None:
        """What is looked at once a second."""
        while True:
            self.gate.memory_used = used_share() or 0.0
            self.gate.memory_short = any(
                one.service.state.memory_short for one in self.registry.members
            )
            self.gate.tick()
            ended = self.gate.end_one()
            if ended is not None:
                text = "the machine's memory is spent; this request is ended"
                tell("request_ended", text, logging.WARNING, request_id=ended)
            self.registry.tick()
            for member in self.registry.members:
                member.service.tick()
            await asyncio.sleep(TICK_S)

    async def become_ready(self) -> None:
        """Raises what a load of the start raised."""
        await self.registry.wait_ready()
        took_s = time.perf_counter() - self.lifecycle.started_s
        loaded = [member.name for member in self.registry.members if member.answers]
        text = f"ready after {took_s:.2f} s: {', '.join(loaded) or 'no model is loaded yet'}"
        tell("ready", text, models=loaded)
        for pair in near_names(self.succession.services):
            text = f"{pair[0]} and {pair[1]} are one character apart: either is soon typed for both"
            tell("near_names", text, logging.WARNING, names=pair)


async def serve_until_end(
    running: Serving,
    listeners: list[socket.socket],
    admin: socket.socket | None,
    say: Callable[[str], None],
) -> int:
    """Until a signal, or a load of the start that failed. The exit code."""
    settings = running.settings
    public = listener_of(
        uvicorn_config(settings, around(running), running.peers), settings.receive_timeout
    )
    servers = [(public, listeners)]
    if admin is not None:
        drain = partial(running.begin_drain, "admin")
        chaos = Chaos(settings.chaos)
        told = (running.registry, running.ends.recorder, running.gate.clock)
        verbs = Verbs(*told, drain, running.reload, running.replace, chaos)
        app = AdminApp(verbs.table())
        servers.append(
            (listener_of(uvicorn_config(settings, app, None), settings.receive_timeout), [admin])
        )
    say(f"Firsthand listens on {address(settings, listeners)}")
    return await _serve(running, servers)


def assemble(
    configured: Configured,
    reread: Callable[[], Configured],
    registry: Registry,
    started_s: float,
    stopping: asyncio.Event,
) -> Serving:
    """The parts, connected; nothing runs yet."""
    settings, members = configured.settings, registry.members
    clock = members[0].service.clock
    gate = Gate(bounds_of(settings, 0), clock, random.random)
    ends = ends_of(settings, clock)
    selfchecks = selfchecks_of(members, clock, settings, ends)
    running: list[Serving] = []
    lifecycle = Lifecycle(
        gate,
        clock,
        lambda: [member.service.state for member in registry.members],
        lambda: running[0].settings.drain_limit_s,
        selfchecks.by_name,
        lambda: any(member.opens for member in registry.members),
        started_s,
    )
    gate.door = lifecycle.door
    gate.listen = _tell_level
    services, adapters = names_of(registry, settings)
    metrics = Metrics(vllm=settings.vllm_metrics)
    house = House(
        services,
        metrics,
        admission=GateAdmission(gate),
        body_limits=IncomingLimits(max_body_bytes=MAX_BODY_BYTES),  # the guard holds what is set
        stream=StreamSettings(stall_s=settings.stall_timeout),
        version=VERSION,
        pooling=settings.pooling,
        tool_format=FORMAT_NAMES.get(settings.tool_call_parser),
        reasoning_fields=REASONING_FIELDS
        if settings.reasoning_field == "both"
        else (settings.reasoning_field,),
        entrance=Entrance(registry, selfchecks.by_name, gate),
        adapters=adapters,
        recorder=ends.recorder,
        failures=ends.failures.folder,
        demo=settings.demo,
    )
    lifecycle.add_to(house.checks)
    rules = rules_of(settings, keys_of(settings))
    guard = Guard(
        build_app(house),
        gate,
        rules,
        Replies(settings.idempotency_ttl, max_bytes=settings.idempotency_memory),
        ends,
        lambda: lifecycle.draining,
        given_trace if ends.tracer is None else ends.tracer.begin,
    )
    peers = Peers(rules.limits, settings.max_connections, settings.stall_timeout)
    own = GuardCollector(gate, peers, guard.replies, selfchecks.by_name, house.checks)
    gpus = find_gpus() if settings.device != "cpu" else None
    for collector in (own, LoadedModels(registry), *((gpus,) if gpus else ())):
        metrics.registry.register(collector)
    metrics.registry.register(DiskRoom(read_environment().home))
    succession = succession_of(registry, house, selfchecks, lambda: running[0].settings)
    parts = (registry, gate, guard, lifecycle, peers, stopping, metrics, ends)
    running.append(Serving(configured, reread, *parts, selfchecks, succession))
    running[0].set_bounds()
    registry.listen = running[0].on_model
    return running[0]


async def _serve(running: Serving, servers: list[tuple[uvicorn.Server, Any]]) -> int:
    loop = asyncio.get_running_loop()
    lines = LogEvents(running.metrics.registry)
    logging.getLogger().addHandler(lines)
    tell_lost(lines.lost)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, running.on_signal, number)
    serving = [asyncio.ensure_future(server.serve(sockets)) for server, sockets in servers]
    ready = asyncio.ensure_future(running.become_ready())
    watching = asyncio.ensure_future(running.watch())
    for member in running.registry.members:
        running.selfchecks.begin(member, ready)
    stopping = asyncio.ensure_future(running.stopping.wait())
    try:
        await asyncio.wait((ready, stopping, *serving), return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not stopping.done():
            ready.result()  # a failed load ends the server
            await asyncio.wait((stopping, *serving), return_when=asyncio.FIRST_COMPLETED)
        return await _end(running, [server for server, _ in servers])
    finally:
        logging.getLogger().removeHandler(lines)
        tell_lost(None)
        for server, _ in servers:
            server.should_exit = server.force_exit = True
        for task in (watching, ready, stopping):
            task.cancel()
        await running.selfchecks.close()
        await asyncio.gather(watching, ready, stopping, *serving, return_exceptions=True)


async def _end(running: Serving, servers: Sequence[uvicorn.Server]) -> int:
    """The drain. The exit code."""
    running.lifecycle.begin_drain("the listener ended")
    await running.lifecycle.drained()
    await running.registry.close()  # what is open is told by an error
    for server in servers:
        server.should_exit = True
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            while running.gate.num_open or any(c.cycle_is_open for c in running.peers.connections):
                await asyncio.sleep(0.01)
    await asyncio.to_thread(running.ends.close)
    num_cut = len(running.lifecycle.cut_ids)
    tell("stopped", f"ended; {num_cut} requests were cut", num_cut=num_cut)
    return INTERRUPTED if running.lifecycle.patience_ended else 0


def around(running: Serving) -> Any:
    """The app as the listener calls it."""
    origins = list(running.settings.allowed_origins)
    if not origins:
        return running.guard
    return CORSMiddleware(
        running.guard,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


def _tell_level(model: str, level: int, pressure: float) -> None:
    text = f"degradation level {level} of 4"
    facts = {"model": model, "degradation_level": level, "pressure": round(pressure, 3)}
    tell("degradation", text, logging.WARNING, **facts)
