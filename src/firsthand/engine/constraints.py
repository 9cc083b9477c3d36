"""What each constrained sequence may draw now: a mask per row of a step.

Owns: a state per sequence, and that it always follows from the sequence's own tokens.
May not know: how a grammar is compiled, logits, why a sequence runs.
Read next: `grammar.py`; `sampler.py`, which applies the masks; `runner.py`, the only caller.

A state is a place in the sequence's new text. It is brought up to date from the tokens that the
draw shows, so it cannot run ahead or fall behind; one that does not fit them (an evicted sequence
that comes back, one that lost its state) is made anew from the beginning. So what is kept can save
time, and cannot change a mask. Nothing fails open: a row whose state is lost, or at its end, or
over a limit, gets a mask that allows nothing, and an error. A row behind a guess that the
language has not gets a mask that allows nothing either: no draw before it is that guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firsthand.engine.grammar import Grammars, Matcher
from firsthand.engine.grammar_worker import shortened
from firsthand.engine.sampler import Masks
from firsthand.errors import InvalidRequest
from firsthand.request import Grammar
from firsthand.scheduling.plan import Draw
from firsthand.values import dataclass

# The library's words for one of its limits: nothing else that a caller gave can fail here.
LIMIT = re.compile(r"\b(limit|max is|too (many|much|large|big|complex)|fuel)\b")
SPARE_STATES = 64  # of sequences that did not draw in this step


class Constrained(NamedTuple):
    """The masks of a step; `faults` by row, each of which ends its sequence."""

    masks: Masks
    faults: dict[int, str]


@dataclass(slots=True, eq=False)
class _State:
    grammar: Grammar
    matcher: Matcher
    num_taken: int = 0
    last_id: int = -1

    def fits(self, draw: Draw) -> bool:
        """Whether the tokens that it took are a beginning of those that the draw shows."""
        end = draw.num_prompt_tokens + self.num_taken
        if self.grammar is not draw.grammar or end > len(draw.history):
            return False
        return self.num_taken == 0 or draw.history[end - 1] == self.last_id


class Constraints:
    """The states of the sequences of one engine. For one thread."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._states: dict[int, _State] = {}

    def masks(self, drawing: Sequence[tuple[int, Draw]]) -> Constrained:
        """For the rows of a step, each with its sequence's id, that have a grammar."""
        rows = [row for row, (_, draw) in enumerate(drawing) if draw.grammar is not None]
        num_words = self._grammars.num_words
        words = np.zeros((len(rows), num_words), dtype=np.uint32)
        faults: dict[int, str] = {}
        guessed: Matcher | None = None
        for mask, row in enumerate(rows):
            sequence_id, draw = drawing[row]
            if draw.num_guessed:
                guessed = _guess(guessed, self._states.get(sequence_id), draw)
                if guessed is not None:
                    guessed.unsafe_compute_mask_ptr(words[mask].ctypes.data, 4 * num_words)
                continue
            guessed = None
            state = self._state(sequence_id, draw)
            fault = state if isinstance(state, str) else _advance(state, draw)
            if fault is None and isinstance(state, _State):
                matcher = state.matcher
                matcher.unsafe_compute_mask_ptr(words[mask].ctypes.data, 4 * num_words)
                if matcher.is_error():
                    fault = _told(state)
            if fault is not None:
                words[mask] = 0
                faults[row] = fault
                self._states.pop(sequence_id, None)
        self._forget({sequence_id for sequence_id, _ in drawing})
        return Constrained(Masks(words, rows), faults)

    def _state(self, sequence_id: int, draw: Draw) -> _State | str:
        """The sequence's, or why there is none."""
        state = self._states.get(sequence_id)
        if state is not None and state.fits(draw):
            return state
        assert draw.grammar is not None, "asked for rows with a grammar"
        try:
            # It was compiled before the sequence came to the scheduler. Only if it has left the
            # kept ones since is it compiled again here.
            compiled = self._grammars.compile(draw.grammar)
        except InvalidRequest as error:
            return str(error)
        state = self._states[sequence_id] = _State(draw.grammar, compiled.deep_copy())
        return state

    def _forget(self, drawing: set[int]) -> None:
        """Drop the states of sequences that have ended, which nobody tells."""
        if len(self._states) > len(drawing) + SPARE_STATES:
            self._states = {i: state for i, state in self._states.items() if i in drawing}


def _guess(guessed: Matcher | None, state: _State | None, draw: Draw) -> Matcher | None:
    """The place behind one guess more, in a copy: the state itself takes what was drawn, and no
    guess. None where the guess is no text of the language; nobody will come there."""
    if draw.num_guessed == 1 and state is not None:
        guessed = state.matcher.deep_copy()
    if guessed is None or not guessed.consume_token(draw.history[-1]):
        return None
    return guessed


def _advance(state: _State, draw: Draw) -> str | None:
    """Take the tokens that were drawn since; a fault if one cannot be."""
    history, start = draw.history, draw.num_prompt_tokens + state.num_taken
    for position in range(start, len(history)):
        token_id = history[position]
        if not state.matcher.consume_token(token_id):
            return f"{_told(state)} (token {token_id})"
        state.num_taken += 1
        state.last_id = token_id
    return None


def _told(state: _State) -> str:
    """A limit is the grammar's fault, and told under the name of its field; anything else, ours."""
    reason = shortened(state.matcher.get_error())
    if LIMIT.search(reason):
        return str(InvalidRequest(state.grammar.field, f"met a limit: {reason}"))
    return f"the grammar failed: {reason or 'it does not go on'}"
