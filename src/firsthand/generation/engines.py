"""What a service needs of whatever computes for it: the seam below `service.py`.

Owns: `Engines`, and how a service has one made.
May not know: whether there is one engine or many, in which process, on which machine.
Read next: `remote.py`, one engine in a process beside; above, `cluster/fleet.py`, many on others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from firsthand.engine.facts import StepFacts
from firsthand.generation.frames import Disturb, EngineFacts, LoadModel, Look, Pace
from firsthand.generation.remote_stream import RemoteStream
from firsthand.generation.service_values import Replicas, Status
from firsthand.generation.watch import Watch
from firsthand.request import Request, TokenEvent
from firsthand.scheduling.picture import Picture


class Engines(Protocol):
    """On one event loop; `start`, then `submit`; `stop` may be followed by `start`. What each of
    these means is stated at `remote.Remote`."""

    @property
    def facts(self) -> EngineFacts | None: ...
    @property
    def status(self) -> Status: ...
    @property
    def reason(self) -> str: ...
    @property
    def since_s(self) -> float: ...
    @property
    def silent_s(self) -> float | None: ...
    @property
    def stalls_s(self) -> float: ...
    @property
    def last_step_s(self) -> float | None: ...
    @property
    def num_restarts(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def progress(self) -> float | None: ...
    @property
    def memory_short(self) -> bool: ...
    @property
    def peak_rss_bytes(self) -> int: ...
    @property
    def replicas(self) -> Replicas | None: ...
    @property
    def picture(self) -> Picture | None: ...
    @property
    def pace(self) -> Pace: ...
    def start(self) -> None: ...
    async def wait_ready(self) -> None: ...
    async def stop(self, status: Status, reason: str) -> None: ...
    def cut(self, reason: str) -> None: ...
    def submit(self, request: Request) -> RemoteStream: ...
    def abort(self, request_id: str) -> bool: ...
    async def disturb(self, fault: Disturb) -> None: ...
    def tell(self, message: Look | Pace) -> None: ...


class MakesEngines(Protocol):
    """`Remote` is one. The callbacks are called on the event loop: `on_step` gets each step's
    facts, then `on_events` its events, before those are delivered; `on_end` gets each request that
    has ended, or was lost."""

    def __call__(
        self,
        load: LoadModel,
        watch: Watch,
        max_requests: int,
        on_step: Callable[[StepFacts], None],
        on_end: Callable[[Request], None],
        on_events: Callable[[tuple[TokenEvent, ...]], None],
        clock: Callable[[], float],
    ) -> Engines: ...
