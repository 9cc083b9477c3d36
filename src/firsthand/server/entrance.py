"""Into a model: at once where its engine takes requests, else when it has been loaded.

Owns: how long a request waits for a load, what it is told instead, what is said of each model.
May not know: how a model is loaded, or who leaves for it (`generation/registry.py`).
Read next: `house.py`, whose generating routes come by here; `lifecycle.py`, the door before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from firsthand.generation.member import Lease, Member, ModelAway
from firsthand.generation.registry import Registry
from firsthand.generation.service import Service
from firsthand.generation.service_values import Status
from firsthand.release.record import number_of, release_folder
from firsthand.server.answers import unless_gone
from firsthand.server.guard.call import call_of
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.refusal import Refused
from firsthand.server.headers import DEADLINE, at_end, timeout_of
from firsthand.server.health import Check
from firsthand.server.selfcheck import SelfCheck
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Entrance:
    """`selfchecks` by the models' names; `gate` has a queue for each, which also
    bounds how many wait for its load."""

    registry: Registry
    selfchecks: Mapping[str, SelfCheck]
    gate: Gate

    async def enter(self, request: Request, service: Service) -> Lease:
        """Until the model takes requests; it is held until the request's end. Raises Refused."""
        member = self.registry.member_of(service)
        self.gate.check(call_of(request.scope), member.name)
        selfcheck = self.selfchecks.get(member.name)
        if selfcheck is not None and selfcheck.failed:
            message = (
                f"the self-check of {member.name} failed; there are no answers until it is right"
            )
            raise Refused(503, message, "degraded", "model", retry_after_s=2.0)
        lease = self.registry.enter_now(member)
        if lease is None:
            lease = await self._wait(request, member)
        at_end(request.scope, lease.close)
        return lease

    async def _wait(self, request: Request, member: Member) -> Lease:
        bounds = self.gate.queue(member.name).bounds
        timeout_s = timeout_of(request.headers)
        if member.num_leases >= bounds.num_places:
            message = f"{member.num_leases} requests wait for {member.name} already"
            after_s = self.registry.expected_load_s(member)
            raise Refused(503, message, "queue_full", retry_after_s=after_s)
        patience_s = bounds.max_wait_s or bounds.request_timeout_s
        limit_s = patience_s if timeout_s is None else min(patience_s, timeout_s)
        try:
            return await unless_gone(request, self.registry.enter(member, limit_s))
        except ModelAway as away:
            if timeout_s is not None and timeout_s <= patience_s:
                raise Refused(
                    408, str(away), "deadline_exceeded", DEADLINE, away.retry_after_s
                ) from None
            raise Refused(
                503, str(away), "loading", "model", retry_after_s=away.retry_after_s
            ) from None

    def check(self, service: Service) -> Check:
        """For readiness: one that sleeps is as it should be, if it was loaded at the start."""
        member, state = self.registry.member_of(service), service.state
        sleeps = state.status is Status.ASLEEP or member.leaving
        ok = state.status.takes_requests or sleeps
        return Check(ok, state.reason or state.status.value, state.heartbeat_age_s)

    def card(self, service: Service) -> dict[str, Any]:
        """What the list of models says of one, beside the protocol's own."""
        member = self.registry.member_of(service)
        folder = release_folder(member.entry.service.model)
        return {
            "firsthand_release_number": None if folder is None else number_of(folder),
            "firsthand_status": member.status.value,
            "firsthand_memory_bytes": member.memory_bytes,
            "firsthand_requests_open": service.load.num_open,
        }


def describe(member: Member, now_s: float) -> dict[str, Any]:
    """What the operator is told of a model."""
    state = member.service.state
    return {
        "name": member.name,
        "manifest": member.service.model.manifest_sha256,
        "release": member.service.model.release,
        "status": state.status.value,
        "reason": state.reason,
        "pid": state.pid,
        "memory_bytes": member.memory_bytes,
        "requests_open": member.service.load.num_open,
        "at_start": member.entry.at_start,
        "pinned": member.entry.pinned,
        "held_asleep": member.held,
        "num_loads": member.num_loads,
        "num_restarts": state.num_restarts,
        "load_s": member.load_s,
        "unused_s": now_s - member.last_s if member.last_s else None,
    }
