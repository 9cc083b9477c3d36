"""One model by several engines: which of them answers cannot be told, nor that one was lost.

Owns: the door's side with real engines, without Ray. May not know: HTTP. Read next:
`test_cluster.py`, the same on Ray.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firsthand.cluster import sending
from firsthand.cluster.fleet import Fleet, fleet_of
from firsthand.cluster.rotation import Routing
from firsthand.engine.facts import StepFacts
from firsthand.errors import EngineClosed, EngineLost, InvalidRequest
from firsthand.generation.completion import Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.options import Options
from firsthand.generation.service import Service, ServiceOptions, Status
from tests.cluster.in_process import Deployer, InProcess

pytestmark = [pytest.mark.native, pytest.mark.process]

WAIT_S = 60.0
LONG: Options = {"max_tokens": 90, "ignore_end": True}
OPTIONS: list[Options] = [
    {**LONG, "temperature": 0, "logprobs": 2},
    {**LONG, "seed": 5, "temperature": 0.9, "repetition_penalty": 1.1, "presence_penalty": 0.3},
    {"max_tokens": 90, "seed": 6, "temperature": 0.8, "grammar": {"regex": "([a-z]{2,9} ){30}"}},
    {**LONG, "seed": 7, "stop": ["zz", "qa"]},
]


@asynccontextmanager
async def served(
    folder: Path, num_replicas: int = 2, routing: Routing = Routing.LEAST_LOADED
) -> AsyncIterator[tuple[Service, InProcess, Fleet]]:
    made: list[Fleet] = []
    deployer = Deployer(num_replicas)

    def make(*given: Any, **named: Any) -> Fleet:
        made.append(fleet_of(deployer, routing)(*given, **named))
        return made[0]

    load = LoadOptions(max_context=160, threads=1, max_sequences=8)
    service = await Service.start(ServiceOptions(folder, load, name="micro"), engines=make)
    async with service:
        async with asyncio.timeout(WAIT_S):
            await service.wait_ready()
            assert deployer.calls is not None
            while made[0].rotation.num_reached < num_replicas:
                await asyncio.sleep(0.02)
        yield service, deployer.calls, made[0]


def on_loop(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_S):
            await main()

    asyncio.run(limited())


async def answer(service: Service, options: Options, text: str = "hello") -> Completion:
    stream = service.submit(await service.tokenize(text), options)
    (completion,) = await stream.completions()
    return completion


def bits(completion: Completion) -> tuple[Any, ...]:
    return completion.text, completion.token_ids, completion.finish, completion.logprobs


def test_f_49_equal_bits_whichever_replica_answers(micro_folder: Path) -> None:
    async def main() -> None:
        alone = await Service.start(
            ServiceOptions(micro_folder, LoadOptions(max_context=160, threads=1))
        )
        async with alone:
            await alone.wait_ready()
            wanted = [bits(await answer(alone, options)) for options in OPTIONS]
        async with served(micro_folder, routing=Routing.ROUND_ROBIN) as (service, calls, fleet):
            steps: list[StepFacts] = []
            service.listen(steps.append)
            for _ in range(2):
                found = await asyncio.gather(*(answer(service, one) for one in OPTIONS))
                assert [bits(one) for one in found] == wanted
            assert {calls.sent.count(name) for name in ("r0", "r1")} == {len(OPTIONS)}
            assert service.load.num_open == 0 and not fleet._by_wire
            assert {i for step in steps for i in step.request_ids} == {
                f"request-{number}" for number in range(2 * len(OPTIONS))
            }

    on_loop(main)


@pytest.mark.parametrize("at", range(len(OPTIONS)))
def test_g_38_a_stream_goes_on_at_another_replica_and_the_joint_cannot_be_seen(
    micro_folder: Path, at: int
) -> None:
    async def main() -> None:
        async with served(micro_folder) as (service, calls, fleet):
            wanted = bits(await answer(service, OPTIONS[at]))
            calls.sent.clear()
            service.set_pace(paused=False, delay_s=0.005)
            stream = service.submit(await service.tokenize("hello"), OPTIONS[at])
            num_tokens = 0
            async for chunk in stream:
                num_tokens += len(chunk.token_ids)
                if num_tokens >= 5 and len(calls.running) == 2:
                    await calls.lose(calls.sent[0])
            (completion,) = await stream.completions()
            assert bits(completion) == wanted
            assert len(set(calls.sent)) == 2 and fleet.num_moved == 1
            assert stream.usage.completion_tokens == len(completion.token_ids)
            assert service.state.status is Status.READY

    on_loop(main)


def test_g_38_a_replica_that_says_nothing_is_left_and_what_it_says_later_is_not_heard(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is cut, and mended: the link is silent, the replica goes on."""
    monkeypatch.setattr("firsthand.cluster.link.SILENT_S", 1.5)

    async def main() -> None:
        async with served(micro_folder) as (service, calls, fleet):
            wanted = bits(await answer(service, OPTIONS[1]))
            calls.sent.clear()
            service.set_pace(paused=False, delay_s=0.005)
            stream = service.submit(await service.tokenize("hello"), OPTIONS[1])
            await anext(stream)
            calls.silent.add(calls.sent[0])
            (completion,) = await stream.completions()
            assert bits(completion) == wanted
            await asyncio.sleep(2.2)  # it is asked again, in vain
            assert fleet.num_lost == 1
            calls.silent.clear()
            while fleet.rotation.num_reached < 2:
                await asyncio.sleep(0.02)
            assert bits(await answer(service, OPTIONS[1])) == wanted

    on_loop(main)


