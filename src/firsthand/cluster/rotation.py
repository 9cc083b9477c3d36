"""Who answers next: the replicas that are in rotation, and the rules by which one is chosen.

Owns: what the door knows of each replica by its outcomes; how a sick one leaves and returns; the
four ways to choose.
May not know: Ray, links, what a request is beyond `Asked`.
Read next: `routing.py`, which asks on behalf of Ray Serve; `fleet.py`, which tells the outcomes.

A replica leaves the rotation when `failures` requests in a row got no first token from it, or when
its link is lost. It returns half open: after a while it gets one request, and that one's outcome
decides. A route that always answers proves nothing about an engine, so none is asked. Where all
have left, those that can be reached are asked all the same: a sick one is better than none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from enum import StrEnum

from firsthand.request import Request
from firsthand.values import dataclass

PREFIX_TOKENS = 32  # of a prompt that are remembered as one
MAX_PREFIXES = 4096  # remembered of one replica
STREAM_TOKENS = 64  # of a prompt take about as long as sharing steps with one stream more
SMOOTHING = 0.2  # of the newest time to a first token
UNMEASURED_S = 0.001


class Routing(StrEnum):
    """How a replica is chosen."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"  # least work before this request
    LATENCY = "latency"  # the time to a first token there, as many times as requests share it
    PREFIX = "prefix"  # least work until this request's first token, what is cached there deducted


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request before it is sent: its prompt, as hashes of its beginnings."""

    num_tokens: int = 0
    prefixes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a replica when one has to be chosen. `num_waiting_tokens` are of prompts
    without a first token; `first_s` is how long one takes; `num_known` tokens of this prompt it
    has seen before."""

    name: str
    num_open: int = 0
    num_waiting_tokens: int = 0
    first_s: float = 0.0
    num_known: int = 0

    @property
    def work(self) -> int:
        return self.num_waiting_tokens + STREAM_TOKENS * self.num_open


@dataclass(frozen=True, slots=True)
class Rules:
    """When a replica leaves, and for how long: doubling each time, until it is well."""

    failures: int = 3
    away_s: float = 5.0
    max_away_s: float = 60.0


def ordered(
    routing: Routing, standings: Sequence[Standing], asked: Asked, turn: int
) -> list[Standing]:
    """The best first. What is equal goes by turns."""
    first = turn % max(1, len(standings))
    rotated = [*standings[first:], *standings[:first]]
    match routing:
        case Routing.ROUND_ROBIN:
            return rotated
        case Routing.LEAST_LOADED:
            return sorted(rotated, key=lambda one: one.work)
        case Routing.LATENCY:
            return sorted(
                rotated, key=lambda one: (one.num_open + 1) * max(one.first_s, UNMEASURED_S)
            )
        case Routing.PREFIX:
            return sorted(rotated, key=lambda one: one.work + asked.num_tokens - one.num_known)


def asked_of(request: Request, routing: Routing) -> Asked:
    """Prompts are looked at only where that decides. Prefixes are shared within one tenant, salt
    and adapter, as the cache's are."""
    tokens = request.prompt_token_ids
    if routing is not Routing.PREFIX:
        return Asked(len(tokens))
    prefixes: list[int] = []
    last = hash((request.tenant, request.cache_salt, request.adapter))
    for end in range(PREFIX_TOKENS, len(tokens), PREFIX_TOKENS):
        last = hash((last, tokens[end - PREFIX_TOKENS : end]))
        prefixes.append(last)
    return Asked(len(tokens), tuple(prefixes[:MAX_PREFIXES]))


