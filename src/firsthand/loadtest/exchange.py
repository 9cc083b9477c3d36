"""One HTTP request after another over a connection, with the time of each piece of the answer.

Owns: the connection, what is kept of an answer, the pool of idle connections.
May not know: when a request is sent, or what its answer means.
Read next: `playing.py`, its user; `outcomes.py`, which reads what came.

While the load lasts an answer is only noted, piece by piece, each with its time: whatever is done
with it is done later, so that many answers at once take little time from the server beside them.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from dataclasses import field

import httptools

from firsthand.addresses import Address, fault_of
from firsthand.values import dataclass

MAX_ANSWER_BYTES = 64 << 20
PIECE_BYTES = 128  # what a piece takes beside its content: they may come byte by byte
OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)


@dataclass(slots=True, eq=False)
class Answer:
    """`pieces`: when each came, and its bytes. `fault`: why there is no more of it; `is_ours`: it
    is this machine's, which has no more connections."""

    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    num_bytes: int = 0
    ended_s: float = 0.0
    fault: str = ""
    is_ours: bool = False


class Connection(asyncio.Protocol):
    """Of one address. `done` is that of the request which it has now."""

    def __init__(self) -> None:
        self.is_usable = True
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer()
        self._done: asyncio.Future[None] | None = None
        self._has_end = False  # the answer says where it ends; else that is the connection's end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, content: bytes) -> Answer:
        """Cancelled, it closes the connection: the server sees that nobody waits any more."""
        self._answer = Answer()
        self._done = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._has_end = False
        assert self._transport is not None
        self._transport.write(content)
        try:
            await self._done
        except asyncio.CancelledError:
            self.close()
            raise
        return self._answer

    def close(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            self.close()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end("does not speak HTTP as it should; is it https?")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        answer = self._answer
        if exc is None and answer.pieces and not self._has_end:
            answer.status = self._parser.get_status_code()
            self._end("")
        else:
            self._end("the connection was lost" if exc is None else fault_of(exc))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_end = True

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if self._done is None:
            return  # of a second answer, to nothing
        answer.num_bytes += len(body) + PIECE_BYTES
        if answer.num_bytes > MAX_ANSWER_BYTES:
            self._end(f"the answer takes over {MAX_ANSWER_BYTES} bytes")
            self.close()
            return
        answer.pieces.append((time.perf_counter(), body))

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._done is None or 100 <= status < 200:
            return  # an answer to nothing; a word before the answer
        self._answer.status = status
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
        self._end("")

    def _end(self, fault: str) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            self._answer.ended_s = time.perf_counter()
            self._answer.fault = fault
            done.set_result(None)


@dataclass(slots=True, eq=False)
class Pool:
    """Connections to one address: as many as requests are under way."""

    address: Address
    _idle: list[Connection] = field(default_factory=list)

    async def post(self, path: str, body: bytes) -> Answer:
        """One that the server closed before it was used again is replaced, once."""
        content = self._head(path, len(body)) + body
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                answer = await self._ask(connection, content)
                if answer.pieces or not answer.fault:
                    return answer
                break
        try:
            connection = await self._connect()
        except OSError as error:
            is_ours = error.errno in OWN_LIMITS
            return Answer(ended_s=time.perf_counter(), fault=fault_of(error), is_ours=is_ours)
        return await self._ask(connection, content)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _ask(self, connection: Connection, content: bytes) -> Answer:
        answer = await connection.ask(content)
        if connection.is_usable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connect(self) -> Connection:
        context = ssl.create_default_context() if self.address.scheme == "https" else None
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self.address.host, self.address.port, ssl=context
        )
        return connection

    def _head(self, path: str, length: int) -> bytes:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        lines = {
            "Host": f"{host}:{self.address.port}",
            "Content-Type": "application/json",
            "Content-Length": str(length),
            "Accept": "text/event-stream",
            **self.address.headers,
        }
        rows = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST {path} HTTP/1.1\r\n{rows}\r\n".encode("latin-1")
