"""The place of this server is given to one of another engine: its sockets, and then its clients.

Owns: the protocol, the order of the steps, what happens where the other one does not come up.
May not know: where environments lie (`../release/engines.py`), how a server is built.
Read next: `arrival.py` (the other end), `keeper.py` (what stays of the first one).

The other server is started in its own environment, with this one's command line, and gets the
listening sockets themselves by a Unix socket: nobody who connects meanwhile is turned away, for
there is one queue of connections, and either may take from it. It loads its model, gives its golden
tokens, listens, and says so. Then this one stops to listen, answers what it has begun, and each of
its connections once more if it asks, and ends. Until then it goes on as if nothing were.

    this one → the other    {"kinds": ["public", "admin", "keeper"], "places": [FOLDER, …],
                             "contexts": [TOKENS, …]}, and the sockets
    the other → this one    {"pid": …}, or {"fault": WHY}

The first server of a service does not end: it becomes the keeper of its process id.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from firsthand.config import HANDOVER, child_environment
from firsthand.errors import ReleaseRefused
from firsthand.release.engines import command, python_of, store_of
from firsthand.release.record import Release
from firsthand.server.logs import tell
from firsthand.values import dataclass

MAX_MESSAGE: Final = 1 << 16
MAX_FDS: Final = 8
START_S: Final = 600.0  # to load a model, as in a drill
AFTER_S: Final = 1.0  # that this one stays at least: for who was only tokenising
_SET_CHILD_SUBREAPER: Final = 36
KEEPER: Final = Path(__file__).with_name("keeper.py")


@dataclass(slots=True)
class Successor:
    """The server that listens now. `channel` is its keeper's end, None where another keeps it."""

    pid: int
    channel: socket.socket | None
    num_ends: int = 0

    def pass_on(self, number: signal.Signals) -> bool:
        """A signal that came here; whether it was the second to end."""
        self.num_ends += number is not signal.SIGHUP
        word = b"HUP" if number is signal.SIGHUP else b"TERM" if self.num_ends == 1 else b"END"
        if self.channel is not None:
            with suppress(OSError):
                self.channel.sendall(word + b"\n")
        return word == b"END"

    def keep(self) -> None:
        """This process becomes its keeper; does not return."""
        assert self.channel is not None, "another one keeps it"
        os.set_inheritable(self.channel.fileno(), True)
        logging.shutdown()
        arguments = ["-I", "-S", str(KEEPER), str(self.channel.fileno()), str(self.pid)]
        os.execv(sys.executable, [sys.executable, *arguments])


@dataclass(slots=True)
class Handover:
    """`places` gives the release's folder of each model now, `contexts` its tokens of context;
    `keeper` is the end at which this one hears its keeper, None for the first server of a service;
    `gone` ends the listening here."""

    listeners: Sequence[socket.socket]
    admin: socket.socket | None
    keeper: socket.socket | None
    places: Callable[[], list[str | None]]
    contexts: Callable[[], list[int]]
    gone: Callable[[], None]
    successor: Successor | None = None
    _arguments: Sequence[str] = field(default_factory=lambda: sys.argv[1:])

    async def to(self, release: Release, folder: Path, at: int) -> dict[str, Any]:
        """Its release in the place of the model that is number `at`. Raises ReleaseRefused; then
        all is as it was."""
        if sys.platform != "linux":
            raise ReleaseRefused("another engine can take this one's place on Linux alone")
        began_s = time.perf_counter()
        python = await asyncio.to_thread(python_of, store_of(folder), release.engine_version)
        places = self.places()
        places[at] = str(folder)
        ours, theirs = socket.socketpair()
        process = self._start(python, theirs)
        try:
            theirs.close()
            self._give(ours, places)
            ours.setblocking(False)
            pid = await asyncio.wait_for(_ready(ours, process), START_S)
        except BaseException as error:
            ours.close()
            process.kill()
            await asyncio.to_thread(process.wait)
            if isinstance(error, TimeoutError):
                text = f"engine {release.engine_version} was not ready after {START_S:g} s"
                raise ReleaseRefused(text) from None
            raise
        if self.keeper is None:
            _adopt_orphans()
            self.successor = Successor(pid, ours)
        else:
            ours.close()
            self.successor = Successor(pid, None)
        self.gone()
        took_s = time.perf_counter() - began_s
        text = f"engine {release.engine_version} listens after {took_s:.2f} s, as process {pid}"
        facts: dict[str, Any] = {"release": release.number, "id": release.id, "how": "handed over"}
        tell("handed_over", text, manifest=release.manifest_sha256, **facts)
        return {
            "model": release.name,
            "seconds": round(took_s, 3),
            "engine": release.engine_version,
            **facts,
        }

    def _start(self, python: Path, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Of a session of its own: a Ctrl-C reaches it by its keeper alone, and once."""
        number = theirs.fileno()
        try:
            return subprocess.Popen(
                command(python, self._arguments),
                stdin=subprocess.DEVNULL,
                env=child_environment({HANDOVER: str(number)}),
                pass_fds=(number,),
                start_new_session=True,
            )
        except OSError as error:
            raise ReleaseRefused(f"{python}: {error.strerror}") from None

    def _give(self, ours: socket.socket, places: list[str | None]) -> None:
        given = [("public", one) for one in self.listeners]
        given += [("admin", self.admin)] if self.admin is not None else []
        given += [("keeper", self.keeper)] if self.keeper is not None else []
        kinds = [kind for kind, _ in given]
        message = {"kinds": kinds, "places": places, "contexts": self.contexts()}
        socket.send_fds(ours, [json.dumps(message).encode()], [one.fileno() for _, one in given])


async def _ready(ours: socket.socket, process: subprocess.Popen[bytes]) -> int:
    """Its pid. Raises ReleaseRefused."""
    loop, text = asyncio.get_running_loop(), b""
    while b"\n" not in text:
        try:
            content = await loop.sock_recv(ours, MAX_MESSAGE)
        except ConnectionError:
            content = b""
        if not content:
            code = await asyncio.to_thread(process.wait)
            raise ReleaseRefused(f"its engine ended with {code} before it was ready: see the log")
        text += content
    message = json.loads(text)
    if "fault" in message:
        raise ReleaseRefused(f"its engine says: {message['fault']}")
    return int(message["pid"])


def _adopt_orphans() -> None:
    """A server that a later one was started by ends before it: then the later one is ours. It stays
    so when this process becomes a keeper."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
