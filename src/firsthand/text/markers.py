"""Markers in text: where they stand, and how to keep a user's text from becoming one.

Owns: finding marker tokens in a string, and the guard character that breaks them.
May not know: vocabularies, templates, ids' meaning.
Read next: `tokenizer.py` (splits at markers), `templates.py` (guards what users wrote).

The guard: before a template is rendered, one private-use character that occurs nowhere else is
put inside every control text of a message. After rendering, a control text is a marker only
where it stands unbroken, that is where the template itself wrote it; then the guard is removed.
Trimming, slicing, joining and changing the case inside the template leave it in its place.

The limit: a template that deletes or replaces characters in the middle of a message (`replace`,
pieces of a `split` put together again) can make a control text out of what the user wrote apart,
and no guard sees that. Such a template has to come with the model; the ones we know cut only at
the ends.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from firsthand.errors import InvalidRequest
from firsthand.text.vocabulary import AddedToken

_FIRST_GUARD, _NUM_GUARDS = 0xF0000, 0xFFFD  # Supplementary Private Use Area-A


class MarkerIndex:
    """Finds markers: the leftmost, and of those the longest. Time is linear in the text, times
    the number of different marker lengths."""

    def __init__(self, markers: Iterable[AddedToken]) -> None:
        self._markers = {marker.text: marker for marker in markers}
        self._lengths = sorted({len(text) for text in self._markers}, reverse=True)
        self.max_length = max(self._lengths, default=0)
        self._sorted = sorted(self._markers)
        self._sorted_reversed = sorted(text[::-1] for text in self._markers)
        firsts = sorted({text[0] for text in self._markers})
        self._first = re.compile("[" + re.escape("".join(firsts)) + "]") if firsts else None

    def matches(self, text: str, guard: str = "") -> Iterator[tuple[int, int, AddedToken]]:
        """(begin, end, marker), in order and apart; the white space that a marker swallows is
        inside. A marker that the guard breaks, or that it follows, is none."""
        position = previous_end = 0
        while self._first and (candidate := self._first.search(text, position)):
            begin = candidate.start()
            marker = self._at(text, begin)
            if marker is None or _refused(text, begin, marker, guard):
                position = begin + 1
                continue
            end = begin + len(marker.text)
            while marker.strip_left and begin > previous_end and text[begin - 1].isspace():
                begin -= 1
            while marker.strip_right and end < len(text) and text[end].isspace():
                end += 1
            yield begin, end, marker
            position = previous_end = end

    def starts(self, text: str) -> list[int]:
        """Every position at which a marker begins, also inside another one."""
        if self._first is None:
            return []
        candidates = (candidate.start() for candidate in self._first.finditer(text))
        return [begin for begin in candidates if self._at(text, begin) is not None]

    def has_beginning(self, text: str) -> bool:
        """Whether some marker begins with `text` and goes on."""
        return _is_proper_prefix(text, self._sorted)

    def has_ending(self, text: str) -> bool:
        """Whether some marker ends with `text` after something else."""
        return _is_proper_prefix(text[::-1], self._sorted_reversed)

    def _at(self, text: str, begin: int) -> AddedToken | None:
        for length in self._lengths:
            marker = self._markers.get(text[begin : begin + length])
            if marker is not None:
                return marker
        return None


class Guard:
    """Breaks the control texts, in any case of letters, in the strings of one set of messages.
    `controls` has them as `fold_case` gives them.

    `char` occurs in none of `strings`. A control text that two neighbouring strings would form
    together is broken too: where a string ends like the beginning of one, or begins like the
    end of one.
    """

    def __init__(self, controls: MarkerIndex, strings: Iterable[str]) -> None:
        self._controls = controls
        present: set[str] = set()
        for string in strings:
            present.update(string)
        candidates = map(chr, range(_FIRST_GUARD, _FIRST_GUARD + _NUM_GUARDS))
        char = next((char for char in candidates if char not in present), None)
        if char is None:
            raise InvalidRequest("messages", "uses every character of a private-use plane")
        self.char = char

    def protect(self, text: str) -> str:
        """`text` with the guard inside every control text and in its treacherous edges."""
        folded = fold_case(text)
        cuts = {begin + 1 for begin in self._controls.starts(folded)}
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        cuts.update(self._edges(folded, 0, len(text)), self._edges(folded, first, last))  # trimmed
        if not cuts:
            return text
        bounds = [0, *sorted(cuts), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(bounds)]
        return self.char.join(pieces)

    def _edges(self, text: str, first: int, last: int) -> Iterator[int]:
        """Where to break `text[first:last]` against what may come to stand beside it."""
        for length in range(1, min(last - first, self._controls.max_length - 1) + 1):
            if self._controls.has_beginning(text[last - length : last]):
                yield last - length + 1
            if self._controls.has_ending(text[first : first + length]):
                yield first + 1


def fold_case(text: str) -> str:
    """`text` with one form for all cases of a letter, of the same length."""
    if text.isascii():
        return text.lower()
    return "".join(map(_fold_character, text))


def _fold_character(char: str) -> str:
    folded = char.upper().lower()
    return folded if len(folded) == 1 else char


def _is_proper_prefix(text: str, ordered: Sequence[str]) -> bool:
    # Whatever begins with `text` and is longer stands directly after it in the order.
    index = bisect_right(ordered, text)
    return index < len(ordered) and ordered[index].startswith(text)


def _refused(text: str, begin: int, marker: AddedToken, guard: str) -> bool:
    end = begin + len(marker.text)
    if guard and marker.is_control and text.startswith(guard, end):
        return True
    if not marker.single_word:
        return False
    before, after = text[begin - 1 : begin], text[end : end + 1]
    return before.isalnum() or before == "_" or after.isalnum() or after == "_"
