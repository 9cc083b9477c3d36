"""The OpenAPI document: what the routes take and give, from the same models that check it.

Owns: how a route is described, and the document's assembly.
May not know: what any route does.
Read next: `app.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from firsthand.checks import shown
from firsthand.server.guard.refusal import Refused
from firsthand.server.wire.replies import ErrorBody

REF = "#/components/schemas/{model}"

_ERRORS: dict[int, str] = {
    400: "A field is wrong, unknown or not supported; `param` names it",
    404: "No such model, or no such route",
    413: "The body is too large",
    415: "The body's type is not taken",
    429: "This caller's limit; `Retry-After` says when to come again",
    500: "A fault of the server",
    503: "The server's limit, or no engine now; `Retry-After` says when to come again",
}


def described(
    body: type[BaseModel] | None,
    reply: type[BaseModel] | None,
    summary: str,
    *,
    streams: bool = False,
    also: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    errors: tuple[int, ...] = (400, 404, 413, 415, 429, 500, 503),
    error_body: type[BaseModel] = ErrorBody,
) -> dict[str, Any]:
    """Keyword arguments of a route. `also`: other media types of body and reply. `streams`: it can
    answer with events. `texts`: the media types of a reply that is no JSON.
    `flags`: words that may stand in the query; any other is refused by name.
    The schema of the body is added by `document`."""
    content: dict[str, Any] = {}
    if streams:
        content["text/event-stream"] = {}
    for kind in (*also, *texts):
        content[kind] = {}
    ok: dict[str, Any] = {"description": "The answer"}
    if reply is not None:
        ok["model"] = reply
    if content:
        ok["content"] = content
    error: dict[str, Any] = {"model": error_body}
    if texts:  # a model would have the form of the answers
        reference = {"$ref": REF.format(model=ErrorBody.__name__)}
        error = {"content": {"application/json": {"schema": reference}}}
    route: dict[str, Any] = {
        "summary": summary,
        "response_model": None,
        "dependencies": [Depends(_only(flags))],
        "responses": {
            200: ok,
            **{code: {**error, "description": _ERRORS[code]} for code in errors},
        },
    }
    if texts:
        route["response_class"] = PlainTextResponse
    if flags:
        parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in flags]
        route["openapi_extra"] = {"parameters": parameters}
    if body is not None:
        reference = {"$ref": REF.format(model=body.__name__)}
        route.setdefault("openapi_extra", {})["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": reference} for kind in ("application/json", *also)},
        }
    return route


def _only(flags: tuple[str, ...]) -> Callable[[Request], Awaitable[None]]:
    async def check(request: Request) -> None:
        for name in request.query_params:
            if name not in flags:
                message = f"{shown(name)} in the query: fields are taken from the body alone"
                if flags:
                    message = f"{shown(name)}: the query may have {', '.join(flags)} and no more"
                raise Refused(400, message, "unsupported_parameter", name)

    return check


def document(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The whole document; `bodies` are the models that `described` refers to."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, schema = models_json_schema([(body, "validation") for body in bodies], ref_template=REF)
    components = found.setdefault("components", {}).setdefault("schemas", {})
    components.update(schema.get("$defs", {}))
    return found
