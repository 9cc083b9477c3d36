"""One engine process, from its start to its end, as the event loop sees it.

Owns: the socket pair, the start of the interpreter, the frames' way in and out, how it is ended.
May not know: what the messages mean.
Read next: `remote.py`, which watches it; `child_start.py` and `child.py`, what runs in it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from firsthand.errors import EngineError
from firsthand.generation.frames import FromChild, ToChild, encode, parent_reader
from firsthand.processes import processor_s

END_S = 2.0  # between two steps it sees that the connection is closed
POLL_S = 0.005
_STANDARD_ERROR = 2


class _Link(asyncio.Protocol):
    """The parent's end of the socket pair. What is no frame closes it."""

    def __init__(self, take: Callable[[FromChild], None]) -> None:
        self._take = take
        self._reader = parent_reader()
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except EngineError:
            self.close()
            return
        for message in messages:
            self._take(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class EngineProcess:
    """Made by `start`; always `end` it. `take` gets each message, on the event loop."""

    def __init__(self, process: subprocess.Popen[bytes], link: _Link) -> None:
        self._process = process
        self._link = link

    @classmethod
    async def start(cls, take: Callable[[FromChild], None]) -> EngineProcess:
        """Raises OSError. The interpreter starts at once; what it says comes to `take`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                module, fd = "firsthand.generation.child_start", str(theirs.fileno())
                process = subprocess.Popen(
                    [sys.executable, "-m", module, fd, str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=_STANDARD_ERROR,  # nothing but the service itself writes to its output
                    start_new_session=True,  # the terminal's interrupt is the parent's
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        link = _Link(take)
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            process.wait()
            raise
        return cls(process, link)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToChild) -> None:
        """Nothing waits; to a process that has ended, nothing is sent. Raises EngineError when the
        message is too long."""
        self._link.write(encode(message))

    async def wait_ended(self, limit_s: float) -> bool:
        """True as soon as it has ended, or closed the connection; False after `limit_s`."""
        await asyncio.wait({self._link.ended}, timeout=limit_s)
        return self._link.ended.done() or self._process.poll() is not None

    def cpu_s(self) -> float | None:
        """Processor time that it has used, of all threads; None where the system does not say."""
        return processor_s(self.pid)

    def kill(self) -> None:
        self._process.kill()

    async def end(self) -> str:
        """Close the connection and wait for its end; kill it if that takes too long. Gives how it
        ended, in words."""
        self._link.close()
        try:
            for _ in range(round(END_S / POLL_S)):
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(POLL_S)
        finally:  # also when the wait is cancelled
            self._process.kill()
            status = self._process.wait()
        if status < 0:
            words = f"the engine was ended by {_signal_name(-status)}"
            # Where a mapped file ends earlier than it did, there is no page to read.
            cut = ": the model's file was cut or replaced while it was read"
            return words + cut if status == -signal.SIGBUS else words
        return f"the engine ended with status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
