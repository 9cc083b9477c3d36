"""The scheduler: which sequences compute how many tokens in the next step.

Owns: the waiting and the running sequences and their blocks.
May not know: what a token costs, how it is computed, what time it is. Standard library only.
Read next: `engine/engine.py`, which turns plan, run and commit into a step.

One currency: a sequence has known and computed tokens, and a step closes some of the gap under a
budget. A prompt is a large gap, a generating sequence has a gap of one; nothing tells them apart.
First come, first served: running sequences in the order of their admission, then waiting ones
while there is budget, room and a block. Therefore at most the last running sequence has a gap
left after a step, and those before it get a token in every step: a long prompt slows running
streams, but never stops them.
"""

from __future__ import annotations

from collections.abc import Mapping

from firsthand.checks import shown
from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.request import Finish, FinishReason, Request, TokenEvent
from firsthand.scheduling.admission import Limits, check_request, max_stored_tokens
from firsthand.scheduling.plan import Drawn, SequenceSlice, StepPlan, StepResult
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.stopping import finish_after


class Scheduler:
    """`add` and `abort` between steps; `plan`, then `commit` with what came of the plan.

    A sequence is given the blocks for its whole possible length when it is admitted, so a running
    one can never lack a block. They are free again in the step in which it ends.
    """

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self._limits = limits
        self._pool = pool
        self._waiting: dict[int, Sequence] = {}  # both in order of arrival, by sequence id
        self._running: dict[int, Sequence] = {}
        self._sequence_ids: dict[str, int] = {}
        self._next_id = 0

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_used_blocks(self) -> int:
        return self._pool.num_used

    def check(self, request: Request) -> None:
        """Raise if `request` can never be run. Reads constants only: safe from any thread."""
        check_request(request, self._limits)
        needed = self._pool.blocks_for(max_stored_tokens(request, self._limits))
        if needed > self._pool.num_blocks:
            raise CapacityExceeded(
                f"the request may need {needed} cache blocks, there are {self._pool.num_blocks}"
            )

    def add(self, request: Request, arrival_s: float) -> None:
        """Queue a request. Raises InvalidRequest or CapacityExceeded, and then changes nothing."""
        self.check(request)
        if request.request_id in self._sequence_ids:
            raise InvalidRequest(
                "request_id", f"{shown(request.request_id)} is already in progress"
            )
        sequence = Sequence(self._next_id, request, arrival_s, list(request.prompt_token_ids))
        self._next_id += 1
        self._sequence_ids[request.request_id] = sequence.sequence_id
        self._waiting[sequence.sequence_id] = sequence

    def abort(self, request_id: str, now_s: float) -> list[TokenEvent]:
        """End a request, waiting or running; no event when it is not here (any more)."""
        sequence_id = self._sequence_ids.get(request_id)
        if sequence_id is None:
            return []
        sequence = self._waiting.get(sequence_id) or self._running[sequence_id]
        self._remove(sequence)
        return [TokenEvent(request_id, None, now_s, finish=Finish(FinishReason.CANCELLED))]

    def plan(self) -> StepPlan:
        """The next step. Changes who is running, but not what is computed: that is `commit`."""
        budget = self._limits.max_step_tokens
        slices: list[SequenceSlice] = []
        for sequence in self._running.values():
            slices.append(sequence.next_slice(min(sequence.gap, budget)))
            budget -= len(slices[-1].token_ids)
        while budget > 0 and self._waiting and len(self._running) < self._limits.max_sequences:
            sequence = next(iter(self._waiting.values()))
            if not self._admit(sequence):
                break
            slices.append(sequence.next_slice(min(sequence.gap, budget)))
            budget -= len(slices[-1].token_ids)
        return StepPlan(tuple(slices))

    def request_ids(self, plan: StepPlan) -> tuple[str, ...]:
        """The requests of a plan that is not committed yet, in its order."""
        return tuple(self._running[piece.sequence_id].request.request_id for piece in plan.slices)

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[TokenEvent]:
        """Take the result of `plan`: one event per drawn token or failed sequence, in its order.

        A fault of one sequence ends that one only. A sequence aborted since `plan` is passed over.
        """
        drawn = {outcome.sequence_id: outcome for outcome in result.drawn}
        events = []
        for piece in plan.slices:
            sequence = self._running.get(piece.sequence_id)
            if sequence is None:
                continue
            event = self._commit_slice(sequence, piece, drawn, now_s)
            if event is None:
                continue
            events.append(event)
            if event.finish is not None:
                self._remove(sequence)
        return events

    def _commit_slice(
        self, sequence: Sequence, piece: SequenceSlice, drawn: Mapping[int, Drawn], now_s: float
    ) -> TokenEvent | None:
        outcome = drawn.get(piece.sequence_id)
        fault = _fault(piece, outcome, self._limits.vocab_size)
        if fault is not None:
            finish = Finish(FinishReason.ERROR, fault)
            return TokenEvent(sequence.request.request_id, None, now_s, finish=finish)
        sequence.num_computed += len(piece.token_ids)
        if outcome is None:
            return None
        sequence.known.append(outcome.token_id)
        return TokenEvent(
            sequence.request.request_id,
            outcome.token_id,
            now_s,
            logprob=outcome.logprob,
            top_logprobs=outcome.top_logprobs,
            finish=finish_after(
                sequence.request.stop,
                sequence.known,
                sequence.num_prompt_tokens,
                self._limits.context_length,
            ),
        )

    def _admit(self, sequence: Sequence) -> bool:
        stored = max_stored_tokens(sequence.request, self._limits)
        blocks = self._pool.allocate(self._pool.blocks_for(stored))
        if blocks is None:
            return False
        sequence.block_ids = blocks
        del self._waiting[sequence.sequence_id]
        self._running[sequence.sequence_id] = sequence
        return True

    def _remove(self, sequence: Sequence) -> None:
        self._waiting.pop(sequence.sequence_id, None)
        self._running.pop(sequence.sequence_id, None)
        del self._sequence_ids[sequence.request.request_id]
        self._pool.free(sequence.block_ids)
        sequence.block_ids = ()


def _fault(piece: SequenceSlice, outcome: Drawn | None, vocab_size: int) -> str | None:
    """What is wrong with the outcome of a slice, for the one sequence it belongs to."""
    if outcome is None:
        return "the runner gave no token" if piece.draw is not None else None
    if outcome.error is not None:
        return outcome.error
    if piece.draw is None:
        return "the runner gave a token that was not asked for"
    if not 0 <= outcome.token_id < vocab_size:
        return f"the runner gave token id {outcome.token_id}, outside 0…{vocab_size - 1}"
    return None
