"""An engine that is held: the rules alone, and a real one through its service.

Owns: proof of `pacing.py`. Read next: `test_child.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firsthand.generation.frames import Pace
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.pacing import Pacing
from firsthand.generation.service import Service, ServiceOptions
from firsthand.scheduling.picture import Picture


def test_a_pause_lets_through_the_steps_that_were_asked_for() -> None:
    pacing = Pacing()
    assert pacing.wait_s(1.0) == 0.0
    pacing.take(Pace(paused=True))
    assert pacing.wait_s(1.0) is None
    pacing.take(Pace(paused=True, num_steps=2))
    for now_s in (1.0, 2.0):
        assert pacing.wait_s(now_s) == 0.0
        pacing.stepped(now_s)
    assert pacing.wait_s(3.0) is None
    pacing.take(Pace())
    assert pacing.wait_s(3.0) == 0.0


def test_slow_motion_leaves_time_between_two_steps() -> None:
    pacing = Pacing()
    pacing.take(Pace(delay_s=0.5))
    pacing.stepped(10.0)
    assert pacing.wait_s(10.2) == pytest.approx(0.3)
    assert pacing.wait_s(11.0) == 0.0


@pytest.mark.native
@pytest.mark.process
def test_a_held_engine_is_pictured_and_not_taken_for_hung(micro_folder: Path) -> None:
    async def run() -> None:
        options = ServiceOptions(micro_folder, LoadOptions(threads=1, max_sequences=1), hang_s=1.2)
        async with await Service.start(options) as service:
            await service.wait_ready()
            assert service.picture is None
            steps: list[int] = []
            service.listen(lambda facts: steps.append(facts.num_drawn))
            service.set_pace(paused=True)
            prompt = await service.tokenize("ab")
            first = service.submit(prompt, {"max_tokens": 2, "ignore_end": True})
            second = service.submit(prompt, {"max_tokens": 2, "ignore_end": True})
            seen = await pictured(service)
            assert [len(seen.running), len(seen.waiting)] == [0, 2]
            await asyncio.sleep(1.6)  # longer than a hang
            assert steps == [] and service.state.num_restarts == 0
            service.set_pace(paused=True, num_steps=1)
            while not steps:
                await asyncio.sleep(0.01)
            seen = await pictured(service)
            assert [one.request_id for one in seen.running] == [first.request_id]
            assert len(steps) == 1
            service.set_pace(paused=False)
            async for _ in second:
                pass
            assert sum(steps) == 4

    asyncio.run(run())


async def pictured(service: Service) -> Picture:
    """One that is newer than the call."""
    asked_s = service.clock()
    service.look()
    while service.picture is None or service.picture.at_s < asked_s:
        await asyncio.sleep(0.01)
    return service.picture
