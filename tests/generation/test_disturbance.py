"""Faults in an engine do what they say, and leave nothing behind.

Owns: these proofs, on the generated model. May not know: servers. Read next:
`../observe/test_handbook_live.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.engine.engine import Engine
from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.generation.assembly import Assembly, assemble
from firsthand.generation.disturbance import MIB, Disturbance
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.generation.remote_faults import FIRST_S, Delay
from firsthand.processes import resident_bytes
from firsthand.request import Request, SamplingParams, StopRules

pytestmark = pytest.mark.native


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    model = write_micro_model(tmp_path_factory.mktemp("micro"))
    return load_model(model, LoadOptions(threads=1, max_sequences=2))


@contextmanager
def disturbed(loaded: LoadedModel) -> Iterator[tuple[Assembly, Disturbance, Clock]]:
    clock = Clock()
    disturbance = Disturbance(loaded, clock)
    assembly = assemble(loaded, clock, lambda facts: None, around=disturbance.around)
    disturbance.attach(assembly.scheduler.memory)
    yield assembly, disturbance, clock
    clock.now_s += 1e6
    disturbance.tick()
    assert assembly.scheduler.num_used_blocks == 0


def answer(engine: Engine, name: str, num_tokens: int = 8) -> tuple[list[int], str]:
    """The tokens, and why it ended."""
    engine.add(
        Request(
            request_id=name,
            prompt_token_ids=tuple(range(40)),
            sampling=SamplingParams(temperature=0.0),
            stop=StopRules(max_tokens=num_tokens, ignore_end=True),
            seed=0,
            cache_salt=name,
        )
    )
    tokens, why = [], ""
    while engine.has_work:
        for event in engine.step():
            if event.token_id is not None:
                tokens.append(event.token_id)
            if event.finish is not None:
                why = event.finish.reason.value
    return tokens, why


def test_wrong_bytes_change_the_answer_until_they_are_put_back(loaded: LoadedModel) -> None:
    with disturbed(loaded) as (assembly, disturbance, clock):
        before = [one.weight.parts()[0].copy() for one in loaded.executor.packed()]  # type: ignore[attr-defined]
        right = answer(assembly.engine, "a", 24)
        disturbance.begin("corrupt", 10, 0)
        assert answer(assembly.engine, "b", 24) != right
        clock.now_s = 11
        disturbance.tick()
        assert answer(assembly.engine, "c", 24) == right
        after = [one.weight.parts()[0] for one in loaded.executor.packed()]  # type: ignore[attr-defined]
        assert all(map(np.array_equal, before, after))


def test_steps_fail_by_their_share(loaded: LoadedModel) -> None:
    with disturbed(loaded) as (assembly, disturbance, clock):
        disturbance.begin("fail", 10, 1.0)
        assert answer(assembly.engine, "a") == ([], "error")
        clock.now_s = 11
        disturbance.tick()
        assert answer(assembly.engine, "b")[1] == "length"
        disturbance.begin("fail", 10, 0.5)
        outcomes = []
        for _ in range(8):
            try:
                disturbance.before_step()
                outcomes.append(True)
            except FirsthandError:
                outcomes.append(False)
        assert outcomes.count(False) == 4


def test_taken_blocks_are_free_again(loaded: LoadedModel) -> None:
    """An answer that finds no room waits, and is whole in the end."""
    with disturbed(loaded) as (assembly, disturbance, clock):
        memory = assembly.scheduler.memory
        disturbance.begin("cache", 10, 1.0)
        assert memory.num_free == 0
        assembly.engine.add(
            Request(
                request_id="waits",
                prompt_token_ids=(1, 2, 3),
                sampling=SamplingParams(),
                stop=StopRules(max_tokens=2),
                seed=0,
            )
        )
        assert assembly.engine.step() == []
        clock.now_s = 11
        disturbance.tick()
        while assembly.engine.has_work:
            assembly.engine.step()
        assert memory.num_free == memory.num_blocks


def test_memory_is_really_taken_bit_by_bit_and_given_back(loaded: LoadedModel) -> None:
    with disturbed(loaded) as (_, disturbance, clock):
        before = own_bytes()
        disturbance.begin("memory", 10, 64)
        disturbance.tick()
        assert own_bytes() - before < 8 * MIB
        clock.now_s = 5
        disturbance.tick()
        taken = own_bytes()
        assert taken - before > 48 * MIB
        clock.now_s = 10
        disturbance.tick()
        assert taken - own_bytes() > 48 * MIB


def own_bytes() -> int:
    found = resident_bytes(os.getpid())
    assert found is not None
    return found


def test_it_stalls_for_its_time(loaded: LoadedModel) -> None:
    with disturbed(loaded) as (_, disturbance, clock):
        disturbance.begin("stall", 10, 0)
        assert disturbance.stalls
        clock.now_s = 10
        disturbance.tick()
        assert not disturbance.stalls


@pytest.mark.parametrize(
    ("name", "seconds", "amount", "field"),
    [
        ("flood", 1, 1, "fault"),
        ("slow", 1, 0, "ms"),
        ("slow", 4000, 1, "seconds"),
        ("fail", 1, 1.5, "share"),
        ("memory", 1, 1 << 20, "mib"),
    ],
)
def test_what_is_refused_is_named(
    loaded: LoadedModel, name: str, seconds: float, amount: float, field: str
) -> None:
    with disturbed(loaded) as (_, disturbance, _), pytest.raises(InvalidRequest) as raised:
        disturbance.begin(name, seconds, amount)
    assert raised.value.field == field


def test_a_way_grows_slow_and_nothing_overtakes() -> None:
    """S117: from 800 ms to 3 s, and back."""
    delay = Delay()
    assert delay.of(0.0) == 0.0
    delay.begin(0.0, 10.0, 3.0)
    assert delay.of(0.0) == pytest.approx(FIRST_S)
    assert delay.of(2.5) == pytest.approx((FIRST_S + 3) / 2)
    assert delay.of(5.0) == delay.of(5.0) == pytest.approx(3.0)
    arrivals = [at + delay.of(at) for at in (9.9, 10.1, 12.0, 14.0)]
    assert arrivals == sorted(arrivals)
    assert delay.of(14.0) == 0.0
