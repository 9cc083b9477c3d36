"""Seeded random workloads: nothing is lost, nothing is mixed up, everything ends once.

A failing seed is a complete description of the failure.
"""

from __future__ import annotations

import random

import pytest

from firsthand.kvcache.blocks import BlockPool
from firsthand.request import (
    FinishReason,
    RepetitionGuard,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
)
from firsthand.scheduling.admission import Limits
from firsthand.scheduling.plan import Drawn, SequenceSlice, StepPlan, StepResult
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.stopping import finish_after

VOCAB = 40
FAULT = "a fault on purpose"


def fake_token(seed: int, position: int) -> int:
    """What the fake model says: a function of the request alone, as the contract demands."""
    return random.Random(seed * 100_003 + position).randrange(VOCAB)


class FakeRunner:
    """Keeps what was written into each slot, and checks it as a kernel would read it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, tuple[int, int, int]] = {}

    def run(self, plan: StepPlan, rng: random.Random) -> StepResult:
        blocks = [block for piece in plan.slices for block in piece.block_ids]
        assert len(blocks) == len(set(blocks)), "two sequences share a block"
        drawn = []
        for piece in plan.slices:
            self.write_and_read(piece)
            if piece.draw is not None:
                token = fake_token(piece.draw.seed, piece.draw.position)
                error = FAULT if rng.random() < 0.003 else None
                drawn.append(Drawn(piece.sequence_id, token, error=error))
        return StepResult(tuple(drawn), 0.0, 0.0)

    def write_and_read(self, piece: SequenceSlice) -> None:
        assert piece.token_ids, "a slice without tokens"
        end = piece.start + len(piece.token_ids)
        for position, token in enumerate(piece.token_ids, piece.start):
            self.slots[self.slot(piece, position)] = (piece.sequence_id, position, token)
        for position in range(end):
            owner, at, _ = self.slots[self.slot(piece, position)]
            assert (owner, at) == (piece.sequence_id, position)

    def slot(self, piece: SequenceSlice, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return piece.block_ids[block] * self.block_size + offset


def random_request(name: str, rng: random.Random, context: int) -> Request:
    prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, context - 1)))
    new = rng.randint(1, context)
    stop = StopRules(
        max_tokens=new,
        min_tokens=rng.randint(0, min(new, 4)),
        end_token_ids=frozenset(rng.sample(range(VOCAB), rng.randint(0, 2))),
        stop_token_ids=frozenset(rng.sample(range(VOCAB), rng.randint(0, 1))),
        ignore_end=rng.random() < 0.2,
        repetition=RepetitionGuard(2, 2) if rng.random() < 0.2 else None,
    )
    return Request(name, prompt, SamplingParams(), stop, seed=rng.getrandbits(32))


def expected(request: Request, context: int) -> tuple[list[int], FinishReason]:
    """The stream of a request run alone, straight from the fake and the stop rules."""
    known = list(request.prompt_token_ids)
    while True:
        known.append(fake_token(request.seed, len(known)))
        finish = finish_after(request.stop, known, len(request.prompt_token_ids), context)
        if finish is not None:
            return known[len(request.prompt_token_ids) :], finish.reason


class Ledger:
    """What each request was given so far, and why it ended."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}

    def open(self, request: Request) -> Request:
        self.requests[request.request_id] = request
        self.tokens[request.request_id] = []
        return request

    def record(self, event: TokenEvent) -> None:
        assert event.request_id not in self.reasons, "an event after the end"
        if event.token_id is not None:
            self.tokens[event.request_id].append(event.token_id)
        if event.finish is not None:
            self.reasons[event.request_id] = event.finish.reason

    def check(self, context: int) -> None:
        assert self.reasons.keys() == self.requests.keys()
        for name, request in self.requests.items():
            whole, reason = expected(request, context)
            if self.reasons[name] in (FinishReason.CANCELLED, FinishReason.ERROR):
                assert self.tokens[name] == whole[: len(self.tokens[name])]
            else:
                assert (self.tokens[name], self.reasons[name]) == (whole, reason)


@pytest.mark.parametrize("seed", range(12))
def test_random_workload(seed: int) -> None:
    rng = random.Random(seed)
    context = rng.randint(4, 48)
    block_size = rng.choice([1, 4, 16, context])
    sequences = rng.randint(1, 5)
    pool = BlockPool(-(-context // block_size) * rng.randint(1, sequences), block_size)
    limits = Limits(VOCAB, context, sequences, rng.randint(sequences, sequences + 20))
    machine = Scheduler(limits, pool)
    runner = FakeRunner(block_size)
    ledger = Ledger()
    for now in range(1500):
        if now < 1200 and rng.random() < 0.3 and machine.num_waiting < 8:
            new = random_request(f"r{len(ledger.requests)}", rng, context)
            machine.add(ledger.open(new), now)
        if ledger.requests and rng.random() < 0.02:
            for event in machine.abort(rng.choice(list(ledger.requests)), now):
                ledger.record(event)
        plan = machine.plan()
        assert plan.num_tokens <= limits.max_step_tokens
        assert len(plan.slices) <= sequences
        assert plan.slices or not machine.num_waiting + machine.num_running, "it stands still"
        for event in machine.commit(plan, runner.run(plan, rng), now):
            ledger.record(event)
        assert pool.num_free + pool.num_used == pool.num_blocks
        assert machine.num_running or not pool.num_used
    assert machine.num_waiting + machine.num_running == 0
    assert len(ledger.requests) > 30
    ledger.check(context)
