"""The scheduler: which sequences compute how many tokens in the next step.

Owns: who runs, the token budget, evictions, the end of a sequence.
May not know: what a token costs, how it is computed, what time it is (that comes as an argument).
Read next: `engine/engine.py`, which turns plan, run and commit into a step.
Seen in: `firsthand lab continuous-batching`.

One currency: a sequence has known and computed tokens, and a step closes some of the gap under a
budget. A prompt is a large gap, a generating sequence has a gap of one, an evicted one has its
whole length; nothing tells them apart.

A plan goes in this order. Whoever is past its deadline ends. Every running sequence has one token
of the budget for certain, so nothing that runs can be stopped by what comes. Each gets the block
that its token needs; if none is free the lowest and youngest gives up its own, and in such a step
nobody is admitted. What is left of the budget goes, by the rules of `policy.py`, to those that run
with a larger gap and to those that wait.

Everything ends: of the running, the highest and oldest is evicted by nobody, and alone it fits,
which was checked at the door. An evicted one keeps its drawn tokens, returns before new ones of
its class, and after a few evictions returns with its whole length and is left alone.
"""

from __future__ import annotations

from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import Finish, FinishReason, PromptPart, Request, TokenEvent
from firsthand.scheduling.checking import check_sequences
from firsthand.scheduling.facts import Admitted, PlanFacts, Preempted
from firsthand.scheduling.guessing import with_guesses
from firsthand.scheduling.limits import Limits, check_fits, check_request
from firsthand.scheduling.memory import BlockMemory
from firsthand.scheduling.outcomes import fault_of, token_fault
from firsthand.scheduling.picture import Picture
from firsthand.scheduling.picturing import picture_of
from firsthand.scheduling.plan import Drawn, SequenceSlice, StepPlan, StepResult
from firsthand.scheduling.policy import CLASSES, Policy, borrowers, new_credits
from firsthand.scheduling.requests import Requests
from firsthand.scheduling.running import Running
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.stopping import finish_after
from firsthand.scheduling.tables import Tables
from firsthand.scheduling.turns import EVERYBODY, NOBODY, Door
from firsthand.scheduling.waiting import FairQueue, Queue


