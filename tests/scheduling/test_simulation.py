"""Seeded random workloads: nothing is lost, nothing is mixed up, everything ends once.

A failing seed is a complete description of the failure.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import Priority, RepetitionGuard, Request, SamplingParams, StopRules
from firsthand.scheduling.admission import Limits
from firsthand.scheduling.plan import StepPlan, StepResult
from firsthand.scheduling.policy import Policy
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.waiting import StaticQueue
from tests.scheduling.fakes import VOCAB, FakeModel, Ledger

KINDS = ("shared", "private", "static", "regions")


class OneRegionEach:
    """The simplest memory that does not grow: counts room, moves nothing."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.regions: dict[int, int] = {}
        self.next_id = 0

    @property
    def grows(self) -> bool:
        return False

    @property
    def num_used(self) -> int:
        return sum(self.regions.values())

    @property
    def num_free(self) -> int:
        return self.num_blocks - self.num_used

    def allocate(self, count: int) -> tuple[int, ...] | None:
        if count > self.num_free:
            return None
        self.next_id += 1
        self.regions[self.next_id] = count
        return (self.next_id,)

    def free(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            del self.regions[block_id]


def random_request(name: str, rng: random.Random, context: int, now: float) -> Request:
    if rng.random() < 0.5:  # one of a few beginnings, so that prefixes are found
        start = random.Random(rng.randrange(3))
        prompt = [start.randrange(VOCAB) for _ in range(rng.randint(1, context - 1))]
        prompt[-1] = rng.randrange(VOCAB)
    else:
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, context - 1))]
    new = rng.randint(1, context)
    stop = StopRules(
        max_tokens=new,
        min_tokens=rng.randint(0, min(new, 4)),
        end_token_ids=frozenset(rng.sample(range(VOCAB), rng.randint(0, 2))),
        stop_token_ids=frozenset(rng.sample(range(VOCAB), rng.randint(0, 1))),
        ignore_end=rng.random() < 0.2,
        repetition=RepetitionGuard(2, 2) if rng.random() < 0.2 else None,
    )
    return Request(
        name,
        tuple(prompt),
        SamplingParams(),
        stop,
        seed=rng.getrandbits(64),
        n=rng.choice([1, 1, 1, 2, 5]),
        priority=rng.choice(list(Priority)),
        tenant=rng.choice(["", "a", "b"]),
        cache_salt=rng.choice(["", "salt"]),
        deadline_s=now + rng.randint(0, 200) if rng.random() < 0.1 else None,
    )


class World:
    """A scheduler over a random pool, a fake model, a ledger; the time is the step's number."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = rng = random.Random(seed)
        self.context = rng.randint(4, 48)
        sequences = rng.randint(1, 6)
        self.block_size = rng.choice([1, 2, 4, 16])
        num_blocks = -(-self.context // self.block_size) * rng.randint(1, sequences)
        self.pool = BlockPool(num_blocks, self.block_size)
        self.limits = Limits(VOCAB, self.context, sequences, rng.randint(sequences, sequences + 20))
        if kind == "regions":
            self.machine = Scheduler(self.limits, OneRegionEach(num_blocks, self.block_size))
            self.block_size *= num_blocks  # each region is a row of its own
        else:
            policy = Policy(
                ageing_s=rng.choice([5.0, 50.0, 1000.0]),
                growth_tokens=rng.choice([0, 4, 64]),
                max_passed=rng.choice([0, 2, 16]),
            )
            self.machine = Scheduler(
                self.limits,
                self.pool,
                prefix=PrefixCache(self.pool) if kind == "shared" else None,
                policy=policy,
                queue=StaticQueue(sequences) if kind == "static" else None,
            )
        self.model = FakeModel(self.block_size, lambda _: rng.random() < 0.003)
        self.ledger = Ledger()
        self.num_preempted = 0
        self.num_hits = 0

    def arrive(self, now: float) -> None:
        name = f"r{len(self.ledger.requests)}"
        request = random_request(name, self.rng, self.context, now)
        self.machine.add(self.ledger.open(request), now)

    def abort(self, now: float) -> None:
        for event in self.machine.abort(self.rng.choice(list(self.ledger.requests)), now):
            self.ledger.record(event)

    def step(self, now: float) -> StepPlan:
        machine = self.machine
        had_work = machine.num_waiting + machine.num_running > 0
        plan = machine.plan(now)
        machine.check_invariants()
        assert plan.num_tokens <= self.limits.max_step_tokens
        assert len(plan.slices) == machine.num_running <= self.limits.max_sequences
        events = machine.commit(plan, self.run(plan), now)
        assert plan.slices or events or not had_work, "it stands still"
        for event in events:
            self.ledger.record(event)
        machine.check_invariants()
        self.num_preempted += machine.last_plan.num_preempted
        self.num_hits += machine.last_plan.num_prefix_hit_tokens
        return plan

    def run(self, plan: StepPlan) -> StepResult:
        result = self.model.run(plan)
        if self.rng.random() < 0.002:  # the step fails as a whole
            return StepResult((), 0.0, 0.0)
        return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_random_workload(seed: int, kind: str) -> None:
    world = World(seed, kind)
    machine = world.machine
    now = 0.0
    while now < 600 or machine.num_waiting + machine.num_running:
        if now < 600 and world.rng.random() < 0.3 and machine.num_waiting < 8:
            world.arrive(now)
        if world.ledger.requests and world.rng.random() < 0.02:
            world.abort(now)
        world.step(now)
        now += 1
        assert now < 20_000, "it does not end (I10)"
    assert machine.num_used_blocks == 0
    assert len(world.ledger.requests) > 10
    world.ledger.check(world.context)
