"""The start of a server: what is refused before anything runs, then its engines.

Owns: the order of the start, and a signal that comes during it.
May not know: routes, and whatever else answers requests.
Read next: `until_end.py`, which takes over; `arrival.py`, where another server was here before;
`../generation/registry.py`.

The engines' processes are started first; what answers requests (the largest of the libraries) is
loaded while they load their models.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from firsthand.errors import FirsthandError
from firsthand.generation.engines import MakesEngines
from firsthand.generation.member import RegistryEntry
from firsthand.generation.registry import Registry
from firsthand.release.engines import command, python_for
from firsthand.server.arrival import Arrival, arrival
from firsthand.server.configured import Configured
from firsthand.server.handover import Successor
from firsthand.server.listening import (
    bind,
    bind_admin,
    check_exposure,
    remove_sockets,
    tls_context,
)
from firsthand.server.logs import tell
from firsthand.server.rules import keys_of, registry_entries, stays_of
from firsthand.server.settings import Settings

T = TypeVar("T")


class Interrupted(Exception):
    """A signal came before the server was there."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop, where there is one: a connection costs a fifth less."""
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


async def run_server(
    configured: Configured,
    reread: Callable[[], Configured],
    say: Callable[[str], None],
    engines: MakesEngines | None = None,
) -> int:
    """Until a signal. The exit code. `engines` are those that answer; None: one beside it for each
    model. Raises FirsthandError where it cannot begin."""
    taken = arrival()
    try:
        if taken is not None:
            taken.check_models(configured.settings)
            configured, reread = taken.placed(configured), partial(_placed_again, taken, reread)
        return await _run(configured, reread, say, taken, engines)
    except FirsthandError as error:
        if taken is not None:
            taken.failed(str(error))
        raise


def _placed_again(taken: Arrival, reread: Callable[[], Configured]) -> Configured:
    return taken.placed(reread())


async def _run(
    configured: Configured,
    reread: Callable[[], Configured],
    say: Callable[[str], None],
    taken: Arrival | None,
    engines: MakesEngines | None,
) -> int:
    settings = configured.settings
    started_s = time.perf_counter()
    python = python_for(entry.path for entry in settings.model)
    if python is not None:  # the engine of the release that is current
        os.execv(python, command(python, sys.argv[1:]))
    check_exposure(settings, keys_of(settings))
    tls_context(settings)  # files that are none are told before a model is loaded
    entries = registry_entries(settings)
    cascades = await _cascades(settings, entries)
    if taken is None:
        listeners, admin = bind(settings), bind_admin(settings)
    else:
        listeners, admin = taken.listeners, taken.admin
    stopping, hung_up = asyncio.Event(), asyncio.Event()
    successor: Successor | None = None
    try:
        stays = stays_of(settings)
        starting = Registry.start(entries, settings.memory_limit, stays, engines)
        async with await _or_signal(starting, stopping, hung_up) as registry:
            from firsthand.server.running import assemble
            from firsthand.server.until_end import serve_until_end

            running = assemble(configured, reread, registry, started_s, stopping, cascades)
            if hung_up.is_set():
                running.on_signal(signal.SIGHUP)
            code = await serve_until_end(running, listeners, admin, say, taken)
            successor = running.successor
    except Interrupted:
        tell("stopped", "stopped before the model was there")
        return 0
    finally:
        _ignore_hangups()
        for listener in (*listeners, *([] if admin is None else [admin])):
            listener.close()
        if successor is None and (taken is None or taken.listens):  # else they are another's
            remove_sockets(settings)
    if successor is not None and successor.channel is not None:
        successor.keep()
    return code


async def _cascades(settings: Settings, entries: Sequence[RegistryEntry]) -> Sequence[Any]:
    """`Found`, of each that is wanted. Their models' files are read where their hash is not on
    record, before anything runs: a wrong file is told at once."""
    if not settings.cascade:
        return ()
    from firsthand.server.cascade import find_cascades

    return await asyncio.to_thread(find_cascades, settings.cascade, entries)


def _ignore_hangups() -> None:
    """From here on nothing is left that could be read again, and the loop's end would bring back
    the system's own way, which is to end by the signal."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def _or_signal(
    starting: Coroutine[Any, Any, Registry], stopping: asyncio.Event, hung_up: asyncio.Event
) -> Registry:
    """What `starting` gives, the rest of the server being loaded meanwhile; raises Interrupted when
    a signal to end comes first. One that comes after it, before `running.py` listens for signals,
    is kept in `stopping`; SIGHUP, at which the settings are to be read again, in `hung_up`."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    task = asyncio.ensure_future(starting)
    rest = asyncio.ensure_future(asyncio.to_thread(_load_the_rest))
    waiter = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
    await rest
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, FirsthandError):
            await task
        raise Interrupted
    waiter.cancel()
    return task.result()


def _load_the_rest() -> None:
    importlib.import_module("firsthand.server.until_end")