def test_an_engine_that_crashes_takes_no_stream_with_it(micro_folder: Path) -> None:
    """Not even where there is no other one: the same goes on, once it is back."""

    async def main() -> None:
        async with served(micro_folder, num_replicas=1) as (service, calls, fleet):
            wanted = bits(await answer(service, OPTIONS[0]))
            service.set_pace(paused=False, delay_s=0.02)
            stream = service.submit(await service.tokenize("hello"), OPTIONS[0])
            await anext(stream)
            pid = calls.replicas["r0"].engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            (completion,) = await stream.completions()
            assert bits(completion) == wanted and fleet.num_moved

    on_loop(main)


def test_a_request_that_kills_who_takes_it_is_given_up(micro_folder: Path) -> None:
    async def main() -> None:
        async with served(micro_folder) as (service, calls, _):
            calls.is_cursed = True
            stream = service.submit(await service.tokenize("hello"), OPTIONS[0])
            with pytest.raises(EngineLost):
                await stream.completions()
            assert len(calls.sent) == sending.MAX_LOST + 1
            assert service.load.num_open == 0

    on_loop(main)


def test_s_105_who_is_to_go_gets_nothing_new_and_finishes_what_it_has(micro_folder: Path) -> None:
    async def main() -> None:
        async with served(micro_folder, routing=Routing.ROUND_ROBIN) as (service, calls, fleet):
            wanted = bits(await answer(service, OPTIONS[0]))
            service.set_pace(paused=False, delay_s=0.01)
            streams = [service.submit(await service.tokenize("hello"), OPTIONS[0]) for _ in "abcd"]
            for stream in streams:
                await anext(stream)
            calls.running.discard("r1")
            while not fleet.links["r1"].is_leaving:
                await asyncio.sleep(0.02)
            calls.sent.clear()
            late = await answer(service, OPTIONS[0])
            for stream in streams:
                (completion,) = await stream.completions()
                assert bits(completion) == wanted
            assert calls.sent == ["r0"] and fleet.num_moved == 0 and bits(late) == wanted
            while "r1" in fleet.links:
                await asyncio.sleep(0.02)

    on_loop(main)


