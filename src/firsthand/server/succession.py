"""One model in the place of another, under traffic: no request is lost, whatever goes wrong.

Owns: the order of the steps, what is compared before anybody is answered, the way back.
May not know: where releases lie; how a model is loaded (`generation/registry.py`).
Read next: `verbs.py`, by which it is asked for; `house.py`, whose names it changes.

The new one is read, and loaded beside the old where memory allows that, and must give its golden
tokens before a name stands for it. From then on whoever comes gets the new one, and whoever is in
the old one stays there to the end. Where memory does not allow it, the name stands for the new
one at once: those who come wait in its queue, while the old one is let empty and ends, and the new
one loads. A fault before the change changes nothing; one after it brings the old one back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from firsthand.errors import CapacityExceeded, EngineError, FirsthandError, InvalidRequest
from firsthand.generation.golden_answer import SelfAnswer
from firsthand.generation.member import Member, RegistryEntry
from firsthand.generation.needs import limited, needs_of
from firsthand.generation.registry import Registry
from firsthand.generation.service import Service
from firsthand.generation.service_values import Status
from firsthand.release.record import Release, release_of
from firsthand.server.house import House
from firsthand.server.logs import tell
from firsthand.server.model_entries import ModelEntry
from firsthand.server.routes.operations import add_service_checks
from firsthand.server.rules import registry_entry
from firsthand.server.selfchecks import SelfChecks
from firsthand.server.settings import Settings
from firsthand.values import dataclass

BESIDE, AFTER = "beside", "after"


@dataclass(slots=True)
class Succession:
    """`entry_of` reads a release's folder as the entry of a member; `names_of` gives each name with
    its service, and the adapters' names, as they are now; `succeeded` is told of each change,
    `joined` and `left` of a canary."""

    registry: Registry
    services: MutableMapping[str, Service]
    adapters: MutableMapping[str, str]
    entry_of: Callable[[Member, Path], RegistryEntry]
    names_of: Callable[[], tuple[dict[str, Service], dict[str, str]]]
    succeeded: Callable[[Member, Member], None]
    joined: Callable[[Member], None]
    left: Callable[[Member], None]
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _retiring: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Raises InvalidRequest while something else is being put in place."""
        if self._one.locked():
            raise InvalidRequest("model", "another release is being put in place")
        async with self._one:
            yield

    async def replace(self, name: str, folder: Path, release: Release) -> dict[str, Any]:
        """Raises FirsthandError; then the old one answers as before."""
        old = self.registry.member(name)
        entry = await asyncio.to_thread(self.entry_of, old, folder)
        how, took_s = await self._change(old, entry, release)
        text = f"release {release.number} answers as {name} after {took_s:.2f} s, {how}"
        facts: dict[str, Any] = {"release": release.number, "id": release.id, "how": how}
        tell("release", text, model=name, manifest=release.manifest_sha256, **facts)
        return {"model": name, "seconds": round(took_s, 3), **facts}

    async def adapt(self, name: str, adapters: Mapping[str, str]) -> dict[str, Any]:
        """The same model with these adapters, names and folders. Raises as `replace` does."""
        old = self.registry.member(name)
        service = old.entry.service
        load = replace(service.load, lora=dict(adapters) or None)
        entry = replace(old.entry, service=replace(service, load=load))
        how, took_s = await self._change(old, entry, release_of(service.model))
        facts: dict[str, Any] = {"adapters": sorted(adapters), "how": how}
        tell("adapters", f"{name} has {len(adapters)} adapters after {took_s:.2f} s", **facts)
        return {"model": name, "seconds": round(took_s, 3), **facts}

    async def _change(
        self, old: Member, entry: RegistryEntry, release: Release | None
    ) -> tuple[str, float]:
        """How it was done, and in how many seconds."""
        began_s = time.perf_counter()
        new = await self._made(old, entry)
        try:
            how = await self._put(old, new, release)
        except BaseException:
            await new.service.close()
            raise
        return how, time.perf_counter() - began_s

    async def canary(self, name: str, folder: Path, release: Release) -> tuple[Member, Member]:
        """The one that is served, and the new one loaded beside it, under a name of its own. Raises
        FirsthandError; then nothing has changed."""
        old = self.registry.member(name)
        if not old.answers:
            raise InvalidRequest("model", f"{name} takes no requests now: {old.status.value}")
        entry = await asyncio.to_thread(self.entry_of, old, folder)
        new = await self._made(old, entry, f"{name}@{release.number}")
        try:
            await self._load_beside(old, new)
            await check_golden(new, release)
        except BaseException:
            await new.service.close()
            raise
        self.registry.put(new)
        self._names_change()
        self.joined(new)
        return old, new

    def end_canary(self, new: Member) -> None:
        """Whoever is in it stays to the end."""
        self.registry.drop(new)
        self._names_change()
        self.left(new)
        self._retire(new)

    async def _made(self, old: Member, entry: RegistryEntry, name: str = "") -> Member:
        """Its files read, small ones compared with their hashes; no engine yet."""
        if name:
            entry = replace(entry, service=replace(entry.service, name=name), pinned=True)
        need = 0
        if old.need_bytes:
            (need,) = await asyncio.to_thread(needs_of, [entry], self.registry.limit)
            entry = replace(entry, service=limited(entry.service, need))
        service = await Service.start(entry.service, load=False, after=old.service)
        return Member(name or old.name, entry, service, need)

    async def _put(self, old: Member, new: Member, release: Release | None) -> str:
        if old.status is Status.LOADING:
            raise InvalidRequest("model", f"{old.name} is being loaded; ask again when it is ready")
        if old.leaving or old.status is Status.ASLEEP:
            await self._try_asleep(new, release)
            self._stands_for(new)
            self._retire(old)
            return AFTER
        try:
            await self._load_beside(old, new)
        except CapacityExceeded as error:
            tell("release_waits", f"{new.name}: {error}; the old one leaves first")
            await new.service.sleep()
            await self._load_after(old, new, release)
            return AFTER
        await check_golden(new, release)
        self._stands_for(new)
        self._retire(old)
        return BESIDE

    async def _try_asleep(self, new: Member, release: Release | None) -> None:
        """It must load and give its golden tokens; then it sleeps as the old one does, and the next
        request loads it. Raises CapacityExceeded where there is no room to try it."""
        limit = self.registry.limit.num_bytes
        if limit is not None and self.registry.used_bytes + new.need_bytes > limit:
            raise CapacityExceeded("there is no room to try it: let another model sleep first")
        await new.service.wake()
        await new.service.wait_ready()
        await check_golden(new, release)
        await new.service.sleep()

    async def _load_beside(self, old: Member, new: Member) -> None:
        """Raises CapacityExceeded where memory is not enough for both."""
        limit = self.registry.limit.num_bytes
        if limit is not None and self.registry.used_bytes + new.need_bytes > limit:
            raise CapacityExceeded("there is no room for both under the memory limit")
        await new.service.wake()
        await new.service.wait_ready()
        had, got = old.service.model, new.service.model
        if got.context_length < min(had.context_length, got.own_context_length):
            raise CapacityExceeded(f"beside it only {got.context_length} tokens of context fit")
        self._loaded(new)

    async def _load_after(self, old: Member, new: Member, release: Release | None) -> None:
        """Whoever comes meanwhile waits for the new one."""
        new.waking = asyncio.ensure_future(self._when_empty(old, new, release))
        new.waking.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._stands_for(new)
        try:
            await new.waking
        except BaseException:
            self._stands_for(old)
            self.registry.wake(old)
            raise
        finally:
            new.waking = None
        self._retire(old)

    async def _when_empty(self, old: Member, new: Member, release: Release | None) -> None:
        await self.registry.retire(old, keep_text=True)
        await new.service.wake()
        await new.service.wait_ready()
        await check_golden(new, release)
        self._loaded(new)

    def _loaded(self, new: Member) -> None:
        now_s = new.service.clock()
        new.resident, new.num_loads = True, 1
        new.since_s = new.used_s = now_s

    def _stands_for(self, new: Member) -> None:
        """In one step of the loop: names, adapters, checks and counts are those of the new one."""
        old = self.registry.member(new.name)
        self.registry.put(new)
        self._names_change()
        self.succeeded(old, new)

    def _names_change(self) -> None:
        services, adapters = self.names_of()
        for now, then in ((self.services, services), (self.adapters, adapters)):
            now.clear()
            now.update(then)  # type: ignore[arg-type]  # each with its own kind

    def _retire(self, old: Member) -> None:
        task = asyncio.ensure_future(self.registry.retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        self._retiring.discard(task)
        if not task.cancelled() and isinstance(task.exception(), FirsthandError):
            tell("release_left", f"an old engine did not end: {task.exception()}", logging.WARNING)


def succession_of(
    registry: Registry, house: House, selfchecks: SelfChecks, settings: Callable[[], Settings]
) -> Succession:
    def entry_of(member: Member, folder: Path) -> RegistryEntry:
        now = member.entry
        entry = ModelEntry(str(folder), member.name, settings().load, now.pinned)
        found = registry_entry(settings(), entry)
        return replace(found, service=replace(found.service, name=now.service.name))

    def succeeded(old: Member, new: Member) -> None:
        house.metrics.succeed(old.service, new.service)
        house.recorder.follow(new.service)
        house.live.succeed(old.service, new.service)
        selfchecks.succeed(new, house.checks)
        add_service_checks(house)

    def joined(new: Member) -> None:
        house.metrics.follow(new.service)
        house.recorder.follow(new.service)
        house.live.join(new.service)

    def left(new: Member) -> None:
        house.metrics.leave(new.service)
        house.live.leave(new.service)

    assert isinstance(house.services, dict), "made by `names_of`, as the adapters are"
    assert isinstance(house.adapters, dict), "as above"

    def names() -> tuple[dict[str, Service], dict[str, str]]:
        return names_of(registry, settings())

    parts = (registry, house.services, house.adapters, entry_of, names)
    return Succession(*parts, succeeded, joined, left)


def names_of(registry: Registry, settings: Settings) -> tuple[dict[str, Service], dict[str, str]]:
    """Whom each name stands for; and of those that are adapters', the model."""
    members = registry.members
    services = {member.name: member.service for member in members}
    services |= dict.fromkeys(settings.served_model_name, members[0].service)
    adapters = {
        name: member.name
        for member in members[: len(settings.model)]  # of canaries nobody asks for one
        for name in member.entry.service.load.lora or ()
    }
    services |= {name: registry.member(model).service for name, model in adapters.items()}
    return services, adapters


async def check_all_golden(registry: Registry) -> None:
    """Of each model that is loaded and is a release. Raises EngineError."""
    for member in registry.members:
        release = release_of(member.entry.service.model)
        if release is not None and member.answers:
            await check_golden(member, release)


async def check_golden(new: Member, release: Release | None) -> None:
    """Raises EngineError for other tokens than those that were written down when it was staged."""
    if release is None or release.golden is None:
        return
    expected = list(release.golden["tokens"])
    tokens = list(await SelfAnswer(new.service)(release.golden["prompt"], len(expected)))
    if tokens != expected:
        at = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b)
        message = f"golden token {at + 1} is {tokens[at]}, not {expected[at]}"
        raise EngineError(f"release {release.number} does not answer as it was staged: {message}")
