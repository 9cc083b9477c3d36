"""Whether what a runner gave for a slice is what the slice asked for.

Owns: the faults that end one sequence, and no other.
May not know: sequences, events.
Read next: `scheduler.py`, which commits what has none.
"""

from __future__ import annotations

from firsthand.scheduling.plan import Drawn, Score, SequenceSlice, WasRead


def fault_of(
    piece: SequenceSlice, outcome: Drawn | None, read: WasRead | None, vocab_size: int
) -> str | None:
    """What is wrong with the outcome of a slice, for the one sequence it belongs to."""
    if outcome is not None and outcome.error is not None:
        return outcome.error
    if piece.read is not None or read is not None:
        fault = _read_fault(piece, read)
        if fault is not None:
            return fault
    if outcome is None:
        return "the runner gave no token" if piece.draw is not None else None
    if piece.draw is None or len(outcome.then) > piece.draw.max_guesses:
        return "the runner gave a token that was not asked for"
    return token_fault(outcome, vocab_size)


def token_fault(outcome: Drawn, vocab_size: int) -> str | None:
    """What is wrong with one drawn token."""
    if outcome.error is not None:
        return outcome.error
    if not 0 <= outcome.token_id < vocab_size:
        return f"the runner gave token id {outcome.token_id}, outside 0…{vocab_size - 1}"
    return None


def _read_fault(piece: SequenceSlice, read: WasRead | None) -> str | None:
    if piece.read is None:
        return "the runner read what was not asked for"
    if read is None:
        return "the runner did not read the prompt"
    if read.error is not None:
        return read.error
    if isinstance(piece.read, Score):
        wanted = len(piece.read.targets)
        return None if len(read.scores) == wanted else f"{len(read.scores)} scores, not {wanted}"
    return None if read.carry else "the runner gave no sum"
