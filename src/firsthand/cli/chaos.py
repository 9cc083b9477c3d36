"""The command that puts a fault into a running server: chaos.

Owns: its options, and the two faults of clients: one that reads nothing, many that ask at once.
May not know: what the other faults do.
Read next: `../server/chaos.py`, which has them all; docs/handbook, whose entries they reproduce.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from firsthand.addresses import Address, address_of
from firsthand.cli import options
from firsthand.cli.admin import ask_admin
from firsthand.cli.output import print_json, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url, first_key
from firsthand.errors import InvalidRequest

UNITS = ("ms", "share", "mib", "num")
NAMES = (
    "slow, fail, stall, memory, cache, corrupt, upstream, kill, hang, disk, client or flood; see "
    "docs/cli.md."
)
FLOOD_TOKENS = 64
DEFAULT_LENGTH, SPARE_TOKENS = 4096, 64  # of the context, and of it for the prompt
PAUSE_S = 0.02  # of a client that was refused
LAST_ANSWER_S = 60.0
SMALL_BUFFER = 4096  # of a client that reads nothing


Socket = Annotated[
    Path | None,
    typer.Option(
        "--admin-socket",
        envvar="FIRSTHAND_ADMIN_SOCKET",
        metavar="PATH",
        help="Of a server that was started with --chaos.",
    ),
]


def chaos(
    fault: Annotated[str, typer.Argument(metavar="FAULT", help=NAMES)],
    admin_socket: Socket = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long; default: the fault's own.")
    ] = None,
    ms: Annotated[float | None, typer.Option(help="Of slow, upstream: milliseconds.")] = None,
    share: Annotated[float | None, typer.Option(help="Of fail, cache: 0 … 1.")] = None,
    mib: Annotated[float | None, typer.Option(help="Of memory: mebibytes.")] = None,
    num: Annotated[float | None, typer.Option(help="Of client, flood: how many.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model; default: all.")] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Put a fault into a running server, for a time, to see what it looks like."""
    with reported(as_json):
        if admin_socket is None:
            raise InvalidRequest("admin-socket", "is missing: that of serve --chaos")
        given = dict(zip(UNITS, (ms, share, mib, num), strict=True))
        amounts = {unit: amount for unit, amount in given.items() if amount is not None}
        if len(amounts) > 1:
            raise InvalidRequest(next(iter(amounts)), "a fault has one amount")
        query: dict[str, object] = {"fault": fault, "seconds": seconds, "model": model}
        for unit, amount in amounts.items():
            query |= {"unit": unit, "amount": amount}
        found = ask_admin(admin_socket, "chaos", query)
        say(f"{fault}: {found['about']}, for {found['seconds']:g} s; it ends by itself")
        if fault in ("client", "flood"):
            act = _flood if fault == "flood" else _read_nothing
            found |= act(url, first_key(api_key), int(found["num"]), float(found["seconds"]))
        if as_json:
            print_json(found)
        elif "answers" in found:
            print(", ".join(f"{status}: {count}" for status, count in found["answers"].items()))


def _flood(url: str, api_key: str | None, num: int, lasts_s: float) -> dict[str, Any]:
    """So many clients, each asking again as soon as it is answered. Answers by their status."""
    server = address_of(url, api_key)
    answers: Counter[str] = Counter()
    until_s, lock = time.perf_counter() + lasts_s, threading.Lock()

    def ask() -> None:
        while time.perf_counter() < until_s:
            try:
                with closing(server.connect()) as connection:
                    response = _ask(server, connection, {"max_tokens": FLOOD_TOKENS})
                    status = str(response.status)
                    response.read()
            except (OSError, http.client.HTTPException):
                status = "none"
            with lock:
                answers[status] += 1
            if status != "200":
                time.sleep(PAUSE_S)

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(num)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(lasts_s + LAST_ANSWER_S)
    return {"answers": dict(sorted(answers.items()))}


def _read_nothing(url: str, api_key: str | None, num: int, lasts_s: float) -> dict[str, Any]:
    """Streams that nobody reads, each of several long answers. What they were answered with."""
    from firsthand.cli.client import client_of

    server = address_of(url, api_key)
    length = client_of(url, api_key).models()[0].get("max_model_len") or DEFAULT_LENGTH
    longest = max(1, int(length) - SPARE_TOKENS)
    wanted = {"n": 16, "logprobs": 20, "stream": True, "max_tokens": longest}
    with ExitStack() as held:
        statuses = []
        for _ in range(num):
            connection = held.enter_context(closing(server.connect()))
            _connect_small(connection)
            response = _ask(server, connection, wanted)
            held.callback(response.close)
            statuses.append(response.status)
        time.sleep(lasts_s)
    return {"answers": dict(sorted(Counter(map(str, statuses)).items()))}


def _connect_small(connection: http.client.HTTPConnection) -> None:
    """By a socket that takes little at a time: that has to be said before."""
    sock = socket.socket(socket.AF_INET6 if ":" in connection.host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    sock.connect((connection.host, connection.port))
    if isinstance(connection, http.client.HTTPSConnection):
        context = ssl.create_default_context()
        sock = context.wrap_socket(sock, server_hostname=connection.host)
    connection.sock = sock


def _ask(
    server: Address, connection: http.client.HTTPConnection, wanted: dict[str, Any]
) -> http.client.HTTPResponse:
    body = {"prompt": "Once upon a time", "ignore_eos": True, **wanted}
    headers = {"Content-Type": "application/json", **server.headers}
    connection.request("POST", f"{server.path}/completions", json.dumps(body), headers)
    return connection.getresponse()
