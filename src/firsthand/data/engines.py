"""Whatever answers: asked in the form of OpenAI's API, in this process or over HTTP.

Owns: the protocol, what a reply means to a run, how often and when one asks again.
May not know: how an answer is made; sockets.
Read next: `http_engine.py`; `../server/inside.py`, the one in this process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

from firsthand.errors import EngineUnavailable
from firsthand.values import dataclass
from firsthand.version import VERSION

ROUTES = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
LOST = 599
MAX_TRIES = 3  # of a record whose tries fail; then it is poison
BACK_OFF_S = (0.1, 0.3)  # before the second try and the third
BUSY_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # while the engine takes nothing; the last again and again


class Reply(NamedTuple):
    """`status` 0: nobody was reached; `content` says why. LOST: there was a connection, and no
    reply came by it, which may be the record's fault."""

    status: int
    content: bytes
    retry_after_s: float | None = None

    def json(self) -> Any:
        """None for what is no JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None

    @property
    def message(self) -> str:
        found = self.json()
        error = found.get("error", found) if isinstance(found, dict) else None
        text = error.get("message") if isinstance(error, dict) else error
        if not isinstance(text, str):
            text = self.content[:200].decode("utf-8", "replace")
        said = {0: "no reply", LOST: "the connection was lost"}.get(self.status, self.status)
        return f"{said}: {text[:300]}"


class Engine(Protocol):
    """`width`: so many requests at once keep its batch full."""

    @property
    def width(self) -> int: ...

    def ask(
        self, method: str, path: str, content: bytes | None, request_id: str
    ) -> Future[Reply]: ...

    def close(self) -> None: ...


class Meaning(Enum):
    """What a reply says of the record that was asked about."""

    ANSWERED = "answered"
    REFUSED = "refused"  # the record's own fault: it would be refused again
    FAILED = "failed"  # perhaps the record's fault: asked again, and then no more
    BUSY = "busy"  # not the record's fault: asked again as long as patience lasts
    CLOSED = "closed"  # nothing will be answered


def meaning_of(reply: Reply) -> Meaning:
    if reply.status == 200:
        return Meaning.ANSWERED
    if reply.status in (0, 408, 409, 425, 429, 503, 504):
        return Meaning.BUSY
    if reply.status in (401, 403):
        return Meaning.CLOSED
    return Meaning.REFUSED if reply.status < 500 else Meaning.FAILED


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Of the model that answers: what lineage says of it."""

    model: str
    model_sha256: str | None
    version: str

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "model_sha256": self.model_sha256, "engine": self.version}


def facts_of(engine: Engine, model: str | None) -> EngineFacts:
    """Of the named model, or of the engine's first. Raises EngineUnavailable."""
    found = _get(engine, "/v1/models")
    cards = found.get("data") if isinstance(found, Mapping) else None
    names = [card for card in cards or () if isinstance(card, Mapping)]
    card = next((one for one in names if model in (None, one.get("id"))), None)
    if card is None:
        raise EngineUnavailable(f"the engine has no model {model or 'at all'}")
    sha256 = card.get("firsthand_manifest_sha256")
    server = _get(engine, "/version")
    version = server.get("version") if isinstance(server, Mapping) else None
    return EngineFacts(
        str(card.get("id")),
        sha256 if isinstance(sha256, str) else None,
        f"firsthand {VERSION}" if version == VERSION else f"version {version}",
    )


def _get(engine: Engine, path: str) -> Any:
    reply = engine.ask("GET", path, None, "facts").result()
    if reply.status in (200, 404):
        return reply.json()
    raise EngineUnavailable(f"the engine does not say what it is: {reply.message}")
