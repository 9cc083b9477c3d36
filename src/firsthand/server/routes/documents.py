"""`/openapi.json`, and `/docs` as a page of our own.

Owns: these routes. The page loads nothing from outside, and its policy forbids it to.
May not know: what the document says.
Read next: `../openapi.py`, `../page/docs.js`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from firsthand.server.routes.submitting import json_reply

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'self'; connect-src 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def documents_router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return json_reply(document())

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _asset("docs.html", "text/html; charset=utf-8")

    @router.get("/docs/docs.js", include_in_schema=False)
    async def docs_script() -> Response:
        return _asset("docs.js", "text/javascript; charset=utf-8")

    return router


def _asset(name: str, kind: str) -> Response:
    content = resources.files("firsthand.server").joinpath("page", name).read_bytes()
    return Response(content, headers={**PAGE_HEADERS, "content-type": kind})
