"""Several models under one limit: who is loaded, who waits, who is told to come back.

Owns: proof of `generation/registry.py`, `member.py` and `needs.py`; engines are written down here,
but for the plans, which are real. Read next: `tests/server/test_several.py`, with real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from firsthand.errors import CapacityExceeded, CheckpointError, InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.member import Lease, Member, ModelAway, RegistryEntry
from firsthand.generation.needs import needs_of, sharing_threads
from firsthand.generation.registry import FAILED_RETRY_S, Registry, Stays
from firsthand.generation.service import Load, Service, ServiceOptions, ServiceState, Status
from firsthand.memory.budget import Limit, resolve_limit

NONE = (0, 0, 0)


class Engine(Service):
    """A service whose loads end when the test says so."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.num_open = 0
        self.num_loads = 0
        self.fault: Exception | None = None
        self.may_load = asyncio.Event()
        self.may_load.set()

    @property
    def state(self) -> ServiceState:
        return ServiceState(self.status, "", 0.0, None, None, 0, None)

    @property
    def load(self) -> Load:
        return Load(self.num_open, 0, 0, NONE, NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)

    async def wake(self) -> None:
        if self.status in (Status.ASLEEP, Status.FAILED):
            self.status = Status.LOADING
            self.num_loads += 1

    async def wait_ready(self) -> None:
        await self.may_load.wait()
        if self.fault is not None:
            self.status = Status.FAILED
            raise self.fault
        self.status = Status.READY

    async def sleep(self) -> None:
        self.status = Status.ASLEEP
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.status = Status.CLOSED


class House:
    """Models of 6 bytes each under a limit of 10, so that one is loaded at a time."""

    def __init__(self, *names: str, stays: Stays | None = None, loaded: str | None = "a") -> None:
        self.now = 100.0
        self.engines = {
            name: Engine(Status.READY if name == loaded else Status.ASLEEP) for name in names
        }
        members = [
            Member(name, RegistryEntry(ServiceOptions(name), name == loaded), engine, 6)
            for name, engine in self.engines.items()
        ]
        self.told: list[tuple[str, str]] = []
        self.registry = Registry(
            members,
            Limit(10, ""),
            stays or Stays(min_s=0.0, room_s=0.05),
            lambda: self.now,
            lambda event, member: self.told.append((event, member.name)),
        )

    def member(self, name: str) -> Member:
        return self.registry.member(name)

    async def enter(self, name: str, limit_s: float = 5.0) -> Lease:
        return await self.registry.enter(self.member(name), limit_s)

    @property
    def loaded(self) -> set[str]:
        return {name for name, one in self.engines.items() if one.status is Status.READY}


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def test_whoever_asks_for_one_that_sleeps_wakes_it_and_another_leaves() -> None:
    async def work() -> None:
        house = House("a", "b")
        (await house.enter("a")).close()
        lease = await house.enter("b")
        assert house.loaded == {"b"}
        assert house.told == [
            ("model_asleep", "a"), ("model_loading", "b"), ("model_ready", "b"),
        ]  # fmt: skip
        assert house.registry.used_bytes == 6
        lease.close()
        lease.close()  # again changes nothing
        assert house.member("b").num_leases == 0

    run(work)


def test_two_requests_at_once_load_it_once() -> None:
    async def work() -> None:
        house = House("a", "b")
        engine = house.engines["b"]
        engine.may_load.clear()
        waiting = [asyncio.ensure_future(house.enter("b")) for _ in range(5)]
        await asyncio.sleep(0.02)
        assert not any(one.done() for one in waiting)
        engine.may_load.set()
        await asyncio.gather(*waiting)
        assert engine.num_loads == 1
        assert house.member("b").num_leases == 5

    run(work)


@pytest.mark.parametrize("how", ["leased", "open", "pinned"])
def test_one_in_use_never_leaves(how: str) -> None:
    async def work() -> None:
        house = House("a", "b")
        a = house.member("a")
        if how == "leased":
            await house.enter("a")
        elif how == "open":
            house.engines["a"].num_open = 1
        else:
            a.entry = RegistryEntry(ServiceOptions("a"), pinned=True)
        with pytest.raises(ModelAway, match="no room") as away:
            await house.enter("b", 0.2)
        assert away.value.retry_after_s > 0
        assert house.loaded == {"a"}
        assert house.member("b").num_leases == 0

    run(work)


