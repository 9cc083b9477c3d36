"""The operator's verbs, on a Unix socket of the owner alone.

Owns: the verbs, their answers, the socket and its mode.
May not know: how a verb is carried out. None of this is on the public port, where it is a 404.
Read next: `verbs.py`, which carries them out.

    curl --unix-socket PATH -X POST http://localhost/firsthand/admin/drain
    … /firsthand/admin/reload   /sleep?model=NAME   /wake_up?model=NAME   /ps
    … /firsthand/admin/loglevel?level=debug
    … /firsthand/admin/requests?limit=20   /request?id=ID
    … /firsthand/admin/chaos?fault=slow&amount=200&seconds=60
    … /firsthand/admin/release?path=FOLDER&model=NAME
    … /firsthand/admin/canary?path=FOLDER&share=5%25&by=request   /canary   /canary?share=0
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, MutableMapping
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.server.guard.middleware import send_refusal
from firsthand.server.guard.refusal import Refused
from firsthand.server.logs import tell
from firsthand.values import dataclass

_LOG = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
PREFIX = "/firsthand/admin/"
MAX_NAME_CHARS = 80

# Its parameters are the names that its query may have; each is a text, and has a default.
Verb = Callable[..., Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class AdminApp:
    """Plain ASGI. A verb that raises an error of ours is answered with 400, any other with 500."""

    verbs: dict[str, Verb]

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        if scope["type"] != "http":
            return
        try:
            content = await self._answer(scope)
        except Refused as refused:
            await send_refusal(send, refused)
        except FirsthandError as error:
            await send_refusal(send, Refused(400, str(error), "invalid_value"))
        except Exception as fault:
            _LOG.exception("an admin verb failed")
            text = f"a fault of ours, told in the log: {type(fault).__name__}"
            await send_refusal(send, Refused(500, text, "internal_error"))
        else:
            await _send_json(send, content)

    async def _answer(self, scope: MutableMapping[str, Any]) -> dict[str, Any]:
        name = str(scope["path"]).removeprefix(PREFIX)
        verb = self.verbs.get(name)
        if verb is None or not str(scope["path"]).startswith(PREFIX):
            raise Refused(404, f"there are {', '.join(sorted(self.verbs))}", "not_found")
        if scope["method"] != "POST":
            raise Refused(400, "an admin verb takes POST", "invalid_value")
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        known = signature(verb).parameters
        for key, values in query.items():
            if key not in known or len(values) > 1:
                message = f"{name} takes once each: {', '.join(known) or 'nothing'}"
                raise Refused(400, message, "invalid_value", key[:MAX_NAME_CHARS])
        tell("admin", f"admin verb {name}", verb=name)
        return await verb(**{key: values[0] for key, values in query.items()})


async def _send_json(send: Send, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def bind_unix(path: Path, setting: str, mode: int = 0o600) -> socket.socket:
    """A listening Unix socket; one that an earlier process left is replaced, another file never.

    The mode is right from the first moment on: the socket is made under a mask, not changed later.
    Raises InvalidRequest.
    """
    _remove_left(path, setting)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise InvalidRequest(setting, f"{path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _remove_left(path: Path, setting: str) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidRequest(setting, f"{path} is there already, and no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise InvalidRequest(setting, f"{path}: another server listens there")
