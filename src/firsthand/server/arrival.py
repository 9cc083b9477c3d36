"""A server that takes the place of another: its sockets come from there, and who keeps it.

Owns: what is received, when the other one is told, what its keeper's words mean.
May not know: how a server is built; who gives (`handover.py`, where the protocol is written down).
Read next: `handover.py`, `starting.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace

from firsthand.config import handover_descriptor
from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.generation.service import Service
from firsthand.server.configured import Configured
from firsthand.server.handover import MAX_FDS, MAX_MESSAGE
from firsthand.server.settings import Settings
from firsthand.values import dataclass

SIGNALS = {b"TERM": signal.SIGTERM, b"HUP": signal.SIGHUP}


@dataclass(slots=True)
class Arrival:
    """`places` has the release's folder of each model, in order; None: as the settings say.
    `contexts` are the tokens of context that each has where it is now, 0 for one that sleeps."""

    channel: socket.socket
    listeners: list[socket.socket]
    admin: socket.socket | None
    keeper: socket.socket
    places: list[str | None]
    contexts: list[int]
    listens: bool = False  # the sockets are this one's now
    _text: bytes = field(default=b"")

    def check_models(self, settings: Settings) -> None:
        """Raises InvalidRequest where the settings name others than are served."""
        num_now, num_served = len(settings.model), len(self.places)
        if num_now != num_served:
            text = f"the settings name {num_now} now, and {num_served} are served: start anew"
            raise InvalidRequest("model", text)

    def placed(self, configured: Configured) -> Configured:
        """The settings, at the start or read again, with the releases that are served since. Where
        they name other models, that is told as a change that needs a start."""
        settings = configured.settings
        if len(settings.model) != len(self.places):
            return configured
        entries = tuple(
            entry if place is None else replace(entry, path=place)
            for entry, place in zip(settings.model, self.places, strict=True)
        )
        return replace(configured, settings=replace(settings, model=entries))

    def check_context(self, services: Sequence[Service]) -> None:
        """Raises CapacityExceeded where memory allows a model less context than it had."""
        for service, had in zip(services, self.contexts, strict=True):
            got = service.model
            if 0 < got.context_length < min(had, got.own_context_length):
                text = f"beside the other engine only {got.context_length} tokens of context fit"
                raise CapacityExceeded(text)

    def failed(self, why: str) -> None:
        """The other one goes on."""
        self._say({"fault": why[:500]})

    def arrived(self) -> None:
        """From now on who connects is answered here."""
        self.listens = True
        self._say({"pid": os.getpid()})
        if self.channel is not self.keeper:
            with suppress(OSError):
                self.keeper.sendall(b"%d\n" % os.getpid())
            self.channel.close()

    def _say(self, message: dict[str, object]) -> None:
        with suppress(OSError):
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def obey(self, on_signal: Callable[[signal.Signals], None], end: Callable[[], None]) -> None:
        """Do what the keeper says. Where it has gone, so has whoever started this service."""
        asyncio.get_running_loop().add_reader(self.keeper, self._heard, on_signal, end)

    def leave(self) -> None:
        """The keeper speaks to another from now on."""
        asyncio.get_running_loop().remove_reader(self.keeper)

    def _heard(self, on_signal: Callable[[signal.Signals], None], end: Callable[[], None]) -> None:
        try:
            content = self.keeper.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self.leave()
            on_signal(signal.SIGTERM)
        self._text += content
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            if line == b"END":
                end()
            elif line in SIGNALS:
                on_signal(SIGNALS[line])


def arrival() -> Arrival | None:
    """None: this server takes nobody's place. Raises OSError, ValueError."""
    descriptor = handover_descriptor()
    if descriptor is None:
        return None
    channel = socket.socket(fileno=descriptor)
    channel.setblocking(True)
    content, numbers, _, _ = socket.recv_fds(channel, MAX_MESSAGE, MAX_FDS)
    message = json.loads(content)
    sockets = [socket.socket(fileno=number) for number in numbers]
    for one in (*sockets, channel):
        one.setblocking(False)
        one.set_inheritable(False)
    by_kind: dict[str, list[socket.socket]] = {"public": [], "admin": [], "keeper": [channel]}
    for kind, one in zip(message["kinds"], sockets, strict=True):
        by_kind[kind].append(one)
    admin = next(iter(by_kind["admin"]), None)
    return Arrival(
        channel,
        by_kind["public"],
        admin,
        by_kind["keeper"][-1],
        message["places"],
        message["contexts"],
    )
