"""Where the server listens, and whether it may.

Owns: the sockets, TLS, the rule for public addresses, what uvicorn is told.
May not know: what is served.
Read next: `guard/connection.py`, `running.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import uvicorn

from firsthand.addresses import is_loopback
from firsthand.errors import InvalidRequest
from firsthand.server.admin import bind_unix
from firsthand.server.guard.connection import Peers
from firsthand.server.guard.incoming import IncomingLimits
from firsthand.server.guard.keys import KeyRing
from firsthand.server.logs import tell
from firsthand.server.settings import Settings
from firsthand.values import dataclass

BACKLOG = 2048


def check_exposure(settings: Settings, keys: KeyRing) -> None:
    """Raises InvalidRequest for a public address that needs no key; warns of one without TLS."""
    if settings.uds is not None or is_loopback(settings.host):
        return
    if settings.ssl_certfile is None:
        text = "without TLS keys and texts go over the network as they are; see --ssl-certfile"
        tell("no_tls", text, logging.WARNING)
    if keys or settings.insecure:
        return
    message = "others can reach this address: set --api-key-file or --api-key, or say --insecure"
    raise InvalidRequest("host", f"{settings.host}: {message}")


@dataclass(slots=True)
class Tls:
    """`listening` is what a listener is given; a handshake is made with `now`, which a reload
    replaces: whoever is connected stays, sessions are resumed as before."""

    listening: ssl.SSLContext
    now: ssl.SSLContext


def tls_of(settings: Settings) -> Tls | None:
    """Raises as `tls_context`."""
    context = tls_context(settings)
    if context is None:
        return None
    tls = Tls(context, context)

    def choose(secure: ssl.SSLObject, name: str | None, listening: ssl.SSLContext) -> None:
        secure.context = tls.now

    context.sni_callback = choose  # asked in each handshake, also where no name is sent
    return tls


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Of the files as they are now. Raises InvalidRequest for what is no certificate and its
    key."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With no password for an encrypted key nobody is asked for one at a terminal.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, lambda: "")
    except (OSError, ValueError) as error:
        files = f"{settings.ssl_certfile} and {settings.ssl_keyfile}"
        raise InvalidRequest("ssl_certfile", f"{files}: {_reason(error)}") from None
    if settings.ssl_ca_certs is None:
        return context
    try:
        context.load_verify_locations(settings.ssl_ca_certs)
    except (OSError, ValueError) as error:
        message = f"{settings.ssl_ca_certs}: {_reason(error)}"
        raise InvalidRequest("ssl_ca_certs", message) from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "cannot be used").replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or "cannot be used"


def bind(settings: Settings) -> list[socket.socket]:
    """The one socket that was asked for. Raises InvalidRequest."""
    if settings.uds is not None:
        return [bind_unix(settings.uds, "uds")]
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise InvalidRequest("host", f"{settings.host}: no such address") from None
    family, kind, protocol, _, where = found[0]
    # With its protocol named: only of such a socket does asyncio know that it may send small pieces
    # at once. Else each waits for the one before it to be acknowledged, 40 ms and more.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(BACKLOG)  # what connects while the model loads is not turned away
    except OSError as error:
        listener.close()
        raise InvalidRequest("port", f"{settings.host}:{settings.port}: {error.strerror}") from None
    listener.setblocking(False)
    return [listener]


def bind_admin(settings: Settings) -> socket.socket | None:
    if settings.admin_socket is None:
        return None
    return bind_unix(settings.admin_socket, "admin_socket")


def remove_sockets(settings: Settings) -> None:
    for path in (settings.uds, settings.admin_socket):
        if path is not None:
            path.unlink(missing_ok=True)


def address(settings: Settings, listeners: Sequence[socket.socket]) -> str:
    """As a person would type it."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    port = listeners[0].getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{port}{settings.root_path}"


def listener_of(
    config: uvicorn.Config, handshake_s: float, tls: Tls | None = None
) -> uvicorn.Server:
    """uvicorn's server, which leaves signals to us: it would end at the first one."""
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    server.startup = partial(_listen, server, handshake_s, tls)  # type: ignore[method-assign]
    return server


async def _listen(
    server: uvicorn.Server,
    handshake_s: float,
    tls: Tls | None,
    sockets: Sequence[socket.socket] | None = None,
) -> None:
    """uvicorn lets a handshake of TLS take a minute; before its end a connection is neither counted
    nor has it a deadline of ours."""
    config, loop = server.config, asyncio.get_running_loop()

    def protocol() -> asyncio.Protocol:
        make: Any = config.http_protocol_class
        return make(config=config, server_state=server.server_state, app_state={})  # type: ignore[no-any-return]

    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"ssl": tls.listening, "ssl_shutdown_timeout": 2.0}
        secure["ssl_handshake_timeout"] = handshake_s
    server.servers = [
        await loop.create_server(protocol, sock=one, backlog=BACKLOG, **secure)
        for one in sockets or ()
    ]
    server.started = True


def uvicorn_config(settings: Settings, app: Any, peers: Peers | None) -> uvicorn.Config:
    """`peers` None: the admin socket, which has no prefix."""
    return uvicorn.Config(
        app,
        http=(peers or Peers(IncomingLimits())).protocol,  # type: ignore[arg-type]  # what makes one
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.timeout_keep_alive,
        root_path="" if peers is None else settings.root_path,
    )
