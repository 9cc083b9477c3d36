"""The page before a recording in place of a server.

Owns: this small application, on this machine's own address.
May not know: what is in a recording.
Read next: `../observe/recording.py`; `routes/page.py`, `routes/live.py`, of which it has the paths.

Where the recording ends, the page connects again, and it plays anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp

from firsthand.observe.recording import read
from firsthand.server.boundary import Boundary
from firsthand.server.routes.live import STREAM
from firsthand.server.routes.page import page_router
from firsthand.server.sse import EventStreamResponse, StreamSettings, event

HOST = "127.0.0.1"


def recorded_app(path: Path) -> ASGIApp:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.routes.extend(page_router().routes)

    @app.get(STREAM)
    async def stream() -> Response:
        return EventStreamResponse(_events(path), StreamSettings())

    return Boundary(app)


async def _events(path: Path) -> AsyncGenerator[bytes, None]:
    for gap_s, news in read(path):
        await asyncio.sleep(gap_s)
        yield event(news)


def show_recording(path: Path, port: int) -> None:
    """Until Ctrl-C. Raises InvalidRequest for a file that is no recording."""
    next(read(path), None)
    uvicorn.run(recorded_app(path), host=HOST, port=port, log_level="warning")
