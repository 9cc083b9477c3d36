"""A model's text becomes an answer: reasoning, content, calls of tools.

Owns: the order of the two readers, and what one piece of an answer is.
May not know: tokens, requests, wire formats.
Read next: `reasoning.py`, `tool_calls.py`.

However a text is cut into pieces, the pieces of the answer joined are the same.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from firsthand.text.grammars import Reasoning
from firsthand.text.reasoning import ReasoningSplitter
from firsthand.text.tool_calls import CallDelta, CallReader, Found, ToolFormat
from firsthand.text.xml_calls import Schemas
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a text may hold. Without a `tool_format` a call is text. `tool_schemas` are those of the
    arguments, by name."""

    reasoning: Reasoning = "none"
    tool_format: ToolFormat | None = None
    tool_names: frozenset[str] = frozenset()
    tool_schemas: Schemas = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        return self.reasoning == "none" and self.tool_format is None


class Piece(NamedTuple):
    """What is new of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class Call(NamedTuple):
    name: str
    arguments: str  # JSON, as the model wrote it


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it. `num_reasoning_chars` of the text were reasoning, markers included.
    `ends_with_calls`: it has some, and the last one is whole."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]
    num_reasoning_chars: int
    ends_with_calls: bool


class AnswerReader:
    """`add` each piece of one text, then `finish`; `answer` is what came until now."""

    def __init__(self, form: AnswerForm) -> None:
        self._splitter = ReasoningSplitter(form.reasoning)
        self._calls = _reader(form)
        self._pieces: list[Piece] = []

    @property
    def ends_with_calls(self) -> bool:
        calls = self._calls
        return calls is not None and calls.num_calls > 0 and not calls.broke_off

    def add(self, text: str) -> Piece:
        thought, rest = self._splitter.add(text)
        return self._piece(thought, self._read(rest))

    def finish(self) -> Piece:
        """What was held back, when no more will come."""
        thought, rest = self._splitter.finish()
        first = self._read(rest)
        if self._calls is None:
            return self._piece(thought, first)
        last = self._calls.finish()
        return self._piece(thought, Found(first.content + last.content, first.calls + last.calls))

    @property
    def answer(self) -> Answer:
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for delta in (delta for piece in self._pieces for delta in piece.calls):
            names.setdefault(delta.number, delta.name or "")
            arguments.setdefault(delta.number, []).append(delta.arguments)
        return Answer(
            reasoning="".join(piece.reasoning for piece in self._pieces),
            content="".join(piece.content for piece in self._pieces),
            calls=tuple(Call(name, "".join(arguments[i])) for i, name in names.items()),
            num_reasoning_chars=self._splitter.num_chars,
            ends_with_calls=self.ends_with_calls,
        )

    def _read(self, text: str) -> Found:
        if self._calls is None or not text:
            return Found(text)
        return self._calls.add(text)

    def _piece(self, thought: str, found: Found) -> Piece:
        piece = Piece(thought, found.content, found.calls)
        if piece:
            self._pieces.append(piece)
        return piece


def read_answer(text: str, form: AnswerForm) -> Answer:
    """Of a whole text."""
    reader = AnswerReader(form)
    reader.add(text)
    reader.finish()
    return reader.answer


def _reader(form: AnswerForm) -> CallReader | None:
    if form.tool_format is None:
        return None
    return CallReader(form.tool_format, form.tool_names, form.tool_schemas)
