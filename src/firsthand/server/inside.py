"""The server's routes without a socket: a model in this process's care, asked as over HTTP.

Owns: the engine of such a model.
May not know: what is asked.
Read next: `calling.py`; `../data/engines.py`, whose protocol this keeps.
"""

from __future__ import annotations

from concurrent.futures import Future

from starlette.types import ASGIApp

from firsthand.data.engines import Reply
from firsthand.data.loop import Loop
from firsthand.generation.service import Service, ServiceOptions
from firsthand.observe.metrics import Metrics
from firsthand.server.app import build_app
from firsthand.server.calling import AHEAD, asked
from firsthand.server.house import House
from firsthand.version import VERSION


class InsideEngine:
    """Raises what a load raises: ModelNotFound, CheckpointError, CapacityExceeded, …"""

    def __init__(self, options: ServiceOptions, width: int | None = None) -> None:
        self._loop = Loop("inside")
        self._service: Service | None = None
        try:
            self._app = self._loop.wait(self._start(options))
        except BaseException:
            self.close()
            raise
        self.width = width or max(1, AHEAD * self._max_sequences)

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        return self._loop.begin(asked(self._app, method, path, content, request_id))

    def close(self) -> None:
        """Who still asks is told by the engine's end. May be called again."""
        if not self._loop.is_closed and self._service is not None:
            self._loop.wait(self._service.close())
        self._loop.close()

    async def _start(self, options: ServiceOptions) -> ASGIApp:
        self._service = await Service.start(options)
        await self._service.wait_ready()
        model = self._service.model
        self._max_sequences = model.max_sequences
        return build_app(House({model.name: self._service}, Metrics(), version=VERSION))
