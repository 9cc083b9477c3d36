"""A smaller model guesses: it draws the next tokens as the model itself would, only sooner.

Owns: how far the draft has computed each sequence, and the blocks of its own cache.
May not know: whether a guess pays, what becomes of it, how the draft was loaded.
Read next: `speculation.py`, which asks; `../runner.py`, by which the draft computes.

The draft draws with the options, the seed and the position of the draw that it guesses. Where the
two models agree on the probabilities, the same random number finds the same token: so guesses are
right about as often when tokens are sampled as when they are not. (A grammar it does not know.)

It has one currency, too: of a sequence it has computed some tokens, and the next step closes the
gap. A gap is the prompt at first, later what was drawn while the sequence had rest. Tokens that
were guessed and not drawn are computed no more: what they wrote is written over.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace

from firsthand.engine.attempts import Runner
from firsthand.engine.guessing.guesser import Asked
from firsthand.kvcache.blocks import BlockPool
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw, SequenceSlice, StepPlan
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Of the draft: the longest context, and what one of its steps may hold; and how many tokens
    both models know: beyond them the tables of a model may be padded."""

    context_length: int
    max_step_tokens: int
    max_sequences: int
    vocab_size: int


@dataclass(slots=True, eq=False)
class _Held:
    """A sequence in the draft's cache: `tokens` are computed, the first `num_certain` of them are
    the sequence's own for good."""

    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    num_certain: int = 0
    block_ids: tuple[int, ...] = ()

    def rewind(self, history: Sequence[int]) -> None:
        """To what was computed of the known tokens; the last of them is always left to compute."""
        most = min(len(self.tokens), len(history) - 1)
        count = min(self.num_certain, most)
        while count < most and self.tokens[count] == history[count]:
            count += 1
        del self.tokens[count:]
        self.num_certain = count


class DraftModel:
    """A `Guesser` by a runner of its own. `pool` are the blocks of that runner's store."""

    def __init__(self, runner: Runner, pool: BlockPool, limits: DraftLimits) -> None:
        self._runner = runner
        self._pool = pool
        self._limits = limits
        self._held: dict[int, _Held] = {}

    @property
    def is_free(self) -> bool:
        return False

    def guess(self, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
        guesses: dict[int, list[int]] = {one.sequence_id: [] for one in asked}
        going = self._close_gaps(asked, guesses)
        while going:
            slices = [self._next_slice(one, guesses[one.sequence_id]) for one in going]
            going = self._run(slices, going, guesses)
        return [tuple(guesses[one.sequence_id]) for one in asked]

    def forget(self, present: AbstractSet[int]) -> None:
        for sequence_id in self._held.keys() - present:
            self._pool.free(self._held.pop(sequence_id).block_ids)

    def _close_gaps(self, asked: Sequence[Asked], guesses: dict[int, list[int]]) -> list[Asked]:
        """The first step: whatever is known and not computed, as far as one step goes. Who has come
        to the end has its first guess, and goes on."""
        slices: list[SequenceSlice] = []
        going: list[Asked] = []
        left = self._limits.max_step_tokens
        for one in asked:
            if not left or len(slices) >= self._limits.max_sequences:
                break
            held = self._hold(one)
            if held is None:
                continue
            known, start = one.draw.history, len(held.tokens)
            piece = tuple(known[start : start + left])
            if max(piece) >= self._limits.vocab_size:
                continue
            left -= len(piece)
            is_whole = start + len(piece) == len(known)
            draw = self._draw(one, held, ()) if is_whole else None
            slices.append(SequenceSlice(one.sequence_id, piece, start, held.block_ids, draw))
            if is_whole:
                going.append(one)
        return self._run(slices, going, guesses) if slices else []

    def _hold(self, asked: Asked) -> _Held | None:
        """The sequence with blocks for all that will be computed of it; None without room."""
        history = asked.draw.history
        num_tokens = len(history) + asked.most - 1
        if num_tokens > self._limits.context_length:
            return None
        held = self._held.get(asked.sequence_id)
        if held is None:
            sampling = replace(asked.draw.sampling, logprobs=None)
            held = self._held[asked.sequence_id] = _Held(sampling)
        held.rewind(history)
        lacking = -(-num_tokens // self._pool.block_size) - len(held.block_ids)
        if lacking > 0:
            taken = self._pool.allocate(lacking)
            if taken is None:
                return None
            held.block_ids += taken
        return held

    def _next_slice(self, asked: Asked, guessed: Sequence[int]) -> SequenceSlice:
        """The last guess, and from it the next one."""
        held = self._held[asked.sequence_id]
        draw = self._draw(asked, held, guessed)
        last = tuple(guessed[-1:])
        return SequenceSlice(asked.sequence_id, last, len(held.tokens), held.block_ids, draw)

    def _draw(self, asked: Asked, held: _Held, guessed: Sequence[int]) -> Draw:
        draw = asked.draw
        looks_back = held.sampling.needs_history
        return Draw(
            held.sampling,
            draw.seed,
            draw.position + len(guessed),
            [*draw.history, *guessed] if looks_back else (),
            draw.num_prompt_tokens if looks_back else 0,
        )

    def _run(
        self,
        slices: Sequence[SequenceSlice],
        going: Sequence[Asked],
        guesses: dict[int, list[int]],
    ) -> list[Asked]:
        """One step of the draft: a guess more for those that go on. Those that want another yet."""
        result = self._runner.run(StepPlan(tuple(slices)))
        for piece in slices:
            self._held[piece.sequence_id].tokens += piece.token_ids
        drew = set()
        for drawn in result.drawn:
            if drawn.error is None and drawn.token_id < self._limits.vocab_size:
                guesses[drawn.sequence_id].append(drawn.token_id)
                drew.add(drawn.sequence_id)
        return [
            one
            for one in going
            if one.sequence_id in drew and len(guesses[one.sequence_id]) < one.most
        ]
