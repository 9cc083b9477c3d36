"""A server in the form of OpenAI's API, as a command talks to it.

Owns: requests and their errors, an answer that comes as server-sent events.
May not know: what is printed, who types.
Read next: `remote.py`, its user.

What comes is not trusted: lines and bodies are bounded, and what is no event of the protocol ends
the answer with an error. Nothing is tried again: a person sees what happened, and decides.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from firsthand.addresses import Address, address_of, fault_of
from firsthand.cli.conversation import Piece
from firsthand.errors import EngineUnavailable, FirsthandError, InvalidRequest, ModelNotFound
from firsthand.values import dataclass

MAX_LINE_BYTES = 4 << 20
MAX_BODY_BYTES = 16 << 20
MAX_MESSAGE_CHARS = 500
STREAM = "/firsthand/engine/stream"


@dataclass(frozen=True, slots=True)
class Client:
    """Made by `client_of`."""

    address: Address

    def __str__(self) -> str:
        return str(self.address)

    def models(self) -> list[dict[str, Any]]:
        """The cards of what is there. Raises FirsthandError."""
        with closing(self.address.connect()) as connection:
            found = _read_json(
                self, self._ask(connection, "GET", f"{self.address.path}/models", None)
            )
        cards = found.get("data") if isinstance(found, dict) else None
        if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
            raise EngineUnavailable(f"{self}: is no server of OpenAI's API: it lists no models")
        return [card for card in cards if isinstance(card.get("id"), str)]

    def own(self, path: str, method: str = "GET") -> dict[str, Any]:
        """What one of Firsthand's own routes says. Raises FirsthandError."""
        with closing(self.address.connect()) as connection:
            whole = self.address.path.removesuffix("/v1") + path
            found = _read_json(self, self._ask(connection, method, whole, None))
        if not isinstance(found, dict):
            raise EngineUnavailable(f"{self}: says what is no JSON object")
        return found

    def chat(self, body: Mapping[str, Any]) -> Generator[Piece]:
        """An answer as it comes; closing it ends the request, there too. Raises FirsthandError."""
        with closing(self.address.connect()) as connection:
            sent = {**body, "stream": True}
            response = self._ask(connection, "POST", f"{self.address.path}/chat/completions", sent)
            yield from self._pieces(response)

    def engine_news(self) -> Generator[dict[str, Any]]:
        """What the engines do, and then whatever changes. Raises FirsthandError."""
        with closing(self.address.connect()) as connection:
            path = self.address.path.removesuffix("/v1") + STREAM
            response = self._ask(connection, "GET", path, None)
            for data in self._data(response):
                yield _event(self, data)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json, text/event-stream"}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, ensure_ascii=False).encode()
        headers |= self.address.headers
        try:
            self.address.open(connection)
            connection.request(method, path, content, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise EngineUnavailable(f"{self}: {fault_of(error)}") from None
        if response.status != 200:
            raise _refusal(self, response)
        return response

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[Piece]:
        ended = False
        for data in self._data(response):
            if data == "[DONE]":
                return
            piece = _piece(self, data)
            ended = ended or piece.finish_reason is not None
            yield piece
        if not ended:
            raise EngineUnavailable(f"{self}: the answer was cut off")

    def _data(self, response: http.client.HTTPResponse) -> Iterator[str]:
        """The content of each event; other lines are comments, or fields that nobody needs."""
        while True:
            try:
                line = response.readline(MAX_LINE_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                raise EngineUnavailable(f"{self}: {fault_of(error)}") from None
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise EngineUnavailable(f"{self}: sends a line over {MAX_LINE_BYTES} bytes")
            name, _, value = line.decode("utf-8", "replace").strip().partition(":")
            if name == "data":
                yield value.strip()


def client_of(url: str, api_key: str | None) -> Client:
    """Raises InvalidRequest."""
    return Client(address_of(url, api_key))


def _read_json(client: Client, response: http.client.HTTPResponse) -> Any:
    try:
        content = response.read(MAX_BODY_BYTES + 1)
        return json.loads(content) if len(content) <= MAX_BODY_BYTES else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise EngineUnavailable(f"{client}: {fault_of(error)}") from None


def _event(client: Client, data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EngineUnavailable(f"{client}: sends an event that is no JSON object")
    if "error" in value:
        raise EngineUnavailable(f"{client}: {_message(value)}")
    return value


def _piece(client: Client, data: str) -> Piece:
    value = _event(client, data)
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Piece()  # the usage, or what this program does not know
    delta = choices[0].get("delta")
    delta = delta if isinstance(delta, dict) else {}
    reason, timings = choices[0].get("finish_reason"), value.get("timings")
    return Piece(
        _text(delta.get("content")),
        _text(delta.get("reasoning") or delta.get("reasoning_content")),
        reason if isinstance(reason, str) else None,
        timings if isinstance(timings, dict) else None,
    )


def _refusal(client: Client, response: http.client.HTTPResponse) -> FirsthandError:
    """Whose fault it is, by the status; the server's own words where it has some."""
    try:
        found = _read_json(client, response)
    except EngineUnavailable:
        found = None
    status, later = response.status, response.headers.get("Retry-After", "")
    message = f"{client}: {status} {response.reason}: {_message(found)}"
    if later.isascii() and later.isdigit():
        message += f" (to be tried again in {later} s)"
    if status == 404:
        return ModelNotFound(message)
    if status in (401, 403):
        return InvalidRequest("api_key", message)
    return InvalidRequest("request", message) if status < 500 else EngineUnavailable(message)


def _message(value: Any) -> str:
    """Servers disagree whether an error is nested, and what its text is called."""
    error = value.get("error", value) if isinstance(value, dict) else None
    text = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return _text(text)[:MAX_MESSAGE_CHARS] or "no reason was given"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
