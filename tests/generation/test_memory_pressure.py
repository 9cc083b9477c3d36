"""Memory runs short in the engine's process: who is told, and when it is given up."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.errors import CapacityExceeded
from firsthand.generation.child import STARVED_STEPS, Loop, ParentLink
from firsthand.generation.child_log import Lines
from firsthand.generation.frames import Ping, Pong, encode, from_fault, parent_reader, to_fault
from firsthand.memory.reserve import Reserve
from firsthand.request import TokenEvent


def facts(num_failed: int, error: str | None = "no memory", memory: bool = True) -> StepFacts:
    """Of a step of two sequences."""
    times = (0.0,) * 5
    return StepFacts(
        0.0, ("a", "b"), (1, 1), 0, 0, 0, 0, 0, *times, error=error, num_failed=num_failed,
        out_of_memory=memory and error is not None,
    )  # fmt: skip


class Steps:
    """Stands for an engine: steps with these facts, and then it is idle."""

    idle_s = None

    def __init__(self, *told: StepFacts) -> None:
        self.told = list(told)
        self.on_step: Callable[[StepFacts], None] = lambda facts: None
        self.num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self.told)

    def step(self) -> list[TokenEvent]:
        self.num_steps += 1
        self.on_step(self.told.pop(0))
        return []


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def run(ends: tuple[socket.socket, socket.socket], steps: Steps, reserve: Reserve) -> list[Any]:
    """The loop until it is idle, or raises; what it sent."""
    ours, theirs = ends
    loop = Loop(ParentLink(theirs), reserve, Lines())
    steps.on_step = loop.on_step
    ours.sendall(encode(Ping(1)))
    ours.shutdown(socket.SHUT_WR)
    loop.run(cast(Engine, steps))
    return list(parent_reader().feed(ours.recv(1 << 20)))


BAD, PARTLY, GOOD, OTHER = facts(2), facts(1), facts(0, None), facts(2, memory=False)


@pytest.mark.parametrize(
    "told", [(BAD, GOOD, BAD, GOOD), (PARTLY,) * 5, (OTHER,) * 5, (BAD, GOOD, OTHER, BAD)]
)
def test_s61_it_goes_on_while_anything_can_be_computed(
    ends: tuple[socket.socket, socket.socket], told: tuple[StepFacts, ...]
) -> None:
    loop = Loop(ParentLink(ends[1]), Reserve(lambda: 0.0), Lines())
    for one in told:
        if one.error is not None:
            loop._check_memory(one)
        else:
            loop._num_starved = 0
    assert loop._num_starved < STARVED_STEPS


def test_s61_it_ends_when_nothing_can_be_computed(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    loop = Loop(ParentLink(ends[1]), Reserve(lambda: 0.0), Lines())
    loop._check_memory(BAD)
    with pytest.raises(MemoryError) as raised:
        loop._check_memory(BAD)
    told = from_fault(to_fault(raised.value))
    assert isinstance(told, CapacityExceeded)
    assert "loaded again" in str(told)


@pytest.mark.parametrize(("used", "held"), [(0.5, True), (0.97, False)])
def test_s62_a_ping_is_answered_with_the_state_of_the_reserve(
    ends: tuple[socket.socket, socket.socket], used: float, held: bool
) -> None:
    reserve = Reserve(lambda: 0.0, 4096, lambda: used)
    reserve.take()
    (pong,) = [one for one in run(ends, Steps(), reserve) if isinstance(one, Pong)]
    assert (pong.number, pong.has_reserve) == (1, held)
