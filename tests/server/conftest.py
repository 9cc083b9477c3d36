"""Servers for the tests of this folder: with written answers in process, and with a real engine.

Owns: the fixtures. May not know: any route. Read next: `fakes.py`, `running.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from firsthand.cli.micro_model import write_micro_model
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import Service, ServiceOptions
from firsthand.observe.metrics import Metrics
from firsthand.server.app import build_app
from firsthand.server.house import House
from firsthand.server.sse import StreamSettings
from tests.server.fakes import FakeService
from tests.server.running import Running, serving

Client = Callable[..., httpx.Response]


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def house(service: FakeService) -> House:
    return House({"micro": service}, Metrics(), version="1.2.3")


@pytest.fixture
def ask(house: House) -> Client:
    return asking(house)


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a context that takes seconds to fill."""
    return write_micro_model(tmp_path_factory.mktemp("long"), context_length=16384)


def asking(house: House) -> Client:
    """One request to the app, without a socket; `ask("POST", "/x", json=…)`."""
    app = build_app(house)

    def send(method: str, path: str, **more: object) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, **more)  # type: ignore[arg-type]

        return asyncio.run(run())

    return send


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@dataclass(frozen=True)
class Live:
    """A server with a real engine behind it."""

    running: Running
    service: Service
    house: House
    client: Any  # the official one, untyped: its types know nothing of the extensions


@pytest.fixture(scope="session")
def live(micro_folder: Path) -> Iterator[Live]:
    with live_server(ServiceOptions(micro_folder, LoadOptions(threads=1), name="micro")) as server:
        yield server


@contextmanager
def live_server(options: ServiceOptions, **settings: Any) -> Iterator[Live]:
    from openai import OpenAI  # it takes a second to load, and most tests have no use for it

    made: list[tuple[Service, House]] = []

    async def make() -> ASGIApp:
        service = await Service.start(options)
        await service.wait_ready()
        stream = StreamSettings(ping_s=0.3, stall_s=2.0)
        house = House({str(options.name): service}, Metrics(), stream=stream, **settings)
        made.append((service, house))
        return build_app(house)

    async def close() -> None:
        for service, _ in made:
            await service.close()

    with (
        serving(make, close) as running,
        OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Live(running, *made[0], client)