def test_a_load_waits_until_the_other_is_not_in_use_any_more() -> None:
    async def work() -> None:
        house = House("a", "b", stays=Stays(0.0, 0.0, 1e6))
        lease = await house.enter("a")
        waiting = asyncio.ensure_future(house.enter("b"))
        await asyncio.sleep(0.02)
        assert house.loaded == {"a"}
        lease.close()
        await waiting
        assert house.loaded == {"b"}

    run(work)


def test_models_in_turns_stay_for_a_while_each() -> None:
    async def work() -> None:
        house = House("a", "b", stays=Stays(min_s=10.0, room_s=0.0))
        (await house.enter("a")).close()
        with pytest.raises(ModelAway, match="no room"):
            await house.enter("b", 1.0)
        house.now += 200
        (await house.enter("b")).close()
        for _ in range(20):
            with pytest.raises(ModelAway):
                await house.enter("a")
        assert (house.loaded, house.engines["b"].num_loads) == ({"b"}, 1)
        house.now += 10
        (await house.enter("a")).close()
        assert house.loaded == {"a"}

    run(work)


def test_whoever_waits_too_long_is_told_when_to_come_back_and_the_load_goes_on() -> None:
    async def work() -> None:
        house = House("a", "b")
        engine = house.engines["b"]
        engine.may_load.clear()
        with pytest.raises(ModelAway, match="is being loaded"):
            await house.enter("b", 0.01)
        engine.may_load.set()
        await house.enter("b")
        assert engine.num_loads == 1

    run(work)


def test_a_load_that_is_known_to_take_longer_is_not_waited_for() -> None:
    async def work() -> None:
        house = House("a", "b")
        house.member("b").load_s = 40.0
        house.engines["b"].may_load.clear()
        with pytest.raises(ModelAway) as away:
            await house.enter("b", 30.0)
        assert away.value.retry_after_s == 40.0
        house.engines["b"].may_load.set()
        await house.enter("b", 60.0)

    run(work)


def test_a_load_that_fails_gives_its_room_back_and_is_not_tried_at_once() -> None:
    async def work() -> None:
        house = House("a", "b")
        engine = house.engines["b"]
        engine.fault = CheckpointError("b", "is damaged")
        for _ in range(3):
            with pytest.raises(ModelAway, match="could not be loaded") as away:
                await house.enter("b")
            assert 0 < away.value.retry_after_s <= FAILED_RETRY_S
        assert engine.num_loads == 1
        assert house.told[-1] == ("model_failed", "b")
        assert house.registry.used_bytes == 0
        (await house.enter("a")).close()
        engine.fault = None
        house.now += FAILED_RETRY_S
        await house.enter("b")

    run(work)


def test_the_operators_sleep_lasts_until_wake() -> None:
    async def work() -> None:
        house = House("a", "b")
        await house.enter("a")
        await house.registry.sleep(house.member("a"))
        assert (house.loaded, house.registry.used_bytes) == (set(), 0)
        assert not house.member("a").opens
        with pytest.raises(ModelAway, match="operator"):
            await house.enter("a")
        house.registry.wake(house.member("a"))
        await house.enter("a")
        assert house.member("a").opens

    run(work)


def test_a_load_that_is_stopped_before_it_began_is_begun_again() -> None:
    async def work() -> None:
        house = House("a", "b")
        await house.enter("a")
        for _ in range(2):
            await house.registry.sleep(house.member("a"))
            house.registry.wake(house.member("a"))  # its task has not run yet
            await house.registry.sleep(house.member("a"))
            assert not house.member("a").opens
            house.registry.wake(house.member("a"))
            await house.enter("a")
            assert house.loaded == {"a"}

    run(work)


def test_the_operator_may_stop_a_load() -> None:
    async def work() -> None:
        house = House("a", "b")
        house.engines["b"].may_load.clear()
        waiting = asyncio.ensure_future(house.enter("b"))
        await asyncio.sleep(0.01)
        await house.registry.sleep(house.member("b"))
        with pytest.raises(ModelAway, match="operator"):
            await waiting
        assert house.registry.used_bytes == 0
        assert house.engines["b"].status is Status.ASLEEP

    run(work)


def test_what_nobody_has_asked_for_long_leaves() -> None:
    async def work() -> None:
        house = House("a", "b", stays=Stays(idle_s=60.0))
        lease = await house.enter("a")
        house.now += 100
        house.registry.tick()
        assert house.member("a").answers
        lease.close()
        house.registry.tick()
        assert house.member("a").answers
        house.now += 61
        house.registry.tick()
        assert not house.member("a").answers
        await house.enter("a")  # comes back as it goes
        assert house.loaded == {"a"}

    run(work)


