"""Servers for the tests of this folder: one with written answers, in process.

Owns: the fixtures. May not know: any route. Read next: `fakes.py`, `running.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from firsthand.server.app import build_app
from firsthand.server.house import House
from firsthand.server.metrics import Metrics
from tests.server.fakes import FakeService

Client = Callable[..., httpx.Response]


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def house(service: FakeService) -> House:
    return House({"micro": service}, Metrics(), version="1.2.3")


@pytest.fixture
def ask(house: House) -> Client:
    """One request to the app, without a socket; `ask("POST", "/x", json=…)`."""
    import asyncio

    app = build_app(house)

    def send(method: str, path: str, **more: object) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, **more)  # type: ignore[arg-type]

        return asyncio.run(run())

    return send
