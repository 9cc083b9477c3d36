"""A server from its listening to its end.

Owns: what runs beside what, which of it ends the server, and in which order all of it ends; how it
takes another server's place, or gives its own.
May not know: how any part works.
Read next: `running.py`, the parts; `handover.py`, `arrival.py`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

from firsthand.observe.log_events import LogEvents
from firsthand.server.admin import AdminApp
from firsthand.server.arrival import Arrival
from firsthand.server.changing import Changes
from firsthand.server.chaos import Chaos
from firsthand.server.handover import AFTER_S, Handover
from firsthand.server.lag import watch_lag
from firsthand.server.listening import address, listener_of, uvicorn_config
from firsthand.server.logs import tell, tell_lost
from firsthand.server.lost_engines import tell_lost_engines
from firsthand.server.running import INTERRUPTED, Serving, around
from firsthand.server.succession import check_all_golden
from firsthand.server.verbs import Verbs

FAREWELL_S = 2.0  # for the last bytes of answers that were cut


async def serve_until_end(
    running: Serving,
    listeners: list[socket.socket],
    admin: socket.socket | None,
    say: Callable[[str], None],
    taken: Arrival | None = None,
) -> int:
    """Until a signal, or a load of the start that failed. The exit code. `taken`: it takes another
    server's place when it is ready."""
    settings = running.settings
    public = listener_of(
        uvicorn_config(settings, around(running), running.peers),
        settings.receive_timeout,
        running.tls,
    )
    servers = [(public, listeners)]
    if admin is not None:
        drain = partial(running.begin_drain, "admin")
        chaos = Chaos(settings.chaos)
        told = (running.registry, running.ends.recorder, running.gate.clock)
        verbs = Verbs(*told, drain, running.reload, Changes(running), running.canaries, chaos)
        app = AdminApp(verbs.table())
        servers.append(
            (listener_of(uvicorn_config(settings, app, None), settings.receive_timeout), [admin])
        )

    def gone() -> None:
        for server, _ in servers:
            for one in server.servers:
                one.close()
        if taken is not None:
            taken.leave()
        running.lifecycle.handed_over = True
        running.begin_drain("handed over")

    keeper = None if taken is None else taken.keeper
    running.handover = Handover(listeners, admin, keeper, running.places, running.contexts, gone)
    text = f"Firsthand listens on {address(settings, listeners)}"
    if settings.log_level in ("debug", "info"):
        tell("listening", text)  # in the log's own form
    else:
        say(text)
    return await _serve(running, servers, taken)


async def _serve(
    running: Serving, servers: list[tuple[uvicorn.Server, Any]], taken: Arrival | None
) -> int:
    loop = asyncio.get_running_loop()
    lines = LogEvents(running.metrics.registry)
    logging.getLogger().addHandler(lines)
    tell_lost(lines.lost)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, running.on_signal, number)
    serving: list[asyncio.Task[None]] = []
    ready = asyncio.ensure_future(running.become_ready())
    watching = asyncio.gather(
        running.watch(),
        watch_lag(running.metrics.loop_lag.observe),
        tell_lost_engines(running.registry),
    )
    for member in running.registry.members:
        running.selfchecks.begin(member, ready)
    stopping = asyncio.ensure_future(running.stopping.wait())
    try:
        if taken is not None:
            await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return await _end(running, [])
            ready.result()
            taken.check_context([one.service for one in running.registry.members])
            await check_all_golden(running.registry)
        serving += [asyncio.create_task(server.serve(sockets)) for server, sockets in servers]
        if taken is not None:
            while not all(server.started for server, _ in servers):
                await asyncio.sleep(0.001)
            taken.obey(running.on_signal, running.end_at_once)
            taken.arrived()
            running.on_signal(signal.SIGHUP)  # one that came meanwhile went to the other
        running.stored.start(running.guard)
        await asyncio.wait((ready, stopping, *serving), return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not stopping.done():
            ready.result()  # a failed load ends the server
            await asyncio.wait((stopping, *serving), return_when=asyncio.FIRST_COMPLETED)
        return await _end(running, [server for server, _ in servers])
    finally:
        logging.getLogger().removeHandler(lines)
        tell_lost(None)
        running.stored.stop()
        for server, _ in servers:
            server.should_exit = server.force_exit = True
        for task in (watching, ready, stopping):
            task.cancel()
        await running.selfchecks.close()
        await asyncio.gather(watching, ready, stopping, *serving, return_exceptions=True)


async def _end(running: Serving, servers: Sequence[uvicorn.Server]) -> int:
    """The drain. The exit code."""
    running.lifecycle.begin_drain("the listener ended")
    await asyncio.to_thread(running.stored.close)
    if running.successor is not None:
        await asyncio.sleep(AFTER_S)
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
