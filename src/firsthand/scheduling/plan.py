"""The values of one step: what to compute, and what came of it. Frozen integers only.

Owns: the seam between whoever decides (`scheduler.py`) and whatever computes (a `Runner`).
May not know: arrays, bytes, layers, text, clocks.
Read next: `scheduler.py`.

The values of which a step has one per sequence are named tuples: making one costs a third of what
a frozen dataclass does, and hundreds are made between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firsthand.request import Grammar, SamplingParams, TokenScore
from firsthand.values import dataclass


class Draw(NamedTuple):
    """Take the token at `position` of a sequence from the logits of the row before it.

    The random number depends on (seed, position) alone. `history` are the sequence's known
    tokens, the first `num_prompt_tokens` of them the prompt's; it is empty unless a penalty of
    `sampling`, or `grammar`, or who guesses looks at it. It is the scheduler's own list, not a
    copy: to be read, and good until the plan is committed. The runner keeps no state between steps
    that these do not tell, so none can leak.

    The runner may guess up to `max_guesses` tokens from here on and compute them in the same step:
    the blocks have room for them. Of a draw that is made beside a guess, the last `num_guessed` of
    the history are guesses.
    """

    sampling: SamplingParams
    seed: int
    position: int
    history: Sequence[int] = ()
    num_prompt_tokens: int = 0
    grammar: Grammar | None = None
    max_guesses: int = 0
    num_guessed: int = 0


class Score(NamedTuple):
    """Tell how likely each of `targets` was: the token after row `first` of the slice, after the
    next row, and so on; and the `num_alternatives` likeliest ones beside each."""

    first: int
    targets: tuple[int, ...]
    num_alternatives: int


class Pool(NamedTuple):
    """Add the hidden states of the slice's rows from `first` on, one by one, to the sum that
    `carry` is (little-endian float64; empty: zero)."""

    first: int
    carry: bytes


class SequenceSlice(NamedTuple):
    """Compute `token_ids` of one sequence at positions start, start + 1, …

    `block_ids` hold positions 0 … start + len(token_ids) − 1. `draw` is set when the slice ends
    at the last known token, so that its last row's logits give the next one. `read` is what else
    is wanted of its rows, `adapter` what is added to the model's weights for them. The last
    `num_guesses` of `token_ids` are guesses of a runner; each of them has logits, too.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    start: int
    block_ids: tuple[int, ...]
    draw: Draw | None
    read: Score | Pool | None = None
    adapter: str = ""
    num_guesses: int = 0


class BlockCopy(NamedTuple):
    """The whole of block `source` becomes the content of block `target`, in every layer."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: slices in the order of admission; empty when there is nothing to do. The `copies`
    are made, in order, before anything is computed. `max_guesses` is the budget that is left for
    guesses of all of them together."""

    slices: tuple[SequenceSlice, ...]
    copies: tuple[BlockCopy, ...] = ()
    max_guesses: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.slices)


class Drawn(NamedTuple):
    """The token drawn for a sequence; logprobs only if asked for. `error` set: no token.

    `then` are the tokens after it, where a guess was the very token that was drawn: each is what
    the next step would have drawn. `num_guesses` were computed for them.
    """

    sequence_id: int
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    error: str | None = None
    then: tuple[Drawn, ...] = ()
    num_guesses: int = 0


class WasRead(NamedTuple):
    """What a slice's `read` asked for: a score per target, or the sum. `error` set: neither."""

    sequence_id: int
    scores: tuple[TokenScore, ...] = ()
    carry: bytes = b""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One `Drawn` per slice that had a `draw`, one `WasRead` per slice that had a `read`, in the
    plan's order; times in milliseconds, of which `guess_ms` were spent on making guesses."""

    drawn: tuple[Drawn, ...]
    forward_ms: float
    sample_ms: float
    reads: tuple[WasRead, ...] = ()
    guess_ms: float = 0.0
