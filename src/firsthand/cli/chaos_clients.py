"""The two faults of chaos that are clients: one that reads nothing, many that ask at once.

Owns: how they ask, and what they were answered with.
May not know: options, the server's own faults.
Read next: `chaos.py`, their user.
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
from typing import Any

from firsthand.addresses import Address, address_of
from firsthand.cli.client import client_of

FLOOD_TOKENS = 64
DEFAULT_LENGTH, SPARE_TOKENS = 4096, 64  # of the context, and of it for the prompt
PAUSE_S = 0.02  # of a client that was refused
LAST_ANSWER_S = 60.0
SMALL_BUFFER = 4096  # of a client that reads nothing


def flood(url: str, api_key: str | None, num: int, lasts_s: float) -> dict[str, Any]:
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


def read_nothing(url: str, api_key: str | None, num: int, lasts_s: float) -> dict[str, Any]:
    """Streams that nobody reads, each of several long answers. What they were answered with."""
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
