"""`/`: the page of this server, and the files that it is made of.

Owns: these routes, and the policy by which a browser runs the page: scripts and styles from here
alone, none of them inline, text never as HTML, no other place to send anything to.
May not know: what the page does.
Read next: `../page_files.py`, the list; `../page/app.js`, where the page begins.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from importlib import resources

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.server.page_files import FILES, INDEX, PAGE, PREFIX, TYPES

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def page_router() -> APIRouter:
    router = APIRouter()
    for path, name in ((PAGE, INDEX), *((PREFIX + name, name) for name in FILES)):
        router.add_api_route(
            path, partial(_file, name), methods=["GET", "HEAD"], include_in_schema=False
        )
    return router


async def _file(name: str, request: Request) -> Response:
    content = read_file(name)
    tag = f'"{sha256(content).hexdigest()[:16]}"'
    headers = {**HEADERS, "etag": tag, "content-type": TYPES[name.rpartition(".")[2]]}
    if request.headers.get("if-none-match") == tag:
        return Response(None, 304, headers)
    return Response(content, headers=headers)


def read_file(name: str) -> bytes:
    return resources.files("firsthand.server").joinpath("page", name).read_bytes()
