"""What is asked of whoever guesses a sequence's next tokens.

Owns: the interface.
May not know: how a guess is made, whether it was right.
Read next: `lookup.py`, `draft_model.py`; `speculation.py`, which asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from firsthand.scheduling.plan import Draw


class Asked(NamedTuple):
    """For up to `most` tokens after the history of `draw`, which is drawn next."""

    sequence_id: int
    draw: Draw
    most: int


class Guesser(Protocol):
    """Guesses are wishes: a wrong one costs time and can change no answer."""

    @property
    def is_free(self) -> bool:
        """Whether guessing costs next to nothing beside computing what was guessed."""
        ...

    def guess(self, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
        """The tokens for each; fewer than asked for, or none, where there is nothing to say."""
        ...

    def forget(self, present: AbstractSet[int]) -> None:
        """Keep nothing of any sequence but those."""
        ...
