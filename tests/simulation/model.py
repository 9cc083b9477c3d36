"""The fake model: its next token is a pure function, and it keeps a shadow of the store.

Owns: what a request is given alone (`Alone`), and a slot-for-slot picture of the cache.
May not know: how the scheduler decides.
Read next: `invariants.py`, which holds what is expected of each sequence.

In place of keys and values a slot holds one number that stands for everything they depend on: the
salt, and every token up to that position. Memory is poisoned when it is handed out. So whoever
reads a slot that is stale, foreign, misplaced or never written sees a number that is not his.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from firsthand.request import MAX_SEED, Finish, Request
from firsthand.scheduling.plan import BlockCopy, SequenceSlice
from firsthand.scheduling.stopping import finish_after
from tests.simulation.workload import VOCAB

POISON = -1
GARBAGE = -2  # what a step that fails leaves behind


class Violation(BaseException):
    """An invariant does not hold. No `Exception`: the engine must not take it for a fault of its
    runner, and go on."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def extended(code: int, token_id: int) -> int:
    """What stands for a context, one token longer."""
    mixed = (code * 6364136223846793005 + token_id * 2 + 1442695040888963407) & MAX_SEED
    return mixed ^ (mixed >> 29)


def root(salt: str) -> int:
    """What stands for an empty context."""
    code = 0
    for byte in salt.encode():
        code = extended(code, byte)
    return code


def next_token(code: int, seed: int, position: int) -> int:
    """The model: a function of the known tokens, the seed and the position."""
    return (extended(extended(code ^ seed, position), 1) >> 32) % VOCAB


@dataclass(frozen=True, slots=True)
class Alone:
    """A sequence as it is when nobody else is there: its tokens, the prompt's first; what stands
    for the context up to each; and its end."""

    known: list[int]
    codes: list[int]
    finish: Finish


def alone(request: Request, context_length: int) -> list[Alone]:
    """Each sequence of a request, run by itself: no batch, no chunks, no cache."""
    code, codes = root(request.cache_salt), []
    for token_id in request.prompt_token_ids:
        code = extended(code, token_id)
        codes.append(code)
    return [_alone(request, index, codes, context_length) for index in range(request.n)]


def _alone(request: Request, index: int, prompt_codes: list[int], context_length: int) -> Alone:
    known, codes = list(request.prompt_token_ids), list(prompt_codes)
    num_prompt, seed, rules = len(known), (request.seed + index) & MAX_SEED, request.stop
    while True:
        token_id = next_token(codes[-1], seed, len(known))
        known.append(token_id)
        codes.append(extended(codes[-1], token_id))
        finish = finish_after(rules, known, num_prompt, context_length)
        if finish is not None:
            return Alone(known, codes, finish)


class Shadow:
    """`num_slots` slots. `start_of` gives the slot at which a block or a region begins now."""

    def __init__(self, num_slots: int, size: int | None, start_of: Callable[[int], int]) -> None:
        self.slots = [POISON] * num_slots
        self._size = size  # None: a table is one region
        self._start_of = start_of

    def move_slots(self, source: int, target: int, count: int) -> None:
        """A region moves; the two may overlap."""
        self.slots[target : target + count] = self.slots[source : source + count]

    def poison(self, block_id: int, num_slots: int) -> None:
        start = self._start_of(block_id)
        self.slots[start : start + num_slots] = [POISON] * num_slots

    def copy(self, copies: Iterable[BlockCopy], size: int) -> None:
        for source, target in copies:
            start, to = self._start_of(source), self._start_of(target)
            self.slots[to : to + size] = self.slots[start : start + size]

    def read(self, codes: list[int], piece: SequenceSlice, whole: bool) -> int:
        """What lies before a slice must be its own: all of it, or the last block when not
        `whole`. Gives what stands for the context."""
        slots, size, start = self.slots, self._size, piece.start
        if size is None:
            at = self._start_of(piece.block_ids[0])
            if slots[at : at + start] != codes[:start]:
                raise self._wrong(piece)
            return slots[at + start - 1]
        last = (start - 1) // size
        for index in range(0 if whole else last, last + 1):
            first = index * size
            stop = min(first + size, start)
            at = piece.block_ids[index] * size
            if slots[at : at + stop - first] != codes[first:stop]:
                raise self._wrong(piece)
        return slots[piece.block_ids[last] * size + (start - 1) % size]

    def write(self, codes: list[int], piece: SequenceSlice) -> None:
        """The slice's tokens, at their positions."""
        slots, size, start = self.slots, self._size, piece.start
        stop = start + len(piece.token_ids)
        if size is None:
            at = self._start_of(piece.block_ids[0])
            slots[at + start : at + stop] = codes[start:stop]
            return
        block_ids = piece.block_ids
        for position in range(start, stop):
            slots[block_ids[position // size] * size + position % size] = codes[position]

    def _wrong(self, piece: SequenceSlice) -> Violation:
        return Violation("I4", f"sequence {piece.sequence_id} reads what is not its own")