@dataclass(slots=True, eq=False)
class _Replica:
    is_linked: bool = False
    num_open: int = 0
    num_waiting_tokens: int = 0
    first_s: float = 0.0
    num_failures: int = 0  # in a row
    num_ejections: int = 0  # since it was last well
    away_until_s: float | None = None  # None: it is well
    has_trial: bool = False  # it is half open, and its one request is under way
    prefixes: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Rotation:
    """Told of every request that is sent and what became of it; asked who is next."""

    def __init__(
        self, routing: Routing, clock: Callable[[], float], rules: Rules | None = None
    ) -> None:
        self.routing = routing
        self._clock = clock
        self._rules = rules or Rules()
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0

    def linked(self, name: str) -> None:
        """It can be reached. One that was lost before is half open."""
        self._replicas.setdefault(name, _Replica()).is_linked = True

    def lost(self, name: str) -> None:
        """It cannot be reached, and what it had computed is perhaps gone."""
        replica = self._replicas.get(name)
        if replica is not None and replica.is_linked:
            self._replicas[name] = _Replica(num_ejections=replica.num_ejections)
            self._eject(self._replicas[name])

    def forget(self, name: str) -> None:
        """It has gone for good."""
        self._replicas.pop(name, None)

    def is_in(self, name: str) -> bool:
        """Whether it is well, as far as anybody knows."""
        replica = self._replicas.get(name)
        return replica is not None and replica.is_linked and replica.away_until_s is None

    @property
    def num_reached(self) -> int:
        return sum(replica.is_linked for replica in self._replicas.values())

    def order(self, asked: Asked, among: Iterable[str]) -> list[str]:
        """Who may get it, the best first; empty: nobody can be reached."""
        linked = [name for name in among if name in self._replicas]
        linked = sorted(name for name in linked if self._replicas[name].is_linked)
        now_s = self._clock()
        trial = [name for name in linked if self._is_half_open(self._replicas[name], now_s)]
        well = [name for name in linked if self._replicas[name].away_until_s is None]
        chosen = well or [name for name in linked if name not in trial]
        standings = [self._standing(name, asked) for name in chosen]
        self._turn += 1
        best = ordered(self.routing, standings, asked, self._turn)
        return [*trial[:1], *(one.name for one in best)]

    def sent(self, name: str, asked: Asked) -> None:
        replica = self._replicas.setdefault(name, _Replica())
        replica.num_open += 1
        replica.num_waiting_tokens += asked.num_tokens
        replica.has_trial |= replica.away_until_s is not None
        for prefix in asked.prefixes:
            replica.prefixes[prefix] = None
            replica.prefixes.move_to_end(prefix)
        while len(replica.prefixes) > MAX_PREFIXES:
            replica.prefixes.popitem(last=False)

    def answered(self, name: str, asked: Asked, took_s: float) -> None:
        """The first token of what was sent, so long after that."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        replica.num_waiting_tokens = max(0, replica.num_waiting_tokens - asked.num_tokens)
        before_s = replica.first_s or took_s
        replica.first_s = before_s + SMOOTHING * (took_s - before_s)
        replica.num_failures = 0
        replica.away_until_s, replica.has_trial, replica.num_ejections = None, False, 0

    def ended(self, name: str, asked: Asked, *, answered: bool, failed: bool = False) -> None:
        """What was sent has ended there; `failed`: without a first token, by the replica's fault.
        Whoever left before that says nothing about it."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        replica.num_open = max(0, replica.num_open - 1)
        if answered:
            return
        replica.num_waiting_tokens = max(0, replica.num_waiting_tokens - asked.num_tokens)
        replica.has_trial = False
        if failed:
            replica.num_failures += 1
            is_trial = replica.away_until_s is not None
            if is_trial or replica.num_failures >= self._rules.failures:
                self._eject(replica)

    def _eject(self, replica: _Replica) -> None:
        rules = self._rules
        away_s = min(rules.away_s * 2.0 ** min(replica.num_ejections, 20), rules.max_away_s)
        replica.num_ejections += 1
        replica.away_until_s = self._clock() + away_s
        replica.num_failures, replica.has_trial = 0, False
        replica.prefixes.clear()

    def _is_half_open(self, replica: _Replica, now_s: float) -> bool:
        until_s = replica.away_until_s
        return until_s is not None and until_s <= now_s and not replica.has_trial

    def _standing(self, name: str, asked: Asked) -> Standing:
        replica, num_known = self._replicas[name], 0
        for prefix in asked.prefixes:
            if prefix not in replica.prefixes:
                break
            num_known += PREFIX_TOKENS
        return Standing(
            name, replica.num_open, replica.num_waiting_tokens, replica.first_s, num_known
        )
