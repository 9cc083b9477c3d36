"""A model that only tells what it read, and a ledger of what each request was given.

Owns: the fake runner, which keeps in each slot what a kernel would have to find there.
May not know: how the scheduler decides. Read next: `bench.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from firsthand.request import FinishReason, Request, TokenEvent
from firsthand.scheduling.plan import Drawn, SequenceSlice, StepPlan, StepResult
from firsthand.scheduling.stopping import finish_after

VOCAB = 40
FAULT = "a fault on purpose"
POISON = -1
MASK = 2**64 - 1


def extended(context: int, token_id: int) -> int:
    """What stands for a context, one token longer: any other token, anywhere, changes it."""
    mixed = (context * 6364136223846793005 + token_id * 2 + 1442695040888963407) & MASK
    return mixed ^ (mixed >> 29)


def drawn_token(context: int, seed: int, position: int) -> int:
    """What the fake model draws after a context: a function of the request alone."""
    return extended(extended(context, seed & 0xFFFFFFFF), position) % VOCAB


class FakeModel:
    """A `Runner`. `fails(sequence_id)` tells whose draw is an error. With `guesses` it guesses
    where it may: as many tokens as it likes, so many of them right as it likes."""

    def __init__(
        self,
        block_size: int,
        fails: Callable[[int], bool] | None = None,
        guesses: Random | None = None,
    ) -> None:
        self.block_size = block_size
        self.fails = fails
        self.guesses = guesses
        self.num_guessed = self.num_accepted = 0
        self.blocks: dict[int, list[int]] = {}
        self.num_computed = 0

    def run(self, plan: StepPlan) -> StepResult:
        for copy in plan.copies:
            self.blocks[copy.target] = list(self._block(copy.source))
        written: set[tuple[int, int]] = set()
        drawn = []
        left = plan.max_guesses
        for piece in plan.slices:
            context = self._compute(piece, written)
            self.num_computed += len(piece.token_ids)
            if piece.draw is None:
                continue
            assert piece.draw.position == piece.start + len(piece.token_ids)
            token = drawn_token(context, piece.draw.seed, piece.draw.position)
            error = FAULT if self.fails is not None and self.fails(piece.sequence_id) else None
            outcome = Drawn(piece.sequence_id, token, error=error)
            if self.guesses is not None and piece.draw.max_guesses and error is None:
                outcome = self._guessed(piece, outcome, context, left, written)
                left -= outcome.num_guesses
            drawn.append(outcome)
        return StepResult(tuple(drawn), 0.0, 0.0)

    def _guessed(
        self,
        piece: SequenceSlice,
        first: Drawn,
        context: int,
        left: int,
        written: set[tuple[int, int]],
    ) -> Drawn:
        assert self.guesses is not None and piece.draw is not None
        count = self.guesses.randint(0, min(left, piece.draw.max_guesses))
        num_right = self.guesses.randint(0, count)
        then: list[Drawn] = []
        guesses: list[int] = []
        for _ in range(num_right):
            guesses.append((then[-1] if then else first).token_id)
            context = extended(context, guesses[-1])
            position = piece.draw.position + len(guesses)
            token = drawn_token(context, piece.draw.seed, position)
            then.append(Drawn(piece.sequence_id, token))
        wrong = [((then[-1] if then else first).token_id + 1) % VOCAB] * (count - num_right)
        start = piece.start + len(piece.token_ids)
        if count:
            tokens = (*guesses, *wrong)
            self._compute(piece._replace(token_ids=tokens, start=start), written)
        self.num_guessed += count
        self.num_accepted += num_right
        return first._replace(then=tuple(then), num_guesses=count)

    def poison(self, block_ids: set[int]) -> None:
        """Overwrite blocks that nobody has and nobody can find."""
        for block_id in block_ids:
            self.blocks[block_id] = [POISON] * self.block_size

    def _compute(self, piece: SequenceSlice, written: set[tuple[int, int]]) -> int:
        assert piece.token_ids, "a slice without tokens"
        context = 0
        if piece.start:
            block, offset = divmod(piece.start - 1, self.block_size)
            context = self._block(piece.block_ids[block])[offset]
            assert context != POISON, "it reads what nobody wrote"
        for position, token_id in enumerate(piece.token_ids, piece.start):
            block, offset = divmod(position, self.block_size)
            slot = (piece.block_ids[block], offset)
            assert slot not in written, "two sequences write one slot in one step"
            written.add(slot)
            context = extended(context, token_id)
            self._block(slot[0])[offset] = context
        return context

    def _block(self, block_id: int) -> list[int]:
        return self.blocks.setdefault(block_id, [POISON] * self.block_size)


def expected(request: Request, index: int, context_length: int) -> tuple[list[int], FinishReason]:
    """The tokens of one sequence run alone, straight from the fake and the stop rules."""
    known = list(request.prompt_token_ids)
    context = 0
    for token_id in known:
        context = extended(context, token_id)
    while True:
        token_id = drawn_token(context, (request.seed + index) & MASK, len(known))
        known.append(token_id)
        context = extended(context, token_id)
        num_prompt_tokens = len(request.prompt_token_ids)
        finish = finish_after(request.stop, known, num_prompt_tokens, context_length)
        if finish is not None:
            return known[num_prompt_tokens:], finish.reason


class Ledger:
    """What each sequence of each request was given so far, and why it ended."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], FinishReason] = {}

    def open(self, request: Request) -> Request:
        self.requests[request.request_id] = request
        for index in range(request.n):
            self.tokens[request.request_id, index] = []
        return request

    def record(self, event: TokenEvent) -> None:
        key = (event.request_id, event.index)
        assert key not in self.reasons, "an event after the end"
        if event.token_id is not None:
            self.tokens[key].append(event.token_id)
        if event.finish is not None:
            self.reasons[key] = event.finish.reason

    def check(self, context_length: int) -> None:
        """Everything ended once, with the tokens that it would have had alone (I3, I4)."""
        assert self.reasons.keys() == self.tokens.keys()
        cut = (FinishReason.CANCELLED, FinishReason.ERROR, FinishReason.DEADLINE)
        for (name, index), tokens in self.tokens.items():
            whole, reason = expected(self.requests[name], index, context_length)
            if self.reasons[name, index] in cut:
                assert tokens == whole[: len(tokens)]
            else:
                assert (tokens, self.reasons[name, index]) == (whole, reason)
