"""One TCP connection: uvicorn's, with a deadline on the head of a request and a bound on its size.

Owns: how long a head may take, how large it may be, what a broken one is told, how many
connections there are, and how long a peer may leave its answer unread.
May not know: what a request asks for.
Read next: `incoming.py`, which keeps the same limits for the body.

A head that is not whole after the deadline is answered with 408, whether one byte of it came or
none; one that cannot be parsed with 400. Both in the form of every other error, and the connection
is closed: where a broken request ends is not known. A client may still be sending then, and would
lose the answer to the reset that a closed connection is: what it sends is read for a while, and
dropped.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import field
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from firsthand.server.guard.incoming import IncomingLimits, target_too_long
from firsthand.server.guard.refusal import Refused
from firsthand.server.headers import note_outcome
from firsthand.values import dataclass

REASONS = {400: "Bad Request", 408: "Request Timeout", 414: "URI Too Long"}
REASONS |= {431: "Request Header Fields Too Large", 503: "Service Unavailable"}
LINGER_S = 5.0
LINGER_BYTES = 64 << 20
MOST_LINGERING = 64  # of those that are one too many
MOST_METHOD_BYTES = 32
BODY_OVERHEAD = 16  # bytes of framing for each byte of a body, beyond those a head may have


@dataclass(slots=True)
class Peers:
    """All connections of one listener. `max_connections` bounds them, 0 is no bound; one whose
    output is not read for `stall_s` is cut; one whose request was refused before its end is read
    on, unseen, for `linger_s`."""

    limits: IncomingLimits
    max_connections: int = 0
    stall_s: float = 30.0
    linger_s: float = LINGER_S
    connections: set[Connection] = field(default_factory=set)
    arrived: dict[Connection, float] = field(default_factory=dict)  # not made yet: a handshake
    num_timed_out: int = 0
    num_malformed: int = 0
    num_stalled: int = 0

    def protocol(self, **given: Any) -> Connection:
        """For uvicorn, as its HTTP protocol. It is asked for one when somebody connects."""
        arrived = Connection(self, **given)
        self._forget_failed()
        self.arrived[arrived] = time.monotonic()
        return arrived

    @property
    def num_open(self) -> int:
        """With those whose handshake is under way."""
        self._forget_failed()
        return len(self.connections) + len(self.arrived)

    def _forget_failed(self) -> None:
        """Nobody tells of a handshake that failed; none may take longer than a head."""
        oldest_s = time.monotonic() - self.limits.receive_timeout_s
        while self.arrived and self.arrived[first := next(iter(self.arrived))] < oldest_s:
            del self.arrived[first]


class Connection(HttpToolsProtocol):
    """uvicorn's protocol has no place for these limits but its methods."""

    def __init__(
        self,
        peers: Peers,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._peers = peers
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the head that is not whole yet
        self._seen: object = None  # the cycle of the last head that was
        self.url = b""  # as far as it came
        self._in_request = False  # a head was whole, its body is not yet
        self._body_bytes = self._framed_bytes = 0  # of that body: what it is, what came
        self._linger_timer: asyncio.TimerHandle | None = None
        self._num_dropped = 0

    @property
    def cycle_is_open(self) -> bool:
        """Whether an answer is still to be given, or to be sent."""
        cycle: Any = self.cycle
        waits = cycle is not None and not cycle.response_complete
        return waits or self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peers = self._peers
        peers.arrived.pop(self, None)
        peers.connections.add(self)
        if 0 < peers.max_connections < len(peers.connections):
            few = len(peers.connections) <= peers.max_connections + MOST_LINGERING
            refused = Refused(503, "too many connections", "queue_full", retry_after_s=1.0)
            self._refuse(refused, linger=few)
        else:
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._linger_timer is not None:
            self._drop(len(data))
            return
        if self.transport.is_closing():
            return
        begun = self._in_request
        super().data_received(data)
        if self.cycle is not self._seen:  # a whole head, and perhaps a body with it
            self._seen = self.cycle
            self._head_bytes = 0
            self._stop_timer()
        elif begun:
            self._framed_bytes += len(data)
            most = self._peers.limits.max_header_bytes + BODY_OVERHEAD * self._body_bytes
            if self._framed_bytes - self._body_bytes > most:
                self._refuse(Refused(400, "the body is mostly framing", "invalid_request"))
        elif self.cycle is None or self.cycle.response_complete:
            self._head_bytes += len(data)
            if self._head_bytes > self._peers.limits.max_header_bytes:
                refused = Refused(431, "the head is too large", "headers_too_large")
                if self._head_bytes - len(self.url) < MOST_METHOD_BYTES:  # it is all path yet
                    refused = target_too_long(self._peers.limits)
                self._refuse(refused)
            elif self._head_timer is None:
                self._start_timer()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_request = True
        self._body_bytes = self._framed_bytes = 0
        cycle: Any = self.cycle
        cycle.transport = _Output(self)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        super().on_message_complete()

    def close_after(self) -> None:
        """Close when the client has read what was written. One that still sends would be told of a
        reset connection instead: it is let send, for a while, and nothing of it is kept."""
        if not self._in_request:
            self.transport.close()
        else:
            self._linger()

    @property
    def is_closing(self) -> bool:
        return self._linger_timer is not None or self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.connections.discard(self)
        self._stop_timer()
        self._stop_stall_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._peers.stall_s, self._stalled)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._peers.num_malformed += 1
        self._refuse(Refused(400, "the request is not valid HTTP/1.1", "invalid_request"))

    def _unsupported_upgrade_warning(self) -> None:
        """The refusal has its line of the log; that no library was found is nobody's fault."""

    def _start_timer(self) -> None:
        seconds = self._peers.limits.receive_timeout_s
        self._head_timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self._peers.num_timed_out += 1
        seconds = self._peers.limits.receive_timeout_s
        message = f"the request was not there within {seconds:g} s"
        self._refuse(Refused(408, message, "receive_timeout"))

    def _stalled(self) -> None:
        """Nobody reads: what is in the buffer will not be sent, and the app sees a lost client."""
        self._stall_timer = None
        self._peers.num_stalled += 1
        cycle: Any = self.cycle
        if cycle is not None:
            note_outcome(cycle.scope, "stalled")
        self.transport.abort()

    def _refuse(self, refused: Refused, *, linger: bool = True) -> None:
        self._stop_timer()
        cycle: Any = self.cycle
        if self.is_closing:
            return
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # whatever the app would still say
            cycle.message_event.set()
            if cycle.response_started:  # nothing of ours fits into the middle of an answer
                self.transport.close()
                return
        self.transport.write(raw_response(refused))
        if linger:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        if self.is_closing:
            return
        self._linger_timer = self.loop.call_later(self._peers.linger_s, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped += num_bytes
        if self._num_dropped > LINGER_BYTES:
            self.transport.close()


class _Output:
    """What an answer is written to: the connection's transport, but for its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write = connection.transport.write

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self._connection.close_after()


def raw_response(refused: Refused) -> bytes:
    """A whole answer, for where there is no app to give one."""
    body = msgspec.json.encode(refused.body())
    lines = [
        f"HTTP/1.1 {refused.status} {REASONS[refused.status]}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in refused.headers()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