def test_what_is_aborted_ends_there_and_what_was_not_sent_ends_here(micro_folder: Path) -> None:
    async def main() -> None:
        async with served(micro_folder, num_replicas=1) as (service, calls, _):
            service.set_pace(paused=False, delay_s=0.01)
            stream = service.submit(await service.tokenize("hello"), LONG, n=2)
            await anext(stream)
            assert service.abort(stream.request_id)
            completions = await stream.completions()
            assert {one.finish_reason for one in completions} == {"cancelled"}
            calls.running.clear()
            waiting = service.submit(await service.tokenize("hello"), LONG)
            await asyncio.sleep(0.1)
            service.abort(waiting.request_id)
            (completion,) = await waiting.completions()
            assert completion.finish_reason == "cancelled" and not completion.token_ids
            with pytest.raises(InvalidRequest, match="max_tokens"):
                service.submit(await service.tokenize("hello"), {"max_tokens": -1})

    on_loop(main)


def test_g_38_who_is_on_the_way_to_a_replica_that_is_cut_off_goes_elsewhere(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no call, and its link is silent: a call that waits for its receipt is sent again."""
    monkeypatch.setattr("firsthand.cluster.link.SILENT_S", 1.5)

    async def main() -> None:
        async with served(micro_folder, routing=Routing.ROUND_ROBIN) as (service, calls, fleet):
            wanted = bits(await answer(service, OPTIONS[0]))
            calls.silent.add("r0")
            calls.deaf.add("r0")
            found = await asyncio.gather(*(answer(service, OPTIONS[0]) for _ in range(4)))
            assert [bits(one) for one in found] == [wanted] * 4
            assert fleet.rotation.num_reached == 1

    on_loop(main)


def test_a_door_that_is_heard_no_more_has_left(
    micro_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links end: else a replica would never be free to go."""
    monkeypatch.setattr("firsthand.cluster.replica.DOOR_S", 1.0)
    monkeypatch.setattr("firsthand.cluster.fleet.ALIVE_TURNS", 1_000_000)

    async def main() -> None:
        async with served(micro_folder, num_replicas=1) as (_, calls, fleet):
            (first,) = calls.replicas["r0"].doors
            while not fleet.num_lost:
                await asyncio.sleep(0.02)
            assert first == fleet.door, "it was there until then"

    on_loop(main)


def test_replicas_that_were_told_to_end_finish_what_they_have_and_begin_nothing(
    micro_folder: Path,
) -> None:
    """`cluster stop` from elsewhere: the door is not ready, what waits is refused, links end."""

    async def main() -> None:
        async with served(micro_folder) as (service, calls, fleet):
            wanted = bits(await answer(service, OPTIONS[0]))
            service.set_pace(paused=False, delay_s=0.01)
            stream = service.submit(await service.tokenize("hello"), OPTIONS[0])
            await anext(stream)
            calls.is_deleted = True
            calls.running.clear()
            late = service.submit(await service.tokenize("hello"), LONG)
            with pytest.raises(EngineClosed, match="told to end"):
                await late.completions()
            assert service.state.status is Status.CLOSED
            assert not any(one.in_rotation for one in fleet.replicas.each)
            with pytest.raises(EngineClosed, match="told to end"):
                service.submit(await service.tokenize("hello"), LONG)
            (completion,) = await stream.completions()
            assert bits(completion) == wanted and fleet.num_moved == 0
            while fleet.links or any(one.doors for one in calls.replicas.values()):
                await asyncio.sleep(0.02)

    on_loop(main)


def test_a_replica_that_is_lost_is_out_of_rotation_at_once(
    micro_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with served(micro_folder) as (_, calls, fleet):
            await calls.lose("r1")
            while not fleet.num_lost:
                await asyncio.sleep(0.02)
            assert [one.name for one in fleet.replicas.each if one.in_rotation] == ["r0"]

    on_loop(main)
    assert "replica 1 was lost: " in caplog.text


def test_where_nobody_runs_any_more_idle_links_are_ended(micro_folder: Path) -> None:
    async def main() -> None:
        async with served(micro_folder, num_replicas=1) as (service, calls, fleet):
            calls.running.clear()
            while fleet.links:
                await asyncio.sleep(0.02)
            assert fleet.num_lost == 0
            while service.state.status is Status.READY:
                await asyncio.sleep(0.02)

    on_loop(main)
