"""A model's reasoning, told apart from its answer as the text comes.

Owns: where reasoning begins and ends in a text.
May not know: tokens, requests, what the answer is.
Read next: `answers.py`.

Reasoning stands at the beginning, between `<think>` and `</think>`; a chat template may have
written the first of them already. White space next to a marker belongs to neither part.
"""

from __future__ import annotations

from enum import Enum

from firsthand.text.grammars import END_THINK, THINK, Reasoning


class _Where(Enum):
    START = 0  # it may still begin with reasoning
    THOUGHT = 1
    ANSWER = 2


class ReasoningSplitter:
    """`add` each piece, then `finish`; both give (reasoning, answer), new text only."""

    def __init__(self, reasoning: Reasoning) -> None:
        states = {"none": _Where.ANSWER, "may": _Where.START, "open": _Where.THOUGHT}
        self._where = states[reasoning]
        self._held = ""
        self._at_edge = reasoning == "open"  # white space now is next to a marker
        self.num_chars = 0  # of the text, up to the end of the reasoning; markers included

    def add(self, text: str) -> tuple[str, str]:
        if self._where is _Where.ANSWER and not self._held and not self._at_edge:
            return "", text
        self._held += text
        if self._where is _Where.START:
            self._begin()
        thought = self._thought() if self._where is _Where.THOUGHT else ""
        return thought, self._answer() if self._where is _Where.ANSWER else ""

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more will come."""
        held, self._held = self._held, ""
        if self._where is _Where.THOUGHT:
            self.num_chars += len(held)
            return self._without_edge(held), ""
        return "", "" if self._at_edge else held

    def _begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(THINK):
            self.num_chars += len(self._held) - len(start) + len(THINK)
            self._held = start[len(THINK) :]
            self._where, self._at_edge = _Where.THOUGHT, True
        elif not THINK.startswith(start):
            self._where = _Where.ANSWER

    def _thought(self) -> str:
        held, end = self._held, self._held.find(END_THINK)
        if end >= 0:
            self._where = _Where.ANSWER
            thought = self._without_edge(held[:end].rstrip())
            self._at_edge = True
            self.num_chars += end + len(END_THINK)
            self._held = held[end + len(END_THINK) :]
            return thought
        num_sure = len(held[: len(held) - partial(held, END_THINK)].rstrip())
        self._held = held[num_sure:]
        self.num_chars += num_sure
        return self._without_edge(held[:num_sure])

    def _answer(self) -> str:
        held, self._held = self._held, ""
        return self._without_edge(held)

    def _without_edge(self, text: str) -> str:
        if self._at_edge:
            text = text.lstrip()
            self._at_edge = not text
        return text


def partial(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`, but not all of
    it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def reasoning_of(template: str | None, prompt: str | None) -> Reasoning:
    """What a model's chat template says of its reasoning, for a prompt that it rendered."""
    if template is None or END_THINK not in template:
        return "none"
    rendered = (prompt or "").rstrip()
    if rendered.endswith(THINK):
        return "open"
    return "none" if rendered.endswith(END_THINK) else "may"
