"""Stop strings: where a text ends, found before a piece of the stop string is sent.

Owns: the rules for the `stop` field, and the text that is held back while a match is possible.
May not know: tokens, requests, who sends the text.
Read next: nothing; `generation` puts a `StopStrings` behind a `Detokenizer`.

The match that ends first wins; of those that end at the same character, the longest. The text
held back is always the longest suffix that some stop string begins with, so nothing waits
without need, and nothing that was held is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.errors import InvalidRequest

MAX_STOPS = 4
MAX_STOP_CHARS = 1000


def parse_stop(value: object) -> tuple[str, ...]:
    """The `stop` field of a request: null, one string, or a list of strings.

    Null and the empty list mean no stop string. Raises InvalidRequest for an empty string, for
    anything that is not a string, and above the limits.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise InvalidRequest("stop", "must be a string or a list of strings")
    if len(value) > MAX_STOPS:
        raise InvalidRequest("stop", f"at most {MAX_STOPS} strings, not {len(value)}")
    for index, stop in enumerate(value):
        if not isinstance(stop, str):
            raise InvalidRequest("stop", f"entry {index} must be a string")
        if not stop:
            raise InvalidRequest("stop", f"entry {index} is empty; it would match everywhere")
        if len(stop) > MAX_STOP_CHARS:
            raise InvalidRequest("stop", f"entry {index} is over {MAX_STOP_CHARS} characters")
    return tuple(value)


class StopStrings:
    """Watches one text. With `include` (include_stop_str_in_output, of the server's requests) the
    stop string itself is part of the text.

    Linear in the text: each stop string is followed by the automaton of Knuth, Morris and Pratt
    (SIAM J. Computing 6, 1977).
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = parse_stop(list(stops))
        self._include = include
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched_lengths = [0] * len(self._stops)
        self._held = ""
        self._match: str | None = None

    def add(self, text: str) -> tuple[str, str | None]:
        """(what may be sent now, the stop string that was found or None).

        Once a stop string is found the text has ended: what comes after it is dropped.
        """
        if self._match is not None:
            return "", self._match
        if not self._stops:
            return text, None
        text = self._held + text
        for index in range(len(self._held), len(text)):
            stop = self._advance(text[index])
            if stop is not None:
                self._held, self._match = "", stop
                end = index + 1
                return text[: end if self._include else end - len(stop)], stop
        num_sure = len(text) - max(self._matched_lengths)
        self._held = text[num_sure:]
        return text[:num_sure], None

    def finish(self) -> str:
        """The text that was held back, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Follow one more character; the longest stop string that ends with it, if any."""
        found: str | None = None
        for which, stop in enumerate(self._stops):
            length, borders = self._matched_lengths[which], self._borders[which]
            while length and stop[length] != char:
                length = borders[length - 1]
            if stop[length] == char:
                length += 1
            self._matched_lengths[which] = length
            if length == len(stop) and (found is None or length > len(found)):
                found = stop
        return found


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`: how long its longest proper suffix is that begins `stop`."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
