"""A guesser that knows the answers, and is wrong now and then on purpose.

Owns: which tokens it gets wrong, and which rows of logits were computed behind right ones alone.
May not know: engines, what is compared.
Read next: `parity.py`; `engine/guessing/guesser.py`, the interface.

Prompt lookup or a draft would guess nothing on one text and all of it on another: what a proof has
seen would depend on the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from firsthand.engine.guessing.guesser import Asked
from firsthand.evaluate.transcript import Transcript
from firsthand.scheduling.plan import Draw

EVERY = 3  # position is guessed wrong


class Foretold:
    """For the requests of a transcript."""

    is_free = True

    def __init__(self, known: Transcript, vocab_size: int) -> None:
        self._known = known
        self._vocab_size = vocab_size
        self._right: dict[tuple[int, int], int] = {}  # seed, position: guesses from there on

    def guess(self, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
        return [self._guess(one.draw, one.most) for one in asked]

    def forget(self, present: AbstractSet[int]) -> None:
        """It keeps nothing of a sequence that another could have."""

    def is_true(self, draw: Draw) -> bool:
        """Whether all guesses before that row were right: else it is nobody's row."""
        first = (draw.seed, draw.position - draw.num_guessed)
        return draw.num_guessed <= self._right.get(first, 0)

    def _guess(self, draw: Draw, most: int) -> tuple[int, ...]:
        start = len(draw.history) - draw.num_prompt_tokens
        tokens = [one.token_id for one in self._known.tokens[draw.seed]][start : start + most]
        wrong = [at for at in range(len(tokens)) if (draw.position + at) % EVERY == 0]
        self._right[draw.seed, draw.position] = wrong[0] if wrong else len(tokens)
        for at in wrong:
            tokens[at] = (tokens[at] + 1) % self._vocab_size
        return tuple(tokens)
