"""Prompt lookup: what came after the same few tokens the last time will come again.

Owns: where in a text each run of tokens was seen.
May not know: models, what a guess costs.
Read next: `speculation.py`. The idea: arXiv 2304.04487; the name and its options are vLLM's.

Texts that quote, correct or summarise their prompt repeat long runs of it. For each place the index
holds the last `least` tokens before it and the place before with the same ones, so the candidates
are a chain, the latest first. The one that agrees for the longest wins, up to `most` tokens; among
equals the latest. A guess that reaches the end of the text goes on in itself: what repeats with a
short period is guessed as far as wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from firsthand.engine.guessing.guesser import Asked
from firsthand.values import dataclass

MAX_CANDIDATES = 16


@dataclass(slots=True, eq=False)
class _Places:
    """Of one sequence. `before[p]` is the place before p with the same last tokens, or −1."""

    latest: dict[tuple[int, ...], int] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)


class PromptLookup:
    """A `Guesser` over the sequence's own tokens: runs of `least` to `most` of them must agree."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._places: dict[int, _Places] = {}

    @property
    def is_free(self) -> bool:
        return True

    def guess(self, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
        return [self._guess(one) for one in asked]

    def forget(self, present: AbstractSet[int]) -> None:
        if len(self._places) > len(present):
            self._places = {i: places for i, places in self._places.items() if i in present}

    def _guess(self, asked: Asked) -> tuple[int, ...]:
        known = asked.draw.history
        places = self._places.get(asked.sequence_id)
        if places is None:
            places = self._places[asked.sequence_id] = _Places()
        self._add(places, known)
        end = self._best(places.before, known)
        if end < 0 or asked.most < 1:
            return ()
        found = list(known[end : end + asked.most])
        period = len(known) - end
        while len(found) < asked.most:
            found.append(found[len(found) - period])
        return tuple(found)

    def _add(self, places: _Places, known: Sequence[int]) -> None:
        """Every place up to the end of the known tokens, which only ever grow."""
        latest, before, least = places.latest, places.before, self._least
        for end in range(len(before), len(known) + 1):
            if end < least:
                before.append(-1)
                continue
            run = tuple(known[end - least : end])
            before.append(latest.get(run, -1))
            latest[run] = end

    def _best(self, before: Sequence[int], known: Sequence[int]) -> int:
        """The place whose past agrees with the end of the text for the longest; −1: none does."""
        best, longest = -1, 0
        last = len(known)
        end = before[last]
        for _ in range(MAX_CANDIDATES):
            if end < 0:
                break
            length = self._least
            while length < min(self._most, end) and known[end - 1 - length] == known[-1 - length]:
                length += 1
            if length > longest:
                best, longest = end, length
                if length >= self._most:
                    break
            end = before[end]
        return best