class Scheduler:
    """`add` and `abort` between steps; `plan`, then `commit` with what came of the plan.

    Without a `prefix` cache no block is ever shared. `queue` is the fair one unless given.
    """

    def __init__(
        self,
        limits: Limits,
        memory: BlockMemory,
        *,
        prefix: PrefixCache | None = None,
        policy: Policy | None = None,
        queue: Queue | None = None,
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._prefix = prefix
        self._policy = policy or Policy()
        self._queue = queue or FairQueue(self._policy)
        self._tables = Tables(memory, prefix)
        whole_length = self._queue.whole_length or not memory.grows
        self._running = Running(self._tables, self._policy, whole_length=whole_length)
        self._requests = Requests(limits)
        self._credits = [0.0] * len(CLASSES)
        self._borrows = [False] * len(CLASSES)
        self._num_computed = 0
        self._unfit_id: int | None = None  # the first that found no room in the last plan
        self._ended: list[TokenEvent] = []  # in a plan; its commit tells of them
        self._admitted: list[Admitted] = []
        self._preempted: list[Preempted] = []
        self._last_plan = PlanFacts()

    @property
    def memory(self) -> BlockMemory:
        """Whose counts can be looked at; it is changed by the scheduler alone."""
        return self._memory

    @property
    def num_waiting(self) -> int:
        return sum(self.waiting_by_class)

    @property
    def waiting_by_class(self) -> tuple[int, ...]:
        """Urgent, normal, background; those that wait for the first of their request included."""
        following = self._requests.num_following
        return tuple(map(sum, zip(self._queue.num_waiting, following, strict=True)))

    @property
    def num_running(self) -> int:
        return len(self._running.sequences)

    @property
    def running_by_class(self) -> tuple[int, ...]:
        return tuple(self._running.by_class)

    @property
    def num_used_blocks(self) -> int:
        return self._memory.num_used

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that are nobody's, but could be found by their content."""
        return 0 if self._prefix is None else self._prefix.pool.num_cached

    @property
    def num_evicted_blocks(self) -> int:
        """Blocks that were cached until their memory was needed; since the beginning."""
        return 0 if self._prefix is None else self._prefix.pool.num_evictions

    @property
    def last_plan(self) -> PlanFacts:
        """What the last plan did, beside its slices."""
        return self._last_plan

    def picture(self, now_s: float) -> Picture:
        return picture_of(self._running, self._queue, self._prefix, self._policy, now_s)

    def check(self, request: Request) -> None:
        """Raise if `request` can never be run. Reads constants only: safe from any thread."""
        check_request(request, self._limits)
        check_fits(request, self._limits, self._memory.num_blocks, self._memory.block_size)

    def add(self, request: Request, arrival_s: float) -> None:
        """Queue a request. Raises InvalidRequest, and then changes nothing."""
        self.check(request)
        together = self._tables.shares and request.n > 1
        for sequence in self._requests.add(request, arrival_s, together=together):
            self._queue.add(sequence)

    def abort(self, request_id: str, now_s: float, index: int | None = None) -> list[TokenEvent]:
        """End a request, or one of its sequences, waiting or running: one event per sequence that
        had not ended."""
        return [
            self._finish(sequence, FinishReason.CANCELLED, now_s)
            for sequence in self._requests.open_of(request_id)
            if index is None or sequence.index == index
        ]

    def plan(self, now_s: float) -> StepPlan:
        """The next step. Changes who is running, but not what is computed: that is `commit`.

        `now_s` is the time on the clock of the arrivals and deadlines; it never goes back.
        """
        num_recomputed = self._running.num_recomputed
        self._begin(now_s)
        closed = self._make_room(now_s)
        slices: list[SequenceSlice] = []
        hungry: list[Sequence] = []
        for sequence in self._running.sequences.values():
            if len(sequence.known) - sequence.num_computed == 1:
                slices.append(sequence.next_slice(1))
            else:
                hungry.append(sequence)
        extra = [0] * len(CLASSES)
        if hungry or any(self._queue.num_waiting):
            slices += self._fill(hungry, extra, now_s, closed)
        served = self._settle(hungry, extra)
        plan = StepPlan(tuple(slices), self._tables.take_copies())
        if self._limits.max_guesses:
            plan = with_guesses(plan, self._running.sequences, self._tables, self._limits)
        self._last_plan = PlanFacts(
            admitted=tuple(self._admitted),
            preempted=tuple(self._preempted),
            num_recomputed=self._running.num_recomputed - num_recomputed,
            num_copies=len(plan.copies),
            served_by_class=served,
        )
        return plan

    def request_ids(self, plan: StepPlan) -> tuple[str, ...]:
        """The requests of a plan that is not committed yet, one per slice, in its order."""
        running = self._running.sequences
        return tuple([running[piece.sequence_id].request.request_id for piece in plan.slices])

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[TokenEvent]:
        """Take the result of `plan`: one event per drawn token, part of a prompt that was read, or
        ended sequence, in its order, after one for each that the plan found past its deadline.

        A fault of one sequence ends that one only. A sequence aborted since `plan` is passed over.
        """
        events, self._ended = self._ended, []
        drawn = {outcome.sequence_id: outcome for outcome in result.drawn}
        reads = {read.sequence_id: read for read in result.reads}
        running = self._running.sequences
        for piece in plan.slices:
            sequence = running.get(piece.sequence_id)
            if sequence is None:
                continue
            outcome, read = drawn.get(piece.sequence_id), reads.get(piece.sequence_id)
            fault = fault_of(piece, outcome, read, self._limits.vocab_size)
            if fault is not None:
                events.append(self._finish(sequence, FinishReason.ERROR, now_s, fault))
                continue
            sequence.num_computed += len(piece.token_ids)
            if sequence.num_computed >= sequence.publish_at:
                self._tables.publish(sequence)
            part = None if read is None else sequence.take_read(read)
            if outcome is not None:
                events.append(self._draw(sequence, outcome, now_s, part))
                if piece.draw is not None and piece.draw.max_guesses:
                    events += self._draw_guessed(sequence, outcome.then, now_s)
            elif not sequence.gap:  # nothing is generated
                late = sequence.request.is_late(now_s)
                reason = FinishReason.DEADLINE if late else FinishReason.LENGTH
                events.append(self._finish(sequence, reason, now_s, 0, part))
            elif part is not None:
                events.append(_event(sequence, now_s, part))
        return events

    def check_invariants(self) -> None:
        """Raise AssertionError if sequences, tables and memory disagree. O(blocks); for tests."""
        self._tables.check(self._running.sequences.values())
        check_sequences(self._running, self._queue, self._requests, self._policy, self._limits)

    def _begin(self, now_s: float) -> None:
        self._admitted, self._preempted = [], []
        for sequence in self._requests.expired(now_s):
            self._ended.append(self._finish(sequence, FinishReason.DEADLINE, now_s))
        self._queue.begin_step(len(self._running.sequences))
        self._running.begin_step(self._num_computed)

    def _make_room(self, now_s: float) -> int:
        """Blocks for what runs; and a place for one of a class that is owed, if another lives on
        lent ones. Gives the first class that admits nobody in this step."""
        self._running.grow(self._evict)
        if self._preempted:
            return NOBODY
        is_owed = any(self._borrows) and any(credit > 0 for credit in self._credits)
        if not is_owed or not self._running.evictions_are_cheap:
            return EVERYBODY
        door = Door(self._policy, self._queue, self._credits, now_s, EVERYBODY)
        first = door.next((), is_full=False)
        if first is None or self._credits[first.class_index] <= 0:
            return EVERYBODY
        if not self._is_full() and first.sequence_id != self._unfit_id:
            return EVERYBODY
        victim = self._running.victim(first.class_index, self._borrows)
        if victim is None:
            return EVERYBODY
        self._evict(victim)
        return first.class_index + 1

    def _fill(
        self, hungry: list[Sequence], extra: list[int], now_s: float, closed: int
    ) -> list[SequenceSlice]:
        """Spend the rest of the budget on those that run with a gap, and on new ones.

        Leaves in `hungry` those that would have taken more; adds to `extra`, by class, what was
        given beyond the one token that each running sequence has.
        """
        credits = list(self._credits)
        door = Door(self._policy, self._queue, credits, now_s, closed)
        budget = self._limits.max_step_tokens - len(self._running.sequences)
        slices: list[SequenceSlice] = []
        unfinished: list[Sequence] = []
        while budget > 0:
            sequence = door.next(hungry, is_full=self._is_full())
            if sequence is None:
                break
            if sequence.is_running:
                hungry.remove(sequence)
            elif self._admit(sequence, now_s):
                door.passed(sequence)
                budget -= 1
                if self._preempted:
                    door.close()
            else:
                door.refuse(sequence)
                continue
            more = min(sequence.gap - 1, budget)
            budget -= more
            slices.append(sequence.next_slice(1 + more))
            extra[sequence.class_index] += more
            credits[sequence.class_index] -= 1 + more
            self._queue.served(sequence, more)
            if sequence.gap > 1 + more:
                unfinished.append(sequence)
        slices += [sequence.next_slice(1) for sequence in hungry]
        hungry += unfinished
        unfit = door.first_unfit
        self._unfit_id = None if unfit is None else unfit.sequence_id
        return slices

    def _settle(self, hungry: list[Sequence], extra: list[int]) -> tuple[int, ...]:
        """Who was served how much, by class; and what that makes each owed."""
        served = [own + more for own, more in zip(self._running.by_class, extra, strict=True)]
        self._num_computed += sum(served)
        wants = [count > 0 for count in self._queue.num_waiting]
        for sequence in hungry:
            wants[sequence.class_index] = True
        shares = self._policy.shares
        bound = self._limits.max_step_tokens
        self._credits = new_credits(self._credits, served, wants, shares, bound)
        self._borrows = borrowers(served, wants, shares)
        return tuple(served)

    def _draw(
        self, sequence: Sequence, outcome: Drawn, now_s: float, part: PromptPart | None
    ) -> TokenEvent:
        """Take a token; end the sequence if it is its last one."""
        known, token_id = sequence.known, outcome.token_id
        known.append(token_id)
        finish = None
        if sequence.may_end(token_id):
            rules, context_length = sequence.request.stop, self._limits.context_length
            finish = finish_after(rules, known, sequence.num_prompt_tokens, context_length)
        if sequence.leads:
            self._release_followers(sequence)
        if finish is not None:
            if sequence.request.is_late(now_s):
                finish = Finish(FinishReason.DEADLINE)
            self._end(sequence)
        request_id, index = sequence.request.request_id, sequence.index
        told = outcome.logprob, outcome.top_logprobs
        return TokenEvent(request_id, token_id, now_s, *told, finish, index, part)

    def _draw_guessed(
        self, sequence: Sequence, outcomes: tuple[Drawn, ...], now_s: float
    ) -> list[TokenEvent]:
        """Take the tokens after one that was guessed right, as if each had its own step; what was
        computed for the other guesses is forgotten."""
        events: list[TokenEvent] = []
        for outcome in outcomes:
            if not sequence.is_running:
                return events  # it has ended: nothing comes after its end
            fault = token_fault(outcome, self._limits.vocab_size)
            if fault is not None:
                return [*events, self._finish(sequence, FinishReason.ERROR, now_s, fault)]
            sequence.num_computed += 1
            if sequence.num_computed >= sequence.publish_at:
                self._tables.publish(sequence)
            events.append(self._draw(sequence, outcome, now_s, None))
        if sequence.is_running:
            self._tables.take_back(sequence)
        return events

    def _is_full(self) -> bool:
        return len(self._running.sequences) >= self._limits.max_sequences

    def _release_followers(self, leader: Sequence) -> None:
        for sequence in self._requests.release_followers(leader):
            self._queue.add(sequence)

    def _admit(self, sequence: Sequence, now_s: float) -> bool:
        if not self._running.admit(sequence):
            return False
        self._queue.admitted(sequence)
        request_id, waited_s = sequence.request.request_id, now_s - sequence.arrival_s
        found, resumed = sequence.num_computed, sequence.num_preemptions > 0
        num_blocks = len(sequence.block_ids)
        admitted = Admitted(request_id, sequence.index, waited_s, found, resumed, num_blocks)
        self._admitted.append(admitted)
        return True

    def _evict(self, sequence: Sequence) -> None:
        """Back to the queue: it gives up its blocks for one that goes before it."""
        request_id, num_blocks = sequence.request.request_id, len(sequence.block_ids)
        self._running.evict(sequence)
        self._queue.left(sequence)
        self._queue.add(sequence)
        self._preempted.append(Preempted(request_id, sequence.index, num_blocks, sequence.num_lost))

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now_s: float,
        cause: int | str | None = None,
        part: PromptPart | None = None,
    ) -> TokenEvent:
        """End a sequence without a token."""
        self._end(sequence, failed=reason is FinishReason.ERROR)
        return _event(sequence, now_s, part, Finish(reason, cause))

    def _end(self, sequence: Sequence, *, failed: bool = False) -> None:
        if sequence.leads:
            self._release_followers(sequence)
        if sequence.is_running:
            self._running.remove(sequence, failed=failed)
            self._queue.left(sequence)
        elif sequence not in sequence.group.followers:
            self._queue.remove(sequence)
        self._requests.end(sequence)


def _event(
    sequence: Sequence, now_s: float, part: PromptPart | None, finish: Finish | None = None
) -> TokenEvent:
    """Without a token."""
    request_id, index = sequence.request.request_id, sequence.index
    return TokenEvent(request_id, None, now_s, finish=finish, index=index, prompt=part)
