"""Every error that leaves the server, in one shape: OpenAI's error body.

Owns: how refusals, the tree of `errors.py` and the framework's own exceptions become that body,
and that a fault of ours never says more than its request's id; the rest of it goes to the log.
May not know: routes, what a field means.
Read next: `guard/refusal.py` (`Refused`, which any part of the server raises), `boundary.py`
(faults that nobody expected), `../errors.py` (the tree).

    {"error": {"message": …, "type": …, "param": … or null, "code": … or null}}
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from firsthand.errors import (
    CapacityExceeded,
    ContextLengthExceeded,
    EngineClosed,
    EngineLost,
    EngineSlept,
    EngineUnavailable,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from firsthand.server.guard.access import route_path
from firsthand.server.guard.call import call_of
from firsthand.server.guard.refusal import (
    KINDS,
    Refused,
    blocks_error,
    draining,
    error_body,
    in_blocks,
)
from firsthand.server.headers import note_outcome, request_id_of
from firsthand.server.locating import steps_in, written
from firsthand.values import dataclass

_LOG = logging.getLogger(__name__)

JSON = "application/json"
MAX_PARAM_CHARS = 200
RESTART_RETRY_S = 2
UNKNOWN_FIELD = frozenset(("extra_forbidden", "unsupported_parameter"))
UNSUPPORTED_FIELD = frozenset(("unsupported_question", "misplaced"))
CAPACITY_RETRY_S = 1  # until the guard, which measures it, says better

_NO_ENGINE = {
    EngineLost: "the engine was lost with this request, and is started again",
    EngineSlept: "the model was put to sleep with this request",
    EngineUnavailable: "the engine is not there now: it loads, or is restarted",
}
_WORDS = {404: "no such route", 405: "this route does not have that method"}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What is told to the caller. `headers` go with it, unless a stream has begun already."""

    status: int
    code: str | None
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return KINDS.get(self.status, "invalid_request_error" if self.status < 500 else _FAULT)

    def body(self) -> dict[str, dict[str, Any]]:
        param = None if self.param is None else self.param[:MAX_PARAM_CHARS]
        return error_body(self.message, self.type, param, self.code, self.usage)

    def told(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """In the form of the route that was asked."""
        if in_blocks(route_path(scope)):
            return blocks_error(self.status, self.message)
        return self.body()

    def response(self, scope: Mapping[str, Any]) -> Response:
        content = msgspec.json.encode(self.told(scope))
        return Response(content, self.status, dict(self.headers), media_type=JSON)


def reply_for(fault: Exception, request_id: str) -> ErrorReply:
    """What a fault means to the caller; `request_id` is all that is said about an unknown one."""
    match fault:
        case Refused():
            headers = dict(fault.headers())
            told = (fault.status, fault.code, fault.message, fault.param, headers)
            return ErrorReply(*told, usage=fault.usage)
        case ContextLengthExceeded():
            return ErrorReply(400, "context_length_exceeded", str(fault), fault.field)
        case InvalidRequest():
            return ErrorReply(400, "invalid_value", str(fault), fault.field)
        case CapacityExceeded():
            retry = {"retry-after": str(CAPACITY_RETRY_S)}
            return ErrorReply(503, "queue_full", str(fault), headers=retry)
        case ModelNotFound():
            return ErrorReply(404, "model_not_found", str(fault), "model")
        case EngineClosed():
            return reply_for(draining(), request_id)
        case EngineUnavailable():
            message = next(text for kind, text in _NO_ENGINE.items() if isinstance(fault, kind))
            retry = {"retry-after": str(RESTART_RETRY_S)}
            return ErrorReply(503, "loading", message, headers=retry)
        case UnsupportedModel():
            return ErrorReply(400, "unsupported_parameter", str(fault))
        case _:
            return internal_error(request_id)


def ending_of(fault: Exception) -> str:
    """The word by which the log and the count tell what became of the request."""
    match fault:
        case Refused():
            return fault.ending
        case EngineClosed():
            return "shutdown"
        case EngineSlept():
            return "sleep"
        case EngineLost():
            return "engine_lost"
        case CapacityExceeded() | EngineUnavailable():
            return "refused"
        case InvalidRequest() | ModelNotFound() | UnsupportedModel():
            return "invalid"
        case _:
            return "failed"


def reply_and_log(fault: Exception, scope: Scope) -> ErrorReply:
    """`reply_for`, noted as what became of the request; what it keeps from the caller goes to the
    log, unless it was planned."""
    request_id = request_id_of(scope)
    reply = reply_for(fault, request_id)
    note_outcome(scope, ending_of(fault), reply.status)
    if reply.status >= 500:
        call_of(scope).cause = f"{type(fault).__name__}: {fault}"
    planned = isinstance(fault, EngineClosed | EngineSlept)
    if isinstance(fault, EngineUnavailable) and not planned:
        _LOG.warning("request %s: %s", request_id, fault)
    elif reply.status == 500:
        log_fault(request_id, f"{type(fault).__name__}: {fault}")
    return reply


def log_fault(request_id: str, text: str) -> None:
    """A fault that ended a request. The traceback is the engine's own line of the log."""
    _LOG.error("request %s: %s", request_id, text)


def internal_error(request_id: str) -> ErrorReply:
    """For a fault of ours. Whoever calls this logs what happened, under the request's id."""
    message = f"the server failed to answer this request; its id is {request_id}"
    return ErrorReply(500, "internal_error", message)


def install(app: FastAPI) -> None:
    """Let every exception that a route or the framework raises end as our body."""

    async def known(request: Request, fault: Exception) -> Response:
        return reply_and_log(fault, request.scope).response(request.scope)

    async def unknown(request: Request, fault: Exception) -> Response:
        note_outcome(request.scope, "failed")
        call_of(request.scope).cause = type(fault).__name__
        return reply_for(fault, request_id_of(request.scope)).response(request.scope)

    async def http(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        status = fault.status_code
        message = _WORDS.get(status, "the request was refused")
        code = "not_found" if status == 404 else None
        reply = ErrorReply(status, code, message, headers=fault.headers or {})
        return reply.response(request.scope)

    async def validation(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, RequestValidationError)
        reply = reply_and_log(invalid(fault.errors(), fault.body), request.scope)
        return reply.response(request.scope)

    app.add_exception_handler(FirsthandError, known)
    app.add_exception_handler(Exception, unknown)  # it goes on to the boundary, which logs it
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, validation)


def invalid(errors: object, value: object) -> Refused:
    """The refusal for pydantic's list of what is wrong with `value`: one of them, the one that
    lies deepest, for that is the branch of a choice which came nearest to fitting; of two, the one
    of the right type.
    """
    assert isinstance(errors, list | tuple)
    worst = max(errors, key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))
    kind, message = str(worst["type"]), str(worst["msg"])
    steps = steps_in(value, worst["loc"], missing=kind == "missing")
    if kind.startswith("union_tag"):  # of the field that tells the forms apart
        field = worst["ctx"]["discriminator"].strip("'")
        steps.append("type" if field.endswith("()") else field)  # a function reads `type`
        tags = worst["ctx"].get("expected_tags")
        message = "is missing" if tags is None else f"must be one of {tags}"
    param = written(steps) or None
    unsupported = kind in UNKNOWN_FIELD | UNSUPPORTED_FIELD
    if kind == "extra_forbidden":
        message = "no such field is supported"
    code = "unsupported_parameter" if unsupported else "invalid_value"
    return Refused(400, f"{(param or 'the body')[:MAX_PARAM_CHARS]}: {message}", code, param)


_FAULT = "server_error"
