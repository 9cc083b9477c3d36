"""The watch over the engine's process, and its streams of events, fed by hand."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import EngineError, EngineUnavailable, InvalidRequest
from firsthand.generation.assembly import StepCost
from firsthand.generation.async_stream import AsyncTextStream
from firsthand.generation.choice import Job
from firsthand.generation.frames import LoadModel
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.remote import Remote
from firsthand.generation.remote_stream import RemoteStream
from firsthand.generation.report import LoadTimes, Memory, StepLedger, build_report
from firsthand.generation.service_values import Prompt, Status
from firsthand.generation.texts import Texts
from firsthand.generation.watch import Watch, is_hung
from firsthand.request import (
    Finish,
    FinishReason,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
)

WAIT_S = 90.0


def request(n: int = 1) -> Request:
    return Request("r", (1, 2), SamplingParams(), StopRules(99, ignore_end=True), seed=1, n=n)


class Letters:
    """Token i is the letter i."""

    strip_first_space = False

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        return bytes([token_id])


class Fed:
    """A stream of events, the text over it, and what it asked the engine to end."""

    def __init__(self, n: int = 1, stop: tuple[str, ...] = ()) -> None:
        self.aborted: list[int | None] = []
        self.events = RemoteStream(request(n), lambda _, index: self.aborted.append(index))
        texts = Texts(
            Job(request(n), stop, True, 0.0, 0.0),
            Letters(),
            time.perf_counter,
            StepLedger(8),
            lambda request, timeline, steps: build_report(
                LoadTimes(0, 0, 0, 0, 0, 0), Memory(0, 0, 0, 0, 0), 2, timeline, steps
            ),
        )
        self.stream = AsyncTextStream(self.events, texts, Prompt((1, 2), True, 0.0, 0.0))

    def put(self, letters: str, index: int = 0, finish: FinishReason | None = None) -> None:
        for at, letter in enumerate(letters):
            last = finish is not None and at == len(letters) - 1
            end = Finish(finish) if last and finish is not None else None
            self.events.put(TokenEvent("r", ord(letter), 1.0, finish=end, index=index))

    def end(self, reason: FinishReason, index: int = 0, cause: str | None = None) -> None:
        self.events.put(TokenEvent("r", None, 1.0, finish=Finish(reason, cause), index=index))


def test_what_came_meanwhile_is_one_chunk_of_one_sequence() -> None:
    async def main() -> None:
        fed = Fed(n=2)
        fed.put("ab", 0)
        fed.put("xy", 1)
        fed.put("c", 0, FinishReason.LENGTH)
        fed.put("z", 1, FinishReason.LENGTH)
        chunks = [chunk async for chunk in fed.stream]
        assert [(chunk.index, chunk.text) for chunk in chunks] == [
            (0, "ab"), (1, "xy"), (0, "c"), (1, "z"),
        ]  # fmt: skip
        assert [c.text for c in await fed.stream.completions()] == ["abc", "xyz"]
        assert fed.stream.usage.completion_tokens == 6
        assert fed.aborted == []

    asyncio.run(main())


def test_a_stop_string_ends_its_sequence_and_the_last_one_all() -> None:
    async def main() -> None:
        fed = Fed(n=2, stop=("b",))
        fed.put("ab", 0)
        fed.put("x", 1)
        assert (await anext(fed.stream)).text == "a"
        assert fed.aborted == [0]
        fed.end(FinishReason.CANCELLED, 0)  # what the abort crossed
        assert (await anext(fed.stream)).text == "x"
        fed.put("b", 1)
        chunk = await anext(fed.stream)
        assert chunk.completion is not None and chunk.completion.text == "x"
        assert fed.aborted == [0, None]
        with pytest.raises(StopAsyncIteration):
            await anext(fed.stream)

    asyncio.run(main())


def test_a_fault_of_a_step_is_raised_or_is_the_end_of_its_sequence() -> None:
    async def main() -> None:
        alone = Fed()
        alone.put("a")
        alone.end(FinishReason.ERROR, cause="the step failed")
        with pytest.raises(EngineError, match="request r: the step failed"):
            await alone.stream.completions()
        several = Fed(n=2)
        several.end(FinishReason.ERROR, 0)
        several.put("a", 1, FinishReason.LENGTH)
        reasons = [c.finish.reason for c in await several.stream.completions()]
        assert reasons == [FinishReason.ERROR, FinishReason.LENGTH]

    asyncio.run(main())


def test_a_lost_engine_is_told_after_what_had_come() -> None:
    async def main() -> None:
        for n in (1, 2):
            fed = Fed(n)
            waiting = asyncio.ensure_future(anext(fed.stream))
            await asyncio.sleep(0)
            fed.put("a")
            assert (await waiting).text == "a"
            fed.put("b")
            fed.events.fail(EngineUnavailable("lost"))
            assert (await anext(fed.stream)).text == "b"
            for _ in range(2):
                with pytest.raises((EngineUnavailable, StopAsyncIteration)):
                    await anext(fed.stream)

    asyncio.run(main())


def test_a_wait_that_is_cancelled_loses_nothing_and_a_close_ends_a_wait() -> None:
    async def main() -> None:
        fed = Fed()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(fed.stream), 0.01)
        fed.put("a")
        assert (await anext(fed.stream)).text == "a"
        waiting = asyncio.ensure_future(anext(fed.stream, None))
        await asyncio.sleep(0)
        fed.stream.close()
        assert await waiting is None
        assert fed.aborted == [None]
        with pytest.raises(EngineError, match="closed"):
            await fed.stream.completions()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("silent_s", "used_s", "hung"),
    [
        (7.9, 0.0, False),
        (8.1, 0.0, True),  # stopped, or waits for what does not come
        (8.1, 2.0, False),  # slow: it gets a quarter of a processor
        (60.0, 7.9, False),
        (8.1, 8.1, True),  # turns in a circle: no step takes so much
        (8.1, None, True),
    ],
)
def test_a_step_that_is_slow_is_no_hang(silent_s: float, used_s: float | None, hung: bool) -> None:
    assert is_hung(silent_s, used_s, StepCost(1000.0, 2000.0), 8.0) is hung
    assert not is_hung(9.0, None, StepCost(3000.0, 3000.0), 8.0)


def test_a_load_that_fails_waits_longer_each_time_an_engine_that_was_ready_hardly() -> None:
    watch = Watch()
    failed = [watch.delay_s(number, was_ready=False) for number in range(1, 12)]
    assert failed[:4] == [0.0, 0.25, 0.5, 1.0] and failed[-1] == watch.max_retry_s
    died = [watch.delay_s(number, was_ready=True) for number in (1, 2, 3, 1000)]
    assert died == [0.0, 0.25, 0.5, watch.max_return_s]
    assert watch.max_return_s < 5.0


class Watched:
    """A remote over the tiny model; what it told."""

    def __init__(self, folder: Path, **watch: Any) -> None:
        self.ended: list[str] = []
        self.remote = Remote(
            LoadModel(str(folder), LoadOptions(max_context=256, threads=1)),
            Watch(**watch),
            max_requests=4,
            on_step=lambda facts: None,
            on_end=lambda request: self.ended.append(request.request_id),
        )


def run(watched: Watched, work: Callable[[Remote], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            watched.remote.start()
            try:
                await work(watched.remote)
            finally:
                await watched.remote.stop(Status.CLOSED, "over")

    asyncio.run(main())


@pytest.mark.native
def test_an_id_in_progress_is_refused_and_each_end_is_told_once(micro_folder: Path) -> None:
    watched = Watched(micro_folder)

    async def work(remote: Remote) -> None:
        with pytest.raises(EngineUnavailable, match="loading"):
            remote.submit(request())
        await remote.wait_ready()
        stream = remote.submit(request(n=2))
        with pytest.raises(InvalidRequest, match="in progress"):
            remote.submit(request())
        stream.close()
        while remote.num_requests:
            await asyncio.sleep(0.001)
        assert watched.ended == ["r"]
        remote.submit(request())

    run(watched, work)
    assert watched.ended == ["r", "r"]
    assert watched.remote.status is Status.CLOSED


@pytest.mark.native
def test_a_model_that_is_gone_is_tried_again_until_it_is_back(
    micro_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(micro_folder, folder)
    watched = Watched(folder, retry_s=0.05)

    async def work(remote: Remote) -> None:
        await remote.wait_ready()
        folder.rename(tmp_path / "away")
        assert remote.pid is not None
        os.kill(remote.pid, signal.SIGKILL)
        while "no model" not in remote.reason:
            assert remote.status in (Status.READY, Status.RESTARTING)
            await asyncio.sleep(0.01)
        assert not remote.is_lost  # a new process would not find the model either
        (tmp_path / "away").rename(folder)
        await remote.wait_ready()
        assert remote.num_restarts >= 2

    run(watched, work)


@pytest.mark.native
def test_a_process_that_cannot_be_started_is_a_failure_with_its_reason(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(micro_folder)

    async def work(remote: Remote) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", fail)
            with pytest.raises(EngineUnavailable, match="no processes left"):
                await remote.wait_ready()
        assert remote.status is Status.FAILED
        remote.start()
        await remote.wait_ready()

    run(watched, work)


def fail(*_: object, **__: object) -> None:
    raise OSError("no processes left")


@pytest.mark.native
def test_an_engine_that_dies_while_it_loads_says_how(micro_folder: Path) -> None:
    async def work(remote: Remote) -> None:
        while remote.pid is None:
            await asyncio.sleep(0)
        os.kill(remote.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="SIGKILL"):
            await remote.wait_ready()

    run(Watched(micro_folder), work)


@pytest.mark.native
def test_an_engine_that_dies_at_every_start_is_lost(micro_folder: Path) -> None:
    """Until a start succeeds: Kubernetes may be slower than the cause."""
    watched = Watched(micro_folder, retry_s=0.001, max_dead_starts=2)

    async def work(remote: Remote) -> None:
        await remote.wait_ready()
        while not remote.is_lost:
            if remote.pid is not None:
                os.kill(remote.pid, signal.SIGKILL)
            await asyncio.sleep(0.001)
        assert remote.status is Status.RESTARTING
        await remote.wait_ready()
        assert not remote.is_lost

    run(watched, work)


@pytest.mark.native
def test_a_frame_that_is_none_costs_the_engine_not_the_service(micro_folder: Path) -> None:
    async def work(remote: Remote) -> None:
        await remote.wait_ready()
        first = remote.pid
        assert remote._process is not None
        remote._process._link.data_received(b"\xff" * 8)
        while remote.status is Status.READY:
            await asyncio.sleep(0.001)
        await remote.wait_ready()
        assert remote.pid != first

    run(Watched(micro_folder), work)


@pytest.mark.native
def test_a_watch_that_fails_leaves_nobody_waiting(micro_folder: Path) -> None:
    watched = Watched(micro_folder)

    async def work(remote: Remote) -> None:
        await remote.wait_ready()
        stream = remote.submit(request())
        assert remote._process is not None and remote.pid is not None
        os.kill(remote.pid, signal.SIGSTOP)
        remote._process.cpu_s = lambda: 1 / 0  # type: ignore[method-assign]
        with pytest.raises(EngineUnavailable, match="watch"):
            while True:
                await stream.get()
        assert remote.status is Status.FAILED
        remote.start()
        await remote.wait_ready()

    run(watched, work)
