"""A new release beside the one that is served, with a share of the traffic, until it is judged.

Owns: who gets which of the two, what is compared, when the new one is taken back.
May not know: how a model is loaded or routed to (`succession.py`, `entrance.py`).
Read next: `judging.py`, the rule; `succession.py`, which loads it.

It is a model of its own under the name `NAME@NUMBER`, so that every metric of a model tells the two
apart, and whoever wants the new one may ask for it by that name. Of the requests for NAME a share
goes to it, by the hash of their id, or of their key: the same one always the same way.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Final

from prometheus_client import Metric

from firsthand.checks import check_number, shown
from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.generation.member import Member
from firsthand.generation.service import Service
from firsthand.generation.service_values import Status
from firsthand.observe.instruments import read
from firsthand.observe.labels import CANARY_REASON
from firsthand.release.record import Release
from firsthand.release.store import Store
from firsthand.server.guard.call import Call
from firsthand.server.judging import Arm, why_back
from firsthand.server.logs import tell
from firsthand.values import dataclass

BY: Final = ("request", "key")
_WHOLE: Final = 1 << 64
_LOST: Final = (Status.RESTARTING, Status.FAILED, Status.CLOSED)


def read_share(share: str, by: str) -> float:
    """As the operator says it: 0.05, or 5%. Raises InvalidRequest."""
    try:
        value = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        raise InvalidRequest(
            "share", f"must be a share like 5% or 0.05, not {shown(share)}"
        ) from None
    check_number("share", value, 0, 1, low_open=True)
    if by not in BY:
        raise InvalidRequest("by", f"is one of {', '.join(BY)}")
    return value


@dataclass(slots=True, eq=False)
class Canary:
    """`new` has the share, `old` the rest; both are of the model that is asked for as `old.name`.
    `store` None: it was not staged in one."""

    old: Member
    new: Member
    release: Release
    share: float
    by: str
    store: Store | None
    arms: dict[str, Arm] = field(default_factory=lambda: {"old": Arm(), "new": Arm()})

    def takes(self, call: Call) -> bool:
        """Without keys a request's id decides in any case."""
        word = (self.by == "key" and call.caller.key_id) or call.request_id
        digest = hashlib.sha256(f"{self.release.id} {word}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.share * _WHOLE

    def told(self) -> dict[str, Any]:
        return {
            "model": self.old.name,
            "name": self.new.name,
            "release": self.release.number,
            "id": self.release.id,
            "share": self.share,
            "by": self.by,
            **{f"{name}_answers": arm.num_answers for name, arm in self.arms.items()},
            **{f"{name}_errors": arm.num_errors for name, arm in self.arms.items()},
        }


@dataclass(slots=True, eq=False)
class Canaries:
    """At most one of each model. `end` lets one go: nobody enters it any more, and it ends when it
    is empty."""

    end: Callable[[Canary], None] = lambda canary: None
    by_model: dict[str, Canary] = field(default_factory=dict)
    num_returned: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {canary.new.name for canary in self.by_model.values()}

    def share_of(self, name: str) -> float | None:
        """Of the canary that is called so."""
        shares = [one.share for one in self.by_model.values() if one.new.name == name]
        return shares[0] if shares else None

    def begin(self, canary: Canary) -> None:
        self.by_model[canary.old.name] = canary
        for reason in CANARY_REASON.values:
            self.num_returned.setdefault((canary.old.name, reason), 0)
        facts = canary.told()
        text = f"release {canary.release.number} gets {canary.share:.3g} of {canary.old.name}"
        tell("canary", text, **facts)

    def choose(self, call: Call, service: Service) -> Service:
        """Whom a request for that model goes to."""
        for canary in self.by_model.values():
            if service is canary.old.service and canary.new.answers and canary.takes(call):
                return canary.new.service
        return service

    def ended(self, call: Call, status: int) -> None:
        """Of every call; one that asked neither of the two is nobody's."""
        for canary in list(self.by_model.values()):
            arm = {canary.old.name: "old", canary.new.name: "new"}.get(call.queue or "")
            if arm is not None and not call.replayed:
                canary.arms[arm].add(status, call.ttft_ms, call.itl_ms_p50)
                if status >= 500:
                    self._judge(canary)

    def tick(self) -> None:
        """Once a second: an engine may be lost while nobody asks it, and medians take a while."""
        for canary in list(self.by_model.values()):
            self._judge(canary)

    def take_back(self, name: str) -> dict[str, Any]:
        """The operator's: it is over. Raises InvalidRequest where there is none."""
        canary = self.by_model.get(name)
        if canary is None:
            raise InvalidRequest("model", f"{name} has no canary")
        del self.by_model[name]
        self.end(canary)
        text = f"release {canary.release.number} has no share any more"
        tell("canary_ended", text, **canary.told())
        return canary.told()

    def _judge(self, canary: Canary) -> None:
        state = canary.new.service.state
        lost = state.num_restarts > 0 or state.status in _LOST
        found = ("engine", "its engine was lost") if lost else why_back(canary.arms)
        if found is not None:
            self._return(canary, *found)

    def _return(self, canary: Canary, reason: str, why: str) -> None:
        name = canary.old.name
        del self.by_model[name]
        self.num_returned[name, reason] = self.num_returned.get((name, reason), 0) + 1
        self.end(canary)
        text = f"release {canary.release.number} was taken back: {why}"
        tell("canary_returned", text, logging.WARNING, reason=reason, **canary.told())
        if canary.store is not None:
            try:
                canary.store.history.add(
                    "canary_returned", canary.release.number, id=canary.release.id, why=why
                )
            except (FirsthandError, OSError) as error:
                tell("canary_unwritten", f"the history does not say so: {error}", logging.WARNING)

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        canaries = self.by_model.items()
        shares = [((name, str(one.release.number)), one.share) for name, one in canaries]
        yield read("firsthand_canary_share_ratio", shares)
        yield read("firsthand_canary_returns", self.num_returned.items())
