"""What happens to a simulated engine, as plain values: who asks for what, when, and what breaks.

Owns: `Workload`, and how one comes out of a seed.
May not know: the engine, or what is right.
Read next: `world.py`, which lets it happen; `shrink.py`, which makes it smaller.

A workload is data and nothing else, so that it can be printed, cut down, and run again. Each fault
belongs to a request or to the number of a step: leaving one request out does not move the others'.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from firsthand.request import RepetitionGuard, Request, SamplingParams, StopRules
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.policy import CLASSES, Policy

VOCAB = 97
KINDS = ("shared", "private", "regions", "static", "static-shared")
BAD = ("error", "missing", "outside")  # what may come back in place of a token


@dataclass(frozen=True, slots=True)
class Setup:
    """The machine. `saturated`: everybody asks at the start, with equal requests; then shares can
    be measured. `weak_digest`: nearly all content hashes collide. In the steps of `faults` the
    runner raises; those of `jumps` take a hundred times as long."""

    kind: str = "shared"
    saturated: bool = False
    weak_digest: bool = False
    block_size: int = 4
    num_blocks: int = 16
    context: int = 32
    max_sequences: int = 4
    max_step_tokens: int = 16
    policy: Policy = field(default_factory=Policy)
    step_ms: int = 10
    token_ms: int = 1
    faults: tuple[int, ...] = ()
    jumps: tuple[int, ...] = ()

    @property
    def limits(self) -> Limits:
        return Limits(VOCAB, self.context, self.max_sequences, self.max_step_tokens)


@dataclass(frozen=True, slots=True)
class Abort:
    """`after_ms` after its arrival a request is aborted, or one `index` of it. `during`: while the
    runner computes, so between a plan and its commit."""

    after_ms: int = 0
    index: int | None = None
    during: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """Sequence `index` gets no proper token in place of its token number `after`."""

    index: int = 0
    after: int = 0
    what: str = "error"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Its prompt is `num_shared` tokens that all of its `family` begin with, then
    `num_own` that follow from its `mark`, and so does the seed. `twin`: it is sent twice, with one
    id."""

    mark: int
    at_ms: int = 0
    family: int = 0
    num_shared: int = 0
    num_own: int = 1
    num_new: int = 1
    min_new: int = 0
    ends: bool = False
    guarded: bool = False
    penalised: bool = False
    n: int = 1
    priority: int = 1
    tenant: int = 0
    salt: int = 0
    timeout_ms: int | None = None
    aborts: tuple[Abort, ...] = ()
    bad: Bad | None = None
    twin: bool = False

    def request(self) -> Request:
        shared = [(self.family * 31 + at * at * 3 + at) % VOCAB for at in range(self.num_shared)]
        own = [(self.mark * 7 + at * at + at * 5 + 1) % VOCAB for at in range(self.num_own)]
        timeout_ms = self.timeout_ms
        deadline_s = None if timeout_ms is None else (self.at_ms + timeout_ms) / 1e3
        return Request(
            f"r{self.mark}",
            tuple(shared + own),
            SamplingParams(repetition_penalty=1.1 if self.penalised else 1.0),
            StopRules(
                self.num_new,
                min_tokens=min(self.min_new, self.num_new),
                end_token_ids=frozenset({0, 1, 2} if self.ends else ()),
                stop_token_ids=frozenset({3 + self.mark % 5} if self.ends else ()),
                repetition=RepetitionGuard(2, 2) if self.guarded else None,
            ),
            seed=2**64 - 1 - self.mark,  # so that adding an index runs over the end
            n=self.n,
            priority=CLASSES[self.priority],
            tenant=f"t{self.tenant}",
            cache_salt=f"s{self.salt}" if self.salt else "",
            deadline_s=deadline_s,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    setup: Setup
    asks: tuple[Ask, ...]


def random_workload(seed: int) -> Workload:
    """Every sixteenth is saturated. What is common and what never happens is drawn anew for each
    seed, so that rare things meet."""
    rng = random.Random(seed)
    if seed % 16 == 15:
        return _saturated(rng)
    setup = _random_setup(rng)
    asks = _Asks(rng, setup)
    return Workload(setup, tuple(asks.one(mark) for mark in range(rng.choice((8, 60, 200, 400)))))


def _saturated(rng: random.Random) -> Workload:
    size, context, sequences = rng.choice((1, 2, 4)), 16, rng.choice((2, 4, 6))
    setup = Setup(
        kind=rng.choice(("shared", "private", "regions")),
        saturated=True,
        block_size=size,
        num_blocks=sequences * 2 * -(-context // size),
        context=context,
        max_sequences=sequences,
        max_step_tokens=sequences * 2,
        policy=Policy(ageing_s=1e6, shares=rng.choice(((8, 4, 1), (1, 1, 1), (3, 2, 1)))),
    )
    asks = [
        Ask(mark, num_own=3, num_new=4 + 2 * (mark % 2), priority=mark % 3, tenant=mark % 2)
        for mark in range(600)
    ]
    return Workload(setup, tuple(asks))


def _random_setup(rng: random.Random) -> Setup:
    size = rng.choice((1, 2, 4, 4, 8, 16))
    context = rng.choice((6, 16, 32, 32, 48, 64))
    sequences = rng.choice((1, 2, 3, 4, 4, 6, 8, 12))
    whole = -(-context // size)
    room = rng.choice((0.7, 1, 1, 1.5, 2, sequences, 2 * sequences))
    most = 6000
    return Setup(
        kind=rng.choice(("shared", "shared", "shared", "regions", *KINDS)),
        weak_digest=rng.random() < 0.3,
        block_size=size,
        num_blocks=max(1, int(whole * room)),
        context=context,
        max_sequences=sequences,
        max_step_tokens=sequences + rng.choice((0, 1, 4, 16, 64)),
        policy=Policy(
            shares=rng.choice(((8, 4, 1), (8, 4, 1), (1, 1, 1), (1, 3, 9))),
            ageing_s=rng.choice((0.02, 0.2, 1.0, 10.0, 1000.0)),
            max_passed=rng.choice((0, 2, 16)),
            lookahead=rng.choice((1, 2, 8)),
            growth_tokens=rng.choice((0, 0, 2, 64)),
            max_preemptions=rng.choice((0, 1, 2, 3)),
            max_recomputed=rng.choice((0.0, 0.05, 0.05, 1.0, 1.0)),
        ),
        step_ms=rng.choice((1, 10)),
        token_ms=rng.choice((0, 1)),
        faults=tuple(rng.sample(range(most), rng.choice((0, 0, 10, 60)))),
        jumps=tuple(rng.sample(range(most), rng.choice((0, 0, 20)))),
    )


class _Asks:
    """Requests for one setup, with the habits of one seed."""

    def __init__(self, rng: random.Random, setup: Setup) -> None:
        self._rng = rng
        self._setup = setup
        self._at_ms = 0
        self._gap_ms = rng.choice((0, 10, 30, 100))
        self._burst = rng.choice((1, 1, 4, 16))
        self._families = rng.choice((1, 3, 8))
        self._salts = rng.choice((1, 1, 3))
        self._tenants = rng.choice((1, 2, 5))
        self._classes = rng.choice(((1,), (0, 1, 2), (0, 1, 2), (0, 2)))
        self._chances = {
            name: rng.choice((0.0, often / 10, often))
            for name, often in (
                ("shared", 1.0),
                ("long", 0.5),
                ("many", 0.5),
                ("abort", 0.5),
                ("timeout", 0.3),
                ("bad", 0.2),
                ("twin", 0.1),
                ("huge", 0.1),
                ("ends", 1.0),
            )
        }

    def one(self, mark: int) -> Ask:
        rng, context = self._rng, self._setup.context
        if mark % self._burst == 0:
            self._at_ms += rng.randint(0, 2 * self._gap_ms * self._burst)
        num_shared = rng.randint(1, context - 2) if self._happens("shared") else 0
        num_own = rng.randint(1, max(1, (context - 1 - num_shared) // 2))
        num_new = rng.randint(1, context if self._happens("long") else max(1, context // 3))
        if self._happens("huge"):
            num_own, num_new = rng.choice(((context, 1), (context - num_shared - 1, 4 * context)))
            num_own = max(1, num_own)
        n = rng.choice((2, 2, 3, 5)) if self._happens("many") else 1
        return Ask(
            mark,
            at_ms=self._at_ms,
            family=rng.randrange(self._families),
            num_shared=num_shared,
            num_own=num_own,
            num_new=num_new,
            min_new=rng.choice((0, 0, 2)),
            ends=self._happens("ends"),
            guarded=rng.random() < 0.1,
            penalised=rng.random() < 0.1,
            n=n,
            priority=rng.choice(self._classes),
            tenant=rng.randrange(self._tenants),
            salt=rng.randrange(self._salts),
            timeout_ms=rng.choice((0, 5, 50, 500)) if self._happens("timeout") else None,
            aborts=self._aborts(n) if self._happens("abort") else (),
            bad=Bad(rng.randrange(n), rng.randrange(4), rng.choice(BAD))
            if self._happens("bad")
            else None,
            twin=self._happens("twin"),
        )

    def _aborts(self, n: int) -> tuple[Abort, ...]:
        rng = self._rng
        return tuple(
            Abort(
                after_ms=rng.randint(0, rng.choice((0, 20, 200, 2000))),
                index=rng.randrange(n) if rng.random() < 0.5 else None,
                during=rng.random() < 0.3,
            )
            for _ in range(rng.choice((1, 1, 2)))
        )

    def _happens(self, name: str) -> bool:
        return self._rng.random() < self._chances[name]
