"""The server around its models: what stands where, and what connects it.

Owns: the parts of a running server; what a signal, a reload and another release do to them.
May not know: how any part works.
Read next: `starting.py`, which comes before; `until_end.py`, in which it runs; `lifecycle.py` (the
door), `guard/middleware.py` (requests).

SIGTERM or SIGINT begins the drain; a second one ends it at once. SIGHUP reads the settings again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from prometheus_client.registry import Collector
from starlette.middleware.cors import CORSMiddleware

from firsthand.config import read_environment
from firsthand.errors import FirsthandError
from firsthand.generation.member import Member
from firsthand.generation.registry import Registry
from firsthand.memory.machine import used_share
from firsthand.near_names import near_names
from firsthand.observe.disk import DiskRoom
from firsthand.observe.gpus import Gpus, find_gpus
from firsthand.observe.loaded_models import LoadedModels
from firsthand.observe.metrics import Metrics
from firsthand.observe.queue_ages import QueueAges
from firsthand.observe.replicas import ReplicaGauges
from firsthand.observe.trace_context import given_trace
from firsthand.release.record import release_folder
from firsthand.server.app import build_app
from firsthand.server.canary import Canaries
from firsthand.server.cascade import Cascade, Found, cascades_of, read_again
from firsthand.server.configured import Configured, changed
from firsthand.server.contract import contract_of
from firsthand.server.ending import Ends, ends_of
from firsthand.server.entrance import Entrance
from firsthand.server.guard.admission import GateAdmission
from firsthand.server.guard.call import Call
from firsthand.server.guard.connection import Peers
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.gauges import GuardCollector
from firsthand.server.guard.idempotency import Replies
from firsthand.server.guard.incoming import IncomingLimits
from firsthand.server.guard.middleware import Guard, Scope
from firsthand.server.handover import Handover, Successor
from firsthand.server.house import REASONING_FIELDS, House
from firsthand.server.lifecycle import Lifecycle
from firsthand.server.listening import Tls, check_exposure, remove_sockets, tls_context, tls_of
from firsthand.server.logs import set_level, tell
from firsthand.server.release_gauges import ReleaseGauges
from firsthand.server.rules import bounds_of, keys_of, rules_of, stays_of
from firsthand.server.selfchecks import SelfChecks, selfchecks_of
from firsthand.server.settings import MAX_BODY_BYTES, Settings
from firsthand.server.sse import StreamSettings
from firsthand.server.stored.stored import Stored, stored_of
from firsthand.server.succession import Succession, names_of, succession_of
from firsthand.text.tool_calls import FORMAT_NAMES
from firsthand.values import dataclass
from firsthand.version import VERSION

TICK_S = 1.0
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
    canaries: Canaries
    stored: Stored
    cascades: dict[str, Cascade]  # as the routes have them
    tls: Tls | None
    handover: Handover | None = None  # once it listens

    @property
    def successor(self) -> Successor | None:
        return None if self.handover is None else self.handover.successor

    @property
    def settings(self) -> Settings:
        return self.configured.settings

    def on_signal(self, number: signal.Signals) -> None:
        if self.successor is not None:
            if self.successor.pass_on(number):
                self.lifecycle.end_patience()
        elif number is signal.SIGHUP:
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
        if self.successor is None:
            remove_sockets(self.settings)
        os._exit(INTERRUPTED)

    def reload(self) -> dict[str, Any]:
        """All that may change, or, when anything is wrong, nothing. Raises InvalidRequest."""
        try:
            after = self.reread()
            keys = keys_of(after.settings)
            check_exposure(after.settings, keys)
            cascades, others = read_again(self.cascades, self.settings.cascade)
            context = tls_context(self.settings)
        except FirsthandError as error:
            text = f"nothing was reloaded: {error}"
            tell("reload_refused", text, logging.ERROR)
            raise
        live, fixed = changed(self.settings, after.settings)
        kept = {name: getattr(self.settings, name) for name in fixed}
        settings = replace(after.settings, **kept)
        live += ["cascade"] if cascades else []
        fixed += ["cascade"] if others and "cascade" not in fixed else []
        self.cascades.update(cascades)
        self.configured = Configured(settings, after.origins)
        if self.tls is not None and context is not None:
            self.tls.now = context
        self.guard.rules = rules_of(settings, keys)
        self.peers.limits = self.guard.rules.limits
        self.registry.stays = stays_of(settings)
        self.set_bounds()
        self.gate.rates.forget(frozenset(one.key_id for one in keys.callers.values()))
        set_level(settings.log_level)
        tell("reload", "reloaded", changed=live, needs_restart=fixed, num_keys=len(keys.callers))
        return {"changed": live, "needs_restart": fixed}

    def places(self) -> list[str | None]:
        """The release's folder of each model that was asked for at the start."""
        found = [release_folder(member.entry.service.model) for member in self._asked_for()]
        return [None if folder is None else str(folder) for folder in found]

    def contexts(self) -> list[int]:
        """Of each, its tokens of context; 0: it has no engine."""
        return [one.service.model.context_length * one.answers for one in self._asked_for()]

    def _asked_for(self) -> list[Member]:
        """Without canaries, which come behind them."""
        return self.registry.members[: len(self.settings.model)]

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
        self.stored.stop()
        self.stopping.set()
        return self.gate.num_open

    async def watch(self) -> None:
        """What is looked at once a second."""
        known: list[int] = []
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
            self.canaries.tick()
            for member in self.registry.members:
                member.service.tick()
            sizes = [one.service.model.max_sequences for one in self.registry.members]
            if sizes != known:  # replicas have come or gone
                known = sizes
                self.set_bounds()
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


