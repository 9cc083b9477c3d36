"""One sequence in progress: its known tokens, and how many of them are computed.

Owns: the only mutable state of a request. Private to this package.
May not know: who else is running, budgets, time.
Read next: `tables.py`, which gives it blocks, then `scheduler.py`.
Seen in: `firsthand lab position-reuse`.
"""

from __future__ import annotations

from dataclasses import field

from firsthand.kvcache.prefix import Chain
from firsthand.request import MAX_SEED, PromptPart, Request, SamplingParams
from firsthand.scheduling.plan import Draw, SequenceSlice, WasRead
from firsthand.scheduling.policy import class_index
from firsthand.scheduling.reading import PromptReading, reading_of
from firsthand.values import dataclass

NEVER = 2**62  # of a count of tokens that no sequence reaches


@dataclass(slots=True, eq=False)
class Group:
    """The sequences of one request. `open` are those that have not ended; `followers` those of
    them that still wait for the first one to compute the prompt."""

    request: Request
    open: list[Sequence] = field(default_factory=list)
    followers: list[Sequence] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Sequence:
    """`known` starts as the prompt, with what another engine drew, and grows by each drawn token.

    0 ≤ num_computed < len(known): the last known token is never computed before it is needed,
    so a sequence that has not ended has always something to do. A token's position is its index in
    `known`, never a place in a block. `sequence_id` gives the order of arrival.

    `block_ids` hold `capacity` tokens; while it runs, len(known) ≤ capacity + 1. An evicted
    sequence has none, keeps what was drawn, and computes again. `max_stored` tokens are the most
    that it can ever have in the store. `publish_at` is the number of computed tokens that fills the
    next block to be published. The last `num_lent` of its blocks are lent for guesses until the
    step is committed. `leads` is set while others of its request wait for its prompt.
    `reading` is what is asked of its prompt, until that is known.
    """

    sequence_id: int
    group: Group
    index: int
    arrival_s: float
    known: list[int]
    max_stored: int
    request: Request = field(init=False)
    sampling: SamplingParams = field(init=False)
    class_index: int = field(init=False)
    seed: int = field(init=False)
    num_prompt_tokens: int = field(init=False)
    looks_back: bool = field(init=False)
    ending_ids: frozenset[int] = field(init=False)
    asks_each_token: bool = field(init=False)
    generates: bool = field(init=False)
    adapter: str = field(init=False)
    reading: PromptReading | None = field(init=False)
    num_computed: int = 0
    block_ids: tuple[int, ...] = ()
    capacity: int = 0
    chain: Chain | None = None
    publish_at: int = NEVER
    num_lent: int = 0
    leads: bool = False
    is_running: bool = False
    started: bool = False
    admitted: int = 0
    num_preemptions: int = 0
    num_lost: int = 0
    num_passed: int = 0

    def __post_init__(self) -> None:
        request = self.group.request
        self.request = request
        self.sampling = request.sampling
        self.class_index = class_index(request.priority)
        self.seed = (request.seed + self.index) & MAX_SEED
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.looks_back = request.sampling.needs_history or request.grammar is not None
        self.ending_ids = request.stop.end_token_ids | request.stop.stop_token_ids
        self.asks_each_token = request.stop.repetition is not None
        self.generates = request.generates
        self.adapter = request.adapter
        has_begun = len(self.known) > self.num_prompt_tokens
        self.started = has_begun
        self.reading = None if has_begun else reading_of(request, self.index)

    @property
    def gap(self) -> int:
        """Tokens known but not computed: the one currency of scheduling."""
        return len(self.known) - self.num_computed

    @property
    def num_findable(self) -> int:
        """The first tokens that may be found computed: all but the last known, whose row is drawn
        from, and none whose row is still to be read."""
        most = len(self.known) - 1
        return most if self.reading is None else min(most, self.reading.num_read)

    def take_read(self, read: WasRead) -> PromptPart | None:
        """What was read of the rows computed so far; what is to be told of it, if anything."""
        assert self.reading is not None, "only what was asked for is read"
        part = self.reading.take(self.num_computed, read)
        if self.reading.is_done:
            self.reading = None
        return part

    def may_end(self, token_id: int) -> bool:
        """Whether this token, the last known, can be the end: the cheap look before the rules."""
        return (
            len(self.known) > self.max_stored or token_id in self.ending_ids or self.asks_each_token
        )

    def next_slice(self, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` of the gap, with a draw if that closes it and one is wanted."""
        known, start = self.known, self.num_computed
        stop = start + num_tokens
        draw = None
        if stop == len(known) and self.generates:
            history, num_prompt = (known, self.num_prompt_tokens) if self.looks_back else ((), 0)
            grammar = self.request.grammar
            draw = Draw(self.sampling, self.seed, stop, history, num_prompt, grammar)
        token_ids = (known[start],) if num_tokens == 1 else tuple(known[start:stop])
        read = None if self.reading is None else self.reading.ask(start, stop)
        return SequenceSlice(
            self.sequence_id, token_ids, start, self.block_ids, draw, read, self.adapter
        )
