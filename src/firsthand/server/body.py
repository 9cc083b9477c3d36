"""A request's body becomes a checked value, or a refusal that names the field.

Owns: which content types are taken; strict JSON and MessagePack.
May not know: what the fields mean (`wire/`), who asks.
Read next: `wire/base.py`, `message_pack.py`, `errors.py`.

Its bytes are read by `guard/incoming.py`; its shape is checked before anything is made of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import Request

from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object
from firsthand.server.asides import note_ignored
from firsthand.server.errors import JSON
from firsthand.server.guard.incoming import Disconnected, IncomingLimits, receive_body
from firsthand.server.guard.refusal import Refused, client_gone
from firsthand.server.leniency import validated
from firsthand.server.locating import steps_to_fault, written
from firsthand.server.message_pack import RepeatedKey, check_items

Body = TypeVar("Body", bound=BaseModel)

MESSAGE_PACK = "application/msgpack"
MESSAGE_PACK_TYPES = (MESSAGE_PACK, "application/x-msgpack", "application/vnd.msgpack")
MAX_FIELDS = 256
THREAD_BYTES = 256 * 1024  # from here on parsing would be felt by the other streams


async def read_body(
    request: Request,
    model: type[Body],
    limits: IncomingLimits,
    *,
    message_pack: bool = False,
    lenient: bool = False,
) -> Body:
    """The body as `model`. Raises Refused: 400, 413, 415. `message_pack`: taken beside JSON.
    `lenient`: fields that `model` does not have are left out, and noted as ignored."""
    kind = _content_type(request, message_pack)
    try:
        content = await receive_body(request.receive, request.scope["headers"], limits)
    except Disconnected as gone:
        raise client_gone() from gone
    parse = _parse_json if kind == JSON else _parse_message_pack

    def make() -> tuple[Body, list[str]]:
        return _validate(model, parse(content, limits), lenient)

    body, left_out = make() if len(content) < THREAD_BYTES else await asyncio.to_thread(make)
    note_ignored(request.scope, *left_out)
    return body


def wants_message_pack(request: Request) -> bool:
    """Whichever of the two `Accept` names first; else the reply goes as the body came."""
    for given in request.headers.get("accept", "").split(","):
        kind = given.partition(";")[0].strip().lower()
        if kind in (JSON, *MESSAGE_PACK_TYPES):
            return kind != JSON
    return _media_type(request) in MESSAGE_PACK_TYPES


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _content_type(request: Request, message_pack: bool) -> str:
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refused(415, "a compressed body is not taken", "unsupported_media_type")
    kind = _media_type(request)
    if kind == JSON:
        charset = request.headers.get("content-type", "").lower().partition("charset=")[2]
        if charset.strip(' "') in ("", "utf-8", "utf8"):
            return JSON
    elif message_pack and kind in MESSAGE_PACK_TYPES:
        return MESSAGE_PACK
    wanted = f"{JSON} or {MESSAGE_PACK}" if message_pack else JSON
    raise Refused(415, f"the body must be {wanted}, in UTF-8", "unsupported_media_type")


def _parse_json(content: bytes, limits: IncomingLimits) -> dict[str, Any]:
    try:
        return parse_json_object(content, "the body", limits.max_items)
    except CheckpointError as error:
        param = written(steps_to_fault(content)) or None
        raise Refused(400, str(error), "invalid_value", param) from error


def _parse_message_pack(content: bytes, limits: IncomingLimits) -> dict[str, Any]:
    try:
        check_items(content, limits.max_items)
    except RepeatedKey as error:
        raise Refused(400, f"the body: {error}", "invalid_value", written(error.steps)) from error
    except ValueError as error:
        raise Refused(400, f"the body: {error}", "invalid_value") from error
    try:
        value = msgspec.msgpack.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Refused(400, "the body is no MessagePack", "invalid_value") from error
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise Refused(400, "the body: MessagePack is not an object", "invalid_value")
    return value


def _validate(model: type[Body], value: dict[str, Any], lenient: bool) -> tuple[Body, list[str]]:
    if len(value) > MAX_FIELDS:  # each that is unknown would have an error of its own
        raise Refused(400, f"the body: at most {MAX_FIELDS} fields", "invalid_value")
    return validated(model, value, lenient=lenient)