def assemble(
    configured: Configured,
    reread: Callable[[], Configured],
    registry: Registry,
    started_s: float,
    stopping: asyncio.Event,
    cascades: Sequence[Found] = (),
) -> Serving:
    """The parts, connected; nothing runs yet."""
    settings, members = configured.settings, registry.members
    clock = members[0].service.clock
    gate = Gate(bounds_of(settings, 0), clock, random.random)
    metrics = Metrics(vllm=settings.vllm_metrics)
    ends = ends_of(settings, clock, metrics)
    selfchecks = selfchecks_of(members, clock, settings, ends)
    running: list[Serving] = []
    lifecycle = Lifecycle(
        gate,
        clock,
        lambda: [member.service.state for member in registry.members],
        lambda: running[0].settings.drain_limit_s,
        selfchecks.by_name,
        lambda: any(member.opens for member in registry.members),
        lambda: running[0].peers.num_open,
        started_s,
    )
    gate.door = lifecycle.door
    gate.listen = _tell_level
    release_gauges = ReleaseGauges(registry)
    gpus = find_gpus() if settings.device != "cpu" else None
    house = _house_of(
        registry, settings, gate, metrics, ends, selfchecks, release_gauges, cascades, gpus
    )
    lifecycle.add_to(house.checks)
    rules = rules_of(settings, keys_of(settings))
    guard = Guard(
        build_app(house),
        gate,
        rules,
        Replies(settings.idempotency_ttl, max_bytes=settings.idempotency_memory),
        _log_of(ends, house.canaries),
        lambda: lifecycle.draining,
        given_trace if ends.tracer is None else ends.tracer.begin,
    )
    peers = Peers(rules.limits, settings.max_connections, settings.stall_timeout)
    own = GuardCollector(gate, peers, guard.replies, selfchecks.by_name, house.checks)
    of_models = LoadedModels(registry), ReplicaGauges(registry)
    collectors = (own, house.canaries, release_gauges, *of_models)
    _register(metrics, gpus, *collectors, QueueAges(ends.recorder))
    succession = succession_of(registry, house, selfchecks, lambda: running[0].settings)
    parts = (registry, gate, guard, lifecycle, peers, stopping, metrics, ends, selfchecks)
    house.canaries.end = lambda canary: succession.end_canary(canary.new)
    assert isinstance(house.cascades, dict), "made by `cascades_of`"
    kept = (house.canaries, house.stored, house.cascades, tls_of(settings))
    running.append(Serving(configured, reread, *parts, succession, *kept))
    running[0].set_bounds()
    registry.listen = running[0].on_model
    return running[0]


def _house_of(
    registry: Registry,
    settings: Settings,
    gate: Gate,
    metrics: Metrics,
    ends: Ends,
    selfchecks: SelfChecks,
    release_gauges: ReleaseGauges,
    cascades: Sequence[Found],
    gpus: Gpus | None,
) -> House:
    """What the routes know."""
    services, adapters = names_of(registry, settings)
    for one in cascades:
        metrics.begin_cascade(one.name)
    return House(
        services,
        metrics,
        admission=GateAdmission(gate),
        body_limits=IncomingLimits(max_body_bytes=MAX_BODY_BYTES),  # the guard holds what is set
        stream=StreamSettings(stall_s=settings.stall_timeout),
        version=VERSION,
        pooling=settings.pooling,
        tool_format=FORMAT_NAMES.get(settings.tool_call_parser),
        reasoning_fields=_reasoning_fields(settings),
        lenient=settings.lenient,
        repetition_guard=settings.repetition_guard,
        entrance=Entrance(registry, selfchecks.by_name, gate),
        adapters=adapters,
        recorder=ends.recorder,
        failures=ends.failures.folder,
        demo=settings.demo,
        stored=stored_of(settings),
        contract=contract_of(settings.contract),
        drill_age_s=release_gauges.age_s,
        gpus=list if gpus is None else gpus.told,
        cascades=cascades_of(cascades, services),
    )


def _reasoning_fields(settings: Settings) -> tuple[str, ...]:
    named = settings.reasoning_field
    return REASONING_FIELDS if named == "both" else (named,)


def _register(metrics: Metrics, gpus: Gpus | None, *collectors: Collector) -> None:
    for collector in (*collectors, DiskRoom(read_environment().home), *((gpus,) if gpus else ())):
        metrics.registry.register(collector)


def _log_of(ends: Ends, canaries: Canaries) -> Callable[[Call, Scope, int, float], None]:
    def log(call: Call, scope: Scope, status: int, now_s: float) -> None:
        ends(call, scope, status, now_s)
        canaries.ended(call, status)

    return log


def around(running: Serving) -> Any:
    """The app as the listener calls it."""
    origins = list(running.settings.allowed_origins)
    if not origins:
        return running.guard
    return CORSMiddleware(
        running.guard,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


def _tell_level(model: str, level: int, pressure: float) -> None:
    text = f"degradation level {level} of 4"
    facts = {"model": model, "degradation_level": level, "pressure": round(pressure, 3)}
    tell("degradation", text, logging.WARNING, **facts)
