"""Room for guesses: how many tokens a step may compute beyond those that are known.

Owns: who may have how many, and their blocks.
May not know: what is guessed, by whom, whether it pays.
Read next: `tables.py`, which lends the blocks; above, `engine/guessing/`, which guesses.

A guess takes nothing from anybody: it gets what is left of the step's budget when each sequence
has exactly its one token, so nothing that is known waits for it. What it writes lies in blocks of
the sequence itself, or in lent ones that the commit takes back. A step with any part of a prompt
has no room: there the machine has enough to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import SequenceSlice, StepPlan
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.tables import Tables


def with_guesses(
    plan: StepPlan, running: Mapping[int, Sequence], tables: Tables, limits: Limits
) -> StepPlan:
    """The plan with room for guesses, where it has any."""
    left = min(limits.max_step_guesses, limits.max_step_tokens - len(plan.slices))
    if left <= 0 or any(len(piece.token_ids) > 1 for piece in plan.slices):
        return plan
    slices = []
    most = 0
    for piece in plan.slices:
        sequence = running[piece.sequence_id]
        # The last token is drawn, never computed: a guess of it would have no place.
        wanted = min(limits.max_guesses, left, sequence.max_stored - len(sequence.known))
        room = tables.lend(sequence, wanted) if piece.draw is not None and wanted > 0 else 0
        slices.append(_with_room(piece, sequence, room) if room > 0 else piece)
        most += max(0, room)
    return replace(plan, slices=tuple(slices), max_guesses=min(left, most)) if most else plan


def _with_room(piece: SequenceSlice, sequence: Sequence, room: int) -> SequenceSlice:
    assert piece.draw is not None, "see above"
    draw = piece.draw._replace(
        history=sequence.known, num_prompt_tokens=sequence.num_prompt_tokens, max_guesses=room
    )
    return piece._replace(draw=draw, block_ids=sequence.block_ids)
