"""One sequence in progress: its known tokens, and how many of them are computed.

Owns: the only mutable state of a request. Private to this package.
May not know: who else is running, budgets, time.
Read next: `scheduler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from firsthand.request import Request
from firsthand.scheduling.plan import Draw, SequenceSlice


@dataclass(slots=True, eq=False)
class Sequence:
    """`known` starts as the prompt and grows by each drawn token.

    0 ≤ num_computed < len(known): the last known token is never computed before it is needed,
    so a sequence that has not ended has always something to do. `block_ids` are held from
    admission to the end; a token's position is its index in `known`, never a place in a block.
    `arrival_s` is for an order of admission other than first come, first served.
    """

    sequence_id: int
    request: Request
    arrival_s: float
    known: list[int]
    num_computed: int = 0
    block_ids: tuple[int, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def gap(self) -> int:
        """Tokens known but not computed: the one currency of scheduling."""
        return len(self.known) - self.num_computed

    def next_slice(self, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` of the gap, with a draw if that closes it."""
        start, stop = self.num_computed, self.num_computed + num_tokens
        draw = self._draw() if stop == len(self.known) else None
        return SequenceSlice(
            self.sequence_id, tuple(self.known[start:stop]), start, self.block_ids, draw
        )

    def _draw(self) -> Draw:
        sampling = self.request.sampling
        history = self.known if sampling.needs_history else ()
        return Draw(
            sampling=sampling,
            seed=self.request.seed,
            position=len(self.known),
            history=history,
            num_prompt_tokens=self.num_prompt_tokens if history else 0,
        )
