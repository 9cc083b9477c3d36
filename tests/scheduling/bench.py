"""A scheduler with a fake model behind it, to be stepped by hand.

Owns: `Bench`. May not know: what a test looks for. Read next: `fakes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import Priority, Request, SamplingParams, StopRules, TokenEvent
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import StepPlan
from firsthand.scheduling.policy import Policy
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.waiting import StaticQueue
from tests.scheduling.fakes import VOCAB, FakeModel, Ledger

NO_END = frozenset[int]()


class Bench:
    """`step` plans, runs and commits, checks the invariants, and records every event."""

    def __init__(
        self,
        *,
        budget: int = 64,
        sequences: int = 4,
        context: int = 64,
        blocks: int = 64,
        size: int = 4,
        shares: bool = False,
        static: bool = False,
        policy: Policy | None = None,
        guesses: int = 0,
        step_guesses: int = 64,
    ) -> None:
        self.context = context
        self.pool = BlockPool(blocks, size)
        self.machine = Scheduler(
            Limits(VOCAB, context, sequences, budget, (), guesses, step_guesses),
            self.pool,
            prefix=PrefixCache(self.pool) if shares else None,
            policy=policy,
            queue=StaticQueue(sequences) if static else None,
        )
        self.model = FakeModel(size, guesses=Random(0) if guesses else None)
        self.ledger = Ledger()
        self.now_s = 0.0
        self.plans: list[StepPlan] = []
        self.num_preempted = 0
        self.num_recomputed = 0
        self.served = [0, 0, 0]

    def add(
        self,
        name: str,
        prompt: int | Sequence[int] = 3,
        new: int = 4,
        *,
        n: int = 1,
        priority: Priority = Priority.NORMAL,
        tenant: str = "",
        salt: str = "",
        deadline_s: float | None = None,
    ) -> None:
        """`prompt` as a number is that many tokens that no other request begins with."""
        if isinstance(prompt, int):
            number = len(self.ledger.requests)
            prompt = [(number + 7 * at * at) % VOCAB for at in range(prompt)]
        request = Request(
            name,
            tuple(prompt),
            SamplingParams(),
            StopRules(new, end_token_ids=NO_END),
            seed=len(self.ledger.requests),
            n=n,
            priority=priority,
            tenant=tenant,
            cache_salt=salt,
            deadline_s=deadline_s,
        )
        self.machine.add(request, self.now_s)
        self.ledger.open(request)

    def step(self) -> list[str]:
        """The requests of the step, in the order of its slices."""
        plan = self.machine.plan(self.now_s)
        self.machine.check_invariants()
        names = list(self.machine.request_ids(plan))
        self.take(self.machine.commit(plan, self.model.run(plan), self.now_s))
        self.machine.check_invariants()
        self.plans.append(plan)
        facts = self.machine.last_plan
        self.num_preempted += facts.num_preempted
        self.num_recomputed += facts.num_recomputed
        self.served = [a + b for a, b in zip(self.served, facts.served_by_class, strict=True)]
        self.now_s += 1.0
        return names

    def abort(self, name: str) -> list[TokenEvent]:
        events = self.machine.abort(name, self.now_s)
        self.take(events)
        return events

    def take(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.ledger.record(event)

    def finish(self, max_steps: int = 2000) -> None:
        """Step until nothing is left; every token must be what it would be alone."""
        for _ in range(max_steps):
            if not self.machine.num_waiting + self.machine.num_running:
                break
            self.step()
        assert self.machine.num_waiting + self.machine.num_running == 0, "it does not end"
        assert self.machine.num_used_blocks == 0
        self.ledger.check(self.context)
