"""Those that run: their blocks, and who gives them up when there are none left.

Owns: the running sequences, in order of admission, and the room that is kept for their growth.
May not know: who waits, the budget, time.
Read next: `tables.py` for the blocks; `scheduler.py`, the only caller.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from firsthand.scheduling.policy import CLASSES, Policy, expected_length, victim_order
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.tables import Tables


class Running:
    """`whole_length`: everybody gets all its blocks at admission, and nobody is ever evicted."""

    def __init__(self, tables: Tables, policy: Policy, *, whole_length: bool) -> None:
        self._tables = tables
        self._policy = policy
        self._whole_length = whole_length
        self._num_admitted = 0
        self._num_recomputed = 0
        self._num_spare: int | None = None  # blocks kept for growth, once asked for in a step
        self._growth_tokens: int | None = None
        self.evictions_are_cheap = True
        self.sequences: dict[int, Sequence] = {}
        self.by_class = [0] * len(CLASSES)

    @property
    def num_recomputed(self) -> int:
        """Tokens computed before, lost in an eviction, and computed again; since the beginning."""
        return self._num_recomputed

    def begin_step(self, num_computed: int) -> None:
        """`num_computed` tokens were computed so far, by everybody: are evictions cheap?"""
        useful = num_computed - self._num_recomputed
        self.evictions_are_cheap = self._num_recomputed <= self._policy.max_recomputed * useful
        self._growth_tokens = self._policy.growth_tokens if self.evictions_are_cheap else None
        self._num_spare = None

    def admit(self, sequence: Sequence) -> bool:
        """Let it run, if there is room for it and for the growth of all. Else no change."""
        num_tokens = sequence.max_stored
        own = 0
        if not self._is_protected(sequence):
            num_tokens = len(sequence.known)
            own = self._growth(sequence, self._tables.num_blocks(num_tokens))
        spare = own + self._spare()
        if not self._tables.admit(sequence, num_tokens, spare, self._donor(sequence)):
            return False
        self._num_spare = spare
        self._num_recomputed += max(0, sequence.num_lost - sequence.num_computed)
        sequence.num_lost = 0
        sequence.is_running = sequence.started = True
        self._num_admitted += 1
        sequence.admitted = self._num_admitted
        self.sequences[sequence.sequence_id] = sequence
        self.by_class[sequence.class_index] += 1
        return True

    def grow(self, evict: Callable[[Sequence], None]) -> None:
        """A block for each whose next token has none; the highest and oldest first.

        `evict` is called for each that has to give up its own: the lowest and youngest, which may
        be the very one that asks.
        """
        needy = [one for one in self.sequences.values() if len(one.known) > one.capacity]
        for sequence in sorted(needy, key=_order):
            while sequence.is_running and not self._tables.grow(sequence):
                victims = [one for one in self.sequences.values() if not self._is_protected(one)]
                evict(max(victims, key=_order))

    def victim(self, above: int, borrows: Items[bool]) -> Sequence | None:
        """The youngest of the lowest class that is below `above` and lives on what is lent."""
        victims = [
            one
            for one in self.sequences.values()
            if one.class_index > above and borrows[one.class_index] and not self._is_protected(one)
        ]
        return max(victims, key=_order, default=None)

    def evict(self, sequence: Sequence) -> None:
        """It loses its blocks, and what was computed into them; it keeps what was drawn."""
        num_computed = sequence.num_computed
        self.remove(sequence)
        sequence.num_lost = num_computed
        sequence.num_preemptions += 1

    def remove(self, sequence: Sequence, *, failed: bool = False) -> None:
        """It runs no more, and its blocks are free."""
        del self.sequences[sequence.sequence_id]
        self._num_spare = None
        self.by_class[sequence.class_index] -= 1
        sequence.is_running = False
        self._tables.release(sequence, failed=failed)

    def _is_protected(self, sequence: Sequence) -> bool:
        """It was evicted often enough: it returns with its whole length, and is left alone."""
        return self._whole_length or sequence.num_preemptions >= self._policy.max_preemptions

    def _spare(self) -> int:
        """Blocks that are kept for the growth of all that run."""
        if self._num_spare is None:
            blocks = self._tables.num_blocks
            self._num_spare = sum(
                self._growth(one, blocks(one.capacity)) for one in self.sequences.values()
            )
        return self._num_spare

    def _growth(self, sequence: Sequence, num_blocks: int) -> int:
        """Blocks more than `num_blocks` that a sequence is expected to need."""
        if self._is_protected(sequence):
            return 0
        num_tokens = expected_length(len(sequence.known), sequence.max_stored, self._growth_tokens)
        return max(0, self._tables.num_blocks(num_tokens) - num_blocks)

    def _donor(self, sequence: Sequence) -> Sequence | None:
        """One of the same request that runs and has computed the prompt."""
        if not self._tables.shares or len(sequence.group.open) == 1:
            return None
        for other in sequence.group.open:
            if other.is_running and other.num_computed >= sequence.num_prompt_tokens:
                return other
        return None


def _order(sequence: Sequence) -> tuple[int, int]:
    return victim_order(sequence.class_index, sequence.admitted)