def test_whoever_comes_before_the_start_has_loaded_is_told_so() -> None:
    async def work() -> None:
        house = House("a", "b")
        engine = house.engines["a"]
        engine.status = Status.LOADING
        engine.may_load.clear()
        ready = asyncio.ensure_future(house.registry.wait_ready())
        await asyncio.sleep(0.01)
        assert (house.member("a").opens, house.member("b").opens) == (False, True)
        engine.may_load.set()
        await ready
        assert house.member("a").opens

    run(work)


def test_a_fault_of_the_start_is_told_and_an_end_in_a_load_leaves_nothing() -> None:
    async def work() -> None:
        house = House("a", "b")
        house.engines["a"].status = Status.LOADING
        house.engines["a"].fault = CheckpointError("a", "is damaged")
        with pytest.raises(CheckpointError):
            await house.registry.wait_ready()
        house.engines["b"].may_load.clear()
        waiting = asyncio.ensure_future(house.enter("b"))
        await asyncio.sleep(0.01)
        await house.registry.close()
        assert {one.status for one in house.engines.values()} == {Status.CLOSED}
        with pytest.raises(ModelAway):
            await waiting

    run(work)


def test_an_unknown_name() -> None:
    async def work() -> None:
        with pytest.raises(InvalidRequest, match="one of a, b"):
            House("a", "b").member("c")

    run(work)


# What each may take


def entries(folder: Path, *names: str, **more: object) -> list[RegistryEntry]:
    load = LoadOptions(**more)  # type: ignore[arg-type]
    return [RegistryEntry(ServiceOptions(folder, load, name=name)) for name in names]


def test_a_need_does_not_depend_on_the_company(micro_folder: Path) -> None:
    (alone,) = needs_of(entries(micro_folder, "a"), resolve_limit("4GiB", None))
    both = needs_of(entries(micro_folder, "a", "b"), resolve_limit("2GiB", None))
    assert both == [alone, alone]
    assert needs_of(entries(micro_folder, "a"), Limit(None, "")) == [alone]


def test_a_plan_within_the_need_promises_the_same_context(micro_folder: Path) -> None:
    from firsthand.generation.loading import plan_model

    _, wide = plan_model(micro_folder, LoadOptions(memory_limit="4GiB"))
    _, tight = plan_model(micro_folder, LoadOptions(memory_limit=wide.shared_bytes))
    assert tight.context_length == wide.context_length == 512
    assert tight.max_sequences == wide.max_sequences
    assert tight.num_bytes <= wide.shared_bytes


def test_what_can_never_fit_is_refused_with_its_numbers(micro_folder: Path) -> None:
    with pytest.raises(CapacityExceeded, match=r"b: .* are needed and the limit is 1\.0 MiB"):
        needs_of(entries(micro_folder, "b"), resolve_limit("1MiB", None))
    (need,) = needs_of(entries(micro_folder, "a"), resolve_limit("4GiB", None))
    limit = resolve_limit(need + need // 2, None)
    with pytest.raises(CapacityExceeded, match=r"models of the start need .* a .* b "):
        needs_of(entries(micro_folder, "a", "b"), limit)
    a, b = entries(micro_folder, "a", "b")
    later = RegistryEntry(b.service, at_start=False)
    assert needs_of([a, later], limit) == [need, need]
    pinned = RegistryEntry(a.service, pinned=True)
    with pytest.raises(CapacityExceeded, match="b and the pinned models need"):
        needs_of([pinned, later], limit)


def test_a_model_may_have_a_limit_of_its_own(micro_folder: Path) -> None:
    a, b = entries(micro_folder, "a", "b")
    given = [
        RegistryEntry(a.service, memory_limit="300MiB"),
        RegistryEntry(b.service, memory_limit="25%"),
    ]
    assert needs_of(given, resolve_limit("2GiB", None)) == [300 << 20, 512 << 20]


def test_models_of_the_start_share_the_cores(micro_folder: Path) -> None:
    from firsthand.compute.native.cores import available_threads

    shared = sharing_threads(entries(micro_folder, "a", "b"))
    share = max(1, available_threads() // 2)
    assert [one.service.load.threads for one in shared] == [share, share]
    (given,) = sharing_threads(entries(micro_folder, "a", threads=3))
    assert given.service.load.threads == 3
