"""One of several models: how it was asked for, and what is known of its comings and goings.

Owns: `RegistryEntry`, `Member`, `Lease`, and the error of a model that is not there now.
May not know: the other models, who leaves for whom.
Read next: `registry.py`, which moves members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field

from firsthand.errors import EngineUnavailable
from firsthand.generation.service import Service
from firsthand.generation.service_values import ServiceOptions, Status
from firsthand.values import dataclass


class ModelAway(EngineUnavailable):
    """A model that takes no requests now; the text is fit for whoever asked for it."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One model as it was asked for. `pinned`: once it is loaded it stays. `memory_limit`: its part
    of the memory, in bytes or as a share of the whole; None: what its plan says is enough."""

    service: ServiceOptions
    at_start: bool = True
    pinned: bool = False
    memory_limit: int | str | None = None


def name_of(entry: RegistryEntry) -> str:
    return entry.service.name or str(entry.service.model)


@dataclass(slots=True, eq=False)
class Member:
    """A model and what is known of its comings and goings. Times are of the registry's clock."""

    name: str
    entry: RegistryEntry
    service: Service
    need_bytes: int  # 0: it is alone, and nobody has counted
    resident: bool = False  # its memory is taken: it is loaded, or about to be
    held: bool = False  # asleep by the operator's word: no request wakes it
    num_leases: int = 0
    num_loads: int = 0
    since_s: float = 0.0  # when it became resident
    used_s: float = 0.0
    load_s: float | None = None  # what its last load took
    failed_s: float | None = None  # when that failed
    waking: asyncio.Task[None] | None = field(default=None, repr=False)
    going: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def status(self) -> Status:
        return self.service.state.status

    @property
    def memory_bytes(self) -> int | None:
        """What it takes when it is loaded: its part of the memory or, of one that has no part
        because it is alone, what its engine took. None: it has not been loaded yet."""
        held = self.service.memory
        if self.need_bytes or held is None:
            return self.need_bytes or None
        return held.weights_bytes + held.scratch_bytes + held.kv_reserved_bytes

    @property
    def leaving(self) -> bool:
        """Nobody enters it any more; its memory is not free yet."""
        return self.going is not None

    @property
    def last_s(self) -> float:
        return max(self.used_s, self.since_s)

    @property
    def in_use(self) -> bool:
        return self.num_leases > 0 or self.service.load.num_open > 0

    @property
    def answers(self) -> bool:
        """Whether its engine takes requests, and stays."""
        return not self.leaving and self.status.takes_requests

    @property
    def opens(self) -> bool:
        """Whether whoever enters it is answered, at once or after a load. Who comes before the
        first load of the start has ended is told to come back."""
        if self.answers:
            return True
        begins = self.entry.at_start and self.num_loads == 0
        wakes = self.waking is not None or self.leaving or self.status is Status.ASLEEP
        return wakes and not begins and not self.held


class Lease:
    """One request's hold on a model, until it is closed; again changes nothing."""

    def __init__(self, member: Member, on_close: Callable[[Member], None]) -> None:
        self._member = member
        self._on_close: Callable[[Member], None] | None = on_close
        member.num_leases += 1

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self._member)
