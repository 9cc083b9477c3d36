"""What the operator's verbs do.

Owns: each verb, and its answer.
May not know: the socket they come by (`admin.py`).
Read next: `admin.py`, `running.py`.

`sleep`, `wake_up`, `ps` and `chaos` take `model=NAME`; without it they mean all models. `requests`
and `request` show those of all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from firsthand.errors import InvalidRequest
from firsthand.generation.member import Member
from firsthand.generation.registry import Registry
from firsthand.observe.record_views import summary
from firsthand.observe.recorder import Recorder
from firsthand.release.record import is_release, read_release
from firsthand.server.admin import Verb
from firsthand.server.canary import Canaries, read_share
from firsthand.server.changing import Changes
from firsthand.server.chaos import Chaos
from firsthand.server.entrance import describe
from firsthand.server.logs import LEVELS, set_level
from firsthand.server.routes.requests import limit_of, told_of
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Verbs:
    """`begin_drain` gives the number of requests that are open."""

    registry: Registry
    recorder: Recorder
    clock: Callable[[], float]
    begin_drain: Callable[[], int]
    reload_settings: Callable[[], dict[str, Any]]
    changes: Changes
    canaries: Canaries
    faults: Chaos

    def table(self) -> dict[str, Verb]:
        """Each by its name."""
        found = (
            *(self.drain, self.reload, self.sleep, self.wake_up, self.ps, self.loglevel),
            *(self.requests, self.request, self.chaos, self.release, self.canary, self.adapter),
        )
        return {verb.__name__: verb for verb in found}

    async def drain(self) -> dict[str, Any]:
        return {"draining": True, "open": self.begin_drain()}

    async def reload(self) -> dict[str, Any]:
        return self.reload_settings()

    async def sleep(self, model: str | None = None) -> dict[str, Any]:
        members = self._meant(model)
        for member in members:
            await self.registry.sleep(member)
        return _told(members)

    async def wake_up(self, model: str | None = None) -> dict[str, Any]:
        members = self._meant(model)
        for member in members:
            self.registry.wake(member)
        return _told(members)

    async def ps(self, model: str | None = None) -> dict[str, Any]:
        return {
            "models": [describe(member, self.clock()) for member in self._meant(model)],
            "limit_bytes": self.registry.limit.num_bytes,
            "used_bytes": self.registry.used_bytes or None,
        }

    async def release(self, path: str = "", model: str | None = None) -> dict[str, Any]:
        """The release of a folder in the place of a model; without `model`, of the one of its name,
        or of the only one."""
        folder = Path(path)
        return await self.changes.replace(self._served(folder, model), folder)

    async def canary(
        self, path: str = "", model: str | None = None, share: str = "", by: str = "request"
    ) -> dict[str, Any]:
        """A share of a model's requests for the release of a folder; without `path`, how those that
        have one do, and with `share=0` the end of one."""
        if not path and not share:
            return {"canaries": [one.told() for one in self.canaries.by_model.values()]}
        if not path:
            if share != "0":
                raise InvalidRequest("share", "without a path it is 0: the end of the canary")
            return self.canaries.take_back(model or next(iter(self.canaries.by_model), ""))
        folder = Path(path)
        value = read_share(share, by)
        return await self.changes.share(self._served(folder, model), folder, value, by)

    async def adapter(
        self, name: str = "", path: str = "", model: str | None = None
    ) -> dict[str, Any]:
        """An adapter's folder, under a name, for a model, or for the only one; without `path`, the
        end of that adapter."""
        folder = Path(path) if path else None
        if not name or (folder is not None and not folder.is_absolute()):
            raise InvalidRequest("name" if not name else "path", "must be given, from the root")
        members = self._meant(model)
        if len(members) != 1:
            raise InvalidRequest("model", "which of them? model=NAME")
        return await self.changes.adapt(members[0], name, folder)

    def _served(self, folder: Path, model: str | None) -> Member:
        if not folder.is_absolute() or not is_release(folder):
            raise InvalidRequest("path", "is the folder of a release, from the root")
        others = self.canaries.names
        members = [member for member in self.registry.members if member.name not in others]
        if model is None and len(members) == 1:
            return members[0]
        name = model or read_release(folder).name
        if name in others:
            raise InvalidRequest("model", f"{name} is a canary: name the model that it is for")
        return self.registry.member(name)

    async def loglevel(self, level: str = "") -> dict[str, Any]:
        if level not in LEVELS:
            raise InvalidRequest("level", f"is one of {', '.join(LEVELS)}")
        set_level(level)
        return {"level": level}

    async def requests(self, limit: str | None = None) -> dict[str, Any]:
        shown = islice(self.recorder.records(), limit_of(limit))
        return {"requests": [summary(one, self.recorder, with_cause=True) for one in shown]}

    async def request(self, id: str = "") -> dict[str, Any]:
        return told_of(self.recorder, id)

    async def chaos(
        self,
        fault: str = "",
        seconds: str | None = None,
        amount: str | None = None,
        unit: str | None = None,
        model: str | None = None,
    ) -> dict[str, Any]:
        return await self.faults.begin(self._meant(model), fault, seconds, amount, unit)

    def _meant(self, name: str | None) -> list[Member]:
        return self.registry.members if name is None else [self.registry.member(name)]


def _told(members: list[Member]) -> dict[str, Any]:
    """One status where one model is meant, else each by its name."""
    by_name = {member.name: member.status.value for member in members}
    if len(by_name) == 1:
        return {"status": next(iter(by_name.values()))}
    return {"models": by_name}
