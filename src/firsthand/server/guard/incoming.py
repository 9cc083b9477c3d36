"""What may come in as a request: headers, framing, the body's size, depth and pace.

Owns: these limits and the reading of a body within them, before anything is made of it.
May not know: what a body means, who sends it.
Read next: `connection.py`, which keeps the pace of the headers; `middleware.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from firsthand.server.guard.refusal import Refused
from firsthand.server.headers import DEADLINE
from firsthand.server.locating import NUMBER_DIGITS, steps_to_fault, written
from firsthand.values import dataclass

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Headers = Sequence[tuple[bytes, bytes]]

_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
_STRUCTURE = re.compile(rb'[\[\]{}"]')
_STRING_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_LONGEST_NUMBER = re.compile(rb"[0-9]{%d}" % NUMBER_DIGITS)


# Of two, another program might go by the other one.
SINGLE = ("Authorization", "Content-Type", "X-Api-Key", "X-Priority", DEADLINE)
SMALL_BODY_BYTES = 64 << 10  # of one that nobody wants: it is there already, or nearly


@dataclass(frozen=True, slots=True)
class IncomingLimits:
    max_body_bytes: int = 8 << 20
    max_header_bytes: int = 32 << 10
    max_headers: int = 100
    max_json_depth: int = 64
    max_items: int = 1_000_000  # commas and brackets of JSON, items of MessagePack; hence objects
    receive_timeout_s: float = 10.0


class Disconnected(Exception):
    """The client is gone before its request was whole; nobody is to be answered."""


def check_head(
    target_bytes: int, http_version: str, headers: Headers, limits: IncomingLimits
) -> None:
    """Raises Refused: too long a path, too many or too large headers, or what another program could
    read in another way. `target_bytes`: of the path with its query."""
    if target_bytes > limits.max_header_bytes:
        raise target_too_long(limits)
    num_bytes = target_bytes + sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > limits.max_headers or num_bytes > limits.max_header_bytes:
        message = f"at most {limits.max_headers} headers of {limits.max_header_bytes} bytes in all"
        raise Refused(431, message, "headers_too_large", close=True)
    named: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        named.setdefault(name, []).append(value)
    encodings = named.get(b"transfer-encoding", [])
    hosts = named.get(b"host", [])
    faults = (
        (http_version not in ("1.0", "1.1"), None, "this version of HTTP is not spoken here"),
        (
            len(hosts) != 1 and (http_version == "1.1" or bool(hosts)),
            "Host",
            "exactly one Host header is needed",
        ),
        (
            not all(map(_is_host, hosts)),
            "Host",
            "Host must be a name or an address, and may have a port",
        ),
        (
            encodings not in ([], [b"chunked"]),
            "Transfer-Encoding",
            "the only transfer coding is chunked",
        ),
        (
            bool(encodings) and http_version == "1.0",
            "Transfer-Encoding",
            "HTTP/1.0 has no transfer codings",
        ),
        (
            bool(encodings) and b"content-length" in named,
            "Content-Length",
            "a body has one length",
        ),
        (b"upgrade" in named, "Upgrade", "no other protocol is spoken here"),
        *(
            (len(named.get(name.lower().encode(), ())) > 1, name, f"{name} is given twice")
            for name in SINGLE
        ),
    )
    for found, header, message in faults:
        if found:
            raise Refused(400, message, "invalid_request", header, close=True)
    if any(value.lower() != b"100-continue" for value in named.get(b"expect", ())):
        message = "the only expectation that is met is 100-continue"
        raise Refused(417, message, "expectation_failed", "Expect", close=True)
    coding = named.get(b"content-encoding", [b"identity"])
    if coding != [b"identity"]:
        message = "the body must not be compressed"
        raise Refused(415, message, "unsupported_media_type", "Content-Encoding", close=True)


def target_too_long(limits: IncomingLimits) -> Refused:
    message = f"a path has at most {limits.max_header_bytes} bytes"
    return Refused(414, message, "uri_too_long", close=True)


def _is_host(given: bytes) -> bool:
    found = _HOST.fullmatch(given)
    return found is not None and int(found[1] or 0) < 1 << 16


def declared_bytes(headers: Headers) -> int | None:
    """The length that the head promises; None: it comes in chunks, or there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return None


def has_body(headers: Headers) -> bool:
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    return chunked or bool(declared_bytes(headers))


@dataclass(slots=True)
class Incoming:
    """`receive`, which remembers whether the request was read to its end."""

    receive: Receive
    headers: Headers
    whole: bool = False

    async def __call__(self) -> Message:
        message = await self.receive()
        self.whole |= message["type"] == "http.request" and not message.get("more_body", False)
        return message

    async def ends_soon(self, limits: IncomingLimits) -> bool:
        """Whether another request may follow on this connection, though this one is refused: a
        small body is read for that, a large one is not."""
        if self.whole or not has_body(self.headers):
            return True
        num_bytes = declared_bytes(self.headers)
        waits = any(name == b"expect" for name, _ in self.headers)
        if num_bytes is None or num_bytes > SMALL_BODY_BYTES or waits:
            return False
        try:
            async with asyncio.timeout(limits.receive_timeout_s):
                while (message := await self()).get("more_body", False):
                    pass
        except TimeoutError:
            return False
        return bool(message["type"] == "http.request")


async def receive_body(receive: Receive, headers: Headers, limits: IncomingLimits) -> bytes:
    """The whole body. Raises Refused, 413 before more than the limit is held, or 408 when it is not
    there in time; Disconnected."""
    too_large = Refused(
        413, f"the body is larger than {limits.max_body_bytes} bytes", "body_too_large", close=True
    )
    if (declared_bytes(headers) or 0) > limits.max_body_bytes:
        raise too_large
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.receive_timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                parts.append(message.get("body", b""))
                num_bytes += len(parts[-1])
                if num_bytes > limits.max_body_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        text = f"the request was not there within {limits.receive_timeout_s:g} s"
        raise Refused(408, text, "receive_timeout", close=True) from None


def check_json(body: bytes, max_depth: int) -> None:
    """Raises Refused, 400, on what would cost a parser too much: nesting, or a number of more
    digits than any value has. Whether it is JSON at all is the parser's to say."""
    depth, at, outside = 0, 0, []
    while (found := _STRUCTURE.search(body, at)) is not None:
        outside.append(body[at : found.start()])
        at = found.end()
        mark = found[0]
        if mark == b'"':
            end = _STRING_END.match(body, at)
            if end is None:
                return
            at = end.end()
        elif mark in b"[{":
            depth += 1
            if depth > max_depth:
                message = f"the body is nested deeper than {max_depth}"
                raise Refused(400, message, "invalid_json")
        else:
            depth -= 1
    outside.append(body[at:])
    if any(_LONGEST_NUMBER.search(part) for part in outside):
        param = written(steps_to_fault(body)) or None
        raise Refused(400, "the body holds a number of too many digits", "invalid_json", param)
