"""An engine that answers and computes nothing is given up; one that has nothing to do is not.

Owns: proof of `Watch.stall_s`, with a process that is written down beforehand.
Read next: `test_remote.py`, for engines that die, hang, or are slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.errors import EngineUnavailable
from firsthand.generation import remote as remote_module
from firsthand.generation.frames import FromChild, LoadModel, Ping, Pong, Ready, Submit, ToChild
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.remote import Remote
from firsthand.generation.service_values import Status
from firsthand.generation.watch import Watch
from firsthand.request import Request, SamplingParams, StopRules
from tests.generation.test_frames import ENGINE

Take = Callable[[FromChild], None]
REQUEST = Request("r", (1, 2), SamplingParams(), StopRules(9), seed=1)


class Busy:
    """A process that is ready at once, and answers each ping; it has never made a step."""

    pid = 1
    started: list[Busy]

    def __init__(self, take: Take) -> None:
        self._take = take
        self.is_killed = False
        self.asked: list[ToChild] = []

    @classmethod
    async def start(cls, take: Take) -> Busy:
        cls.started.append(cls(take))
        return cls.started[-1]

    def send(self, message: ToChild) -> None:
        self.asked.append(message)
        if isinstance(message, LoadModel):
            self._take(Ready(ENGINE))
        elif isinstance(message, Ping):
            self._take(Pong(message.number, 0))

    async def wait_ended(self, limit_s: float) -> bool:
        await asyncio.sleep(limit_s)
        return self.is_killed

    def cpu_s(self) -> float:
        return 0.0

    def kill(self) -> None:
        self.is_killed = True

    async def end(self) -> str:
        return "ended"


def run(
    monkeypatch: pytest.MonkeyPatch, watch: Watch, work: Callable[[Remote], Awaitable[None]]
) -> None:
    def nothing(_: StepFacts | Request) -> None:
        pass

    async def main() -> None:
        Busy.started = []
        monkeypatch.setattr(remote_module, "EngineProcess", Busy)
        load = LoadModel("model", LoadOptions())
        remote = Remote(load, watch, 4, nothing, nothing)
        async with asyncio.timeout(60):
            remote.start()
            await remote.wait_ready()
            try:
                await work(remote)
            finally:
                await remote.stop(Status.CLOSED, "over")

    asyncio.run(main())


def test_ops_2_r_13_requests_without_a_step_are_told_and_the_engine_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(remote: Remote) -> None:
        stream = remote.submit(REQUEST)
        with pytest.raises(EngineUnavailable, match="no step for"):
            await stream.get()
        while remote.num_restarts < 1 or remote.status is not Status.READY:
            await asyncio.sleep(0.001)
        assert len(Busy.started) == 2
        assert any(isinstance(message, Submit) for message in Busy.started[0].asked)

    run(monkeypatch, Watch(beat_s=0.005, stall_s=0.05, hang_s=60.0), work)


def test_ops_2_an_engine_without_requests_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also right after its first request came, however long it had nothing to do before."""

    async def work(remote: Remote) -> None:
        first = remote.pid
        await asyncio.sleep(0.2)
        assert (remote.status, remote.pid, remote.stalled_s) == (Status.READY, first, 0.0)
        remote.submit(REQUEST)
        assert remote.stalled_s < 10.0
        assert remote.num_restarts == 0

    run(monkeypatch, Watch(beat_s=0.005, stall_s=0.05, hang_s=60.0), work)
