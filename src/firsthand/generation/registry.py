"""Several models by name under one memory limit: which are loaded, and who comes and goes.

Owns: what each model needs, which have an engine now, that one in use keeps it, how long a load
takes.
May not know: HTTP; the rule by which one leaves (`memory/residents.py`).
Read next: `member.py` (one of them), `needs.py`, `memory/residents.py`.

A model is loaded at the start, or when somebody first enters it. One that has no engine is asleep:
its tokenizer is here, its packed form on disk. Whoever enters a model that is asleep wakes it and
waits; others that come meanwhile wait for the same load. A `Lease` is held for as long as a request
lives, and a leased model stays. One event loop owns it all.

    registry = await Registry.start([RegistryEntry(ServiceOptions("smollm2-135m"))])
    await registry.wait_ready()
    lease = await registry.enter(registry.member("smollm2-135m"), limit_s=30)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.generation.engines import MakesEngines
from firsthand.generation.member import Lease, Member, ModelAway, RegistryEntry, name_of
from firsthand.generation.needs import limited, needs_of, sharing_threads
from firsthand.generation.service import Service
from firsthand.generation.service_values import Status
from firsthand.memory.budget import Limit, resolve_limit
from firsthand.memory.machine import free_bytes
from firsthand.memory.residents import Resident, make_room
from firsthand.values import dataclass

UNMEASURED_LOAD_S = 2.0
FAILED_RETRY_S = 30.0  # a load that failed is not tried again sooner, whoever asks
FAREWELL_S = 1.0  # for those who were only tokenising with one that was replaced
LOOK_AGAIN_S = 0.25  # whether there is room now, should nobody have said so


@dataclass(frozen=True, slots=True)
class Stays:
    """How long models stay, in seconds. `idle_s` 0: until another needs the room. `room_s`: the
    longest that a load waits for room."""

    min_s: float = 10.0
    idle_s: float = 0.0
    room_s: float = 30.0


class Registry:
    """Made by `start`, ended by `close`. `listen` is told of each change, by a stable name."""

    def __init__(
        self,
        members: Sequence[Member],
        limit: Limit,
        stays: Stays,
        clock: Callable[[], float] = time.perf_counter,
        listen: Callable[[str, Member], None] = lambda event, member: None,
        began_s: float | None = None,
    ) -> None:
        self._members = {member.name: member for member in members}
        self._of_service = {id(member.service): member for member in members}
        self.limit = limit
        self.stays = stays
        self._clock = clock
        self.listen = listen
        self._replaced: set[Member] = set()
        self._changed = asyncio.Event()
        for member in members:
            if member.entry.at_start:
                member.resident = True
                member.since_s = clock() if began_s is None else began_s

    @classmethod
    async def start(
        cls,
        entries: Sequence[RegistryEntry],
        memory_limit: str | int = "80%",
        stays: Stays | None = None,
        engines: MakesEngines | None = None,
    ) -> Registry:
        """Every tokenizer read, and the engines of the start loading.

        With one model the limit is its own, as it was given. Several get what each needs, and
        share the processor's cores. Raises as `Service.start` does; CapacityExceeded for a model
        that can never fit, or models of the start that do not fit together; InvalidRequest.
        """
        limit = Limit(None, "of the only model")
        needs = [0]
        if len(entries) > 1:
            limit = resolve_limit(memory_limit, free_bytes())
            entries = sharing_threads(entries)
            needs = await asyncio.to_thread(needs_of, entries, limit)
            entries = [
                replace(one, service=limited(one.service, need))
                for one, need in zip(entries, needs, strict=True)
            ]
        began_s = time.perf_counter()
        services = await _started(entries, engines)
        members = [
            Member(name_of(entry), entry, service, need)
            for entry, service, need in zip(entries, services, needs, strict=True)
        ]
        return cls(members, limit, stays or Stays(), began_s=began_s)

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def used_bytes(self) -> int:
        return sum(member.need_bytes for member in self.members if member.resident)

    def member(self, name: str) -> Member:
        """Raises InvalidRequest."""
        found = self._members.get(name)
        if found is None:
            raise InvalidRequest("model", f"is one of {', '.join(self._members)}")
        return found

    def member_of(self, service: Service) -> Member:
        return self._of_service[id(service)]

    async def wait_ready(self) -> None:
        """Until each model of the start takes requests. Raises what a load raised."""
        for member in self.members:
            if member.entry.at_start and member.num_loads == 0:
                waking = self._begin_to_wake(member)
                await asyncio.wait((waking,))
                if not waking.cancelled():  # by an operator who wants it to sleep
                    waking.result()

    async def close(self) -> None:
        """End all engines; open streams raise EngineUnavailable. May be called again."""
        wakes = [member.waking for member in self.members if member.waking is not None]
        for task in wakes:
            task.cancel()
        goings = [member.going for member in self.members if member.going is not None]
        await asyncio.gather(*wakes, *goings, return_exceptions=True)
        members = {*self.members, *self._replaced}
        await asyncio.gather(*(member.service.close() for member in members))

    def put(self, member: Member) -> None:
        """In the place of the one of its name, if there is one, whom nobody enters any more; see
        `retire`."""
        old = self._members.get(member.name)
        self._members[member.name] = member
        self._of_service[id(member.service)] = member
        self._replaced.discard(member)
        if old is not None:
            self._replaced.add(old)
            member.num_loads += old.num_loads

    def drop(self, member: Member) -> None:
        """Nobody enters it any more; see `retire`."""
        del self._members[member.name]
        self._replaced.add(member)

    async def retire(self, member: Member, *, keep_text: bool = False) -> None:
        """End the engine of one that was replaced, when those who hold it have let it go.
        `keep_text`: it may come back."""
        while member.in_use:
            await asyncio.sleep(LOOK_AGAIN_S / 10)
        await member.service.sleep()
        member.resident = False
        if not keep_text:
            await asyncio.sleep(FAREWELL_S)
            await member.service.close()
            self._replaced.discard(member)
            self._of_service.pop(id(member.service), None)

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def enter_now(self, member: Member) -> Lease | None:
        """A hold on a model whose engine takes requests; None: `enter` may have to wait."""
        return self._lease(member) if member.answers else None

    async def enter(self, member: Member, limit_s: float) -> Lease:
        """A hold on a model that takes requests, which is loaded if it is asleep.

        Raises ModelAway when that takes longer than `limit_s`, at once where that is known; the
        load goes on for those who come later.
        """
        lease = self._lease(member)
        try:
            if not member.answers:
                await self._wait_for(member, limit_s)
        except BaseException:
            lease.close()
            raise
        return lease

    async def sleep(self, member: Member) -> None:
        """The operator's: it leaves now, in use or not, and stays away until `wake`."""
        member.held, waking = True, member.waking
        if waking is not None:
            waking.cancel()
            await asyncio.wait((waking,))
        await asyncio.wait((self._begin_to_leave(member),))

    def wake(self, member: Member) -> None:
        """The operator's: load it, if it is not; whoever is not in use may leave for it."""
        member.held, member.failed_s = False, None
        if not member.answers:
            self._begin_to_wake(member)

    def tick(self) -> None:
        """To be called now and then: what nobody has asked for long leaves."""
        before_s = self._clock() - self.stays.idle_s
        for member in self.members:
            idle = member.answers and not member.in_use and not member.entry.pinned
            if self.stays.idle_s and idle and member.last_s < before_s:
                self._begin_to_leave(member)

    def expected_load_s(self, member: Member) -> float:
        """How long until it takes requests: by its last load, or by the progress of this one."""
        state = member.service.state
        age_s = state.age_s if state.status is Status.LOADING else 0.0
        if member.load_s is not None:
            return max(0.1, member.load_s - age_s)
        if state.progress:
            return age_s * (1 - state.progress) / state.progress
        return UNMEASURED_LOAD_S

    def _lease(self, member: Member) -> Lease:
        member.used_s = self._clock()
        return Lease(member, self._left)

    def _left(self, member: Member) -> None:
        member.num_leases -= 1
        member.used_s = self._clock()
        self._changed.set()

    async def _wait_for(self, member: Member, limit_s: float) -> None:
        self._check_wakes(member)
        waking = self._begin_to_wake(member)
        expected_s = self.expected_load_s(member)
        if member.load_s is not None and expected_s > limit_s:
            raise ModelAway(f"{member.name} is being loaded", expected_s)
        done, _ = await asyncio.wait((waking,), timeout=limit_s)
        if not done:
            message = f"{member.name} is being loaded" if member.resident else _no_room(member)
            raise ModelAway(message, self.expected_load_s(member))
        fault = None if waking.cancelled() else waking.exception()
        if isinstance(fault, ModelAway):
            raise ModelAway(str(fault), fault.retry_after_s)
        self._check_wakes(member)
        if not member.answers:
            raise ModelAway(f"{member.name} takes no requests now", UNMEASURED_LOAD_S)

    def _check_wakes(self, member: Member) -> None:
        """Raises ModelAway for one that no request wakes now."""
        if member.held:
            raise ModelAway(f"{member.name} was put to sleep by its operator", FAILED_RETRY_S)
        if member.failed_s is not None:
            left_s = member.failed_s + FAILED_RETRY_S - self._clock()
            if left_s > 0:
                raise ModelAway(f"{member.name} could not be loaded", left_s)
        if member.status in (Status.RESTARTING, Status.CLOSED):
            message = f"{member.name} takes no requests now: {member.status.value}"
            raise ModelAway(message, UNMEASURED_LOAD_S)

    def _begin_to_wake(self, member: Member) -> asyncio.Task[None]:
        """The load that is under way, or a new one."""
        if member.waking is None:
            member.waking = asyncio.ensure_future(self._wake(member))

            def ended(task: asyncio.Task[None]) -> None:
                member.waking = None
                _look_at(task)

            member.waking.add_done_callback(ended)  # also of one that was cancelled before it began
        return member.waking

    async def _wake(self, member: Member) -> None:
        """Raises ModelAway without room, and what the load raised."""
        if not member.resident or member.leaving:
            await self._take_room(member)
        await member.service.wake()
        self.listen("model_loading", member)
        await self._until_ready(member)

    async def _until_ready(self, member: Member) -> None:
        """One of the start may be ready before anybody asks; its load began with the start."""
        began_s = self._clock() if member.num_loads else member.since_s
        try:
            await member.service.wait_ready()
        except FirsthandError:
            if member.status is Status.FAILED:
                member.failed_s, member.resident = self._clock(), False
                self.listen("model_failed", member)
                self._changed.set()
            raise
        now_s = self._clock()
        member.load_s, member.failed_s = now_s - began_s, None
        member.since_s = member.used_s = now_s
        member.num_loads += 1
        self.listen("model_ready", member)

    async def _take_room(self, member: Member) -> None:
        """Count it as resident, when others have left for it. Raises ModelAway."""
        going = await self._wait_for_room(member)
        member.resident, member.since_s = True, self._clock()
        tasks = [self._begin_to_leave(one) for one in going]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except BaseException:
            member.resident = False
            raise

    async def _wait_for_room(self, member: Member) -> list[Member]:
        """Who is to leave; at once, or when those in use are not any more. Raises ModelAway."""
        until_s = self._clock() + self.stays.room_s
        while True:
            self._changed.clear()
            others = [one for one in self.members if one.resident]
            if not any(one.leaving for one in others):
                leaving = make_room(
                    [_resident(one) for one in others],
                    member.need_bytes,
                    self.limit.num_bytes,
                    self._clock(),
                    self.stays.min_s,
                )
                if leaving is not None:
                    return [self._members[name] for name in leaving]
            left_s = until_s - self._clock()
            if left_s <= 0:
                raise ModelAway(_no_room(member), self.expected_load_s(member))
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LOOK_AGAIN_S)):
                    await self._changed.wait()

    def _begin_to_leave(self, member: Member) -> asyncio.Task[None]:
        """From now on nobody enters it; the task has ended when its memory is free."""
        if member.going is None:
            member.going = asyncio.ensure_future(self._leave(member))
            member.going.add_done_callback(_look_at)
        return member.going

    async def _leave(self, member: Member) -> None:
        try:
            await member.service.sleep()
        finally:
            member.going, member.resident = None, False
            self._changed.set()
        self.listen("model_asleep", member)


def _resident(member: Member) -> Resident:
    loads = member.waking is not None or member.status is Status.LOADING
    return Resident(
        member.name,
        member.need_bytes,
        member.since_s,
        member.last_s,
        member.in_use or loads,
        member.entry.pinned,
    )


def _no_room(member: Member) -> str:
    return f"there is no room for {member.name} now: the models that are loaded are in use"


def _look_at(task: asyncio.Task[None]) -> None:
    """Whoever waits for a load sees its fault; if nobody does, it is no fault of the loop's."""
    if not task.cancelled():
        task.exception()


async def _started(entries: Sequence[RegistryEntry], engines: MakesEngines | None) -> list[Service]:
    """All services, or none: then what went wrong first is raised."""
    tasks = [
        asyncio.ensure_future(Service.start(one.service, load=one.at_start, engines=engines))
        for one in entries
    ]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
        raise
