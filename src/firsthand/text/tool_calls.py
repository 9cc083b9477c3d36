"""Calls of tools, read out of a model's text as it comes.

Owns: what a call looks like in each format, and which part of a text is one.
May not know: requests, schemas, ids of calls, how a stream is sent.
Read next: `call_scanner.py` (one call's JSON), `answers.py`; `tools.py` forces a call.

    hermes   <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number, text around them
             (Hermes 2 and 3, Qwen 2.5 and 3)
    qwen3_coder  <tool_call> around tags, one for each parameter: see `xml_calls.py` (Qwen3-Coder)
    llama3   {"name": …, "parameters": {…}} as the whole answer, several with "; " between them
             (Llama 3.1 to 3.3), maybe after <|python_tag|>

Arguments are given out as they come, character by character as the model wrote them. What looks
like a call and names no tool of the request, or breaks off before its name, stays text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from firsthand.text.call_scanner import CallScanner
from firsthand.text.reasoning import partial
from firsthand.text.xml_calls import FUNCTION, PARAMETER, Schemas, XmlCallScanner
from firsthand.values import dataclass

PYTHON_TAG = "<|python_tag|>"
SURE_CHARS = 5
_NAMED = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)')
BEGIN_CALL, END_CALL = "<tool_call>", "</tool_call>"


class ToolFormat(StrEnum):
    HERMES = "hermes"
    LLAMA3 = "llama3"
    QWEN3_CODER = "qwen3_coder"

    @property
    def is_tagged(self) -> bool:
        """Whether a call stands between BEGIN_CALL and END_CALL."""
        return self is not ToolFormat.LLAMA3

    @property
    def markers(self) -> tuple[str, ...]:
        """What must reach the parser, also where the vocabulary has it as a control token."""
        return (BEGIN_CALL, END_CALL) if self.is_tagged else (PYTHON_TAG,)


# The names that servers give these formats.
FORMAT_NAMES = {
    "hermes": ToolFormat.HERMES,
    "qwen": ToolFormat.HERMES,
    "qwen25": ToolFormat.HERMES,
    "qwen3": ToolFormat.HERMES,
    "qwen3_coder": ToolFormat.QWEN3_CODER,
    "qwen3_xml": ToolFormat.QWEN3_CODER,
    "llama3": ToolFormat.LLAMA3,
    "llama3_json": ToolFormat.LLAMA3,
}


def format_of(template: str | None) -> ToolFormat | None:
    """The format that a chat template teaches its model; None: it knows no tools that we do."""
    if template is None or "tools" not in template:
        return None
    if BEGIN_CALL in template:
        if FUNCTION not in template:
            return ToolFormat.HERMES
        return ToolFormat.QWEN3_CODER if PARAMETER in template else None
    if '"parameters"' in template and ("ipython" in template or PYTHON_TAG in template):
        return ToolFormat.LLAMA3
    return None


class CallDelta(NamedTuple):
    """A piece of call `number` (0, 1, …): its name, in its first piece only; more of its
    arguments."""

    number: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Found:
    """What a piece of text brought: text for the reader, pieces of calls."""

    content: str = ""
    calls: tuple[CallDelta, ...] = ()


class CallReader:
    """`add` each piece, then `finish`; both give what is new. `names` are the request's tools, and
    `schemas` those of their arguments, which a form without types needs."""

    def __init__(self, format: ToolFormat, names: Collection[str], schemas: Schemas) -> None:
        self._format = format
        self._schemas = schemas
        self._names = names
        self._held = ""
        self._space = ""  # at the end of the text so far; dropped if a call follows
        self._call: CallScanner | XmlCallScanner | None = None
        self._between = False  # a call has ended, what belongs to its end has not been seen
        self._follows_call = False  # no text has come since a call
        self._has_content = False
        self._is_text = False  # of llama3: the answer is no call, or no longer
        self.num_calls = 0
        self.broke_off = False  # the last of them has no end

    def add(self, text: str) -> Found:
        self._held += text
        found = Found()
        while self._advance(found):
            pass
        return found

    def finish(self) -> Found:
        """What was held back, when no more will come. A call that broke off stays as it is; of one
        that has no name yet, nothing is given out: its beginning is no text for a reader."""
        found = Found()
        held, self._held = self._held, ""
        if self._call is not None:
            self.broke_off = self._call.name is not None
            if not self.broke_off and not self._begins_call(self._call.raw):
                self._text(found, self._call.raw)
            self._call = None
        elif self._is_marker(held) or (
            self._between and (self._format.is_tagged or held.strip() in ("", ";", ","))
        ):
            held = ""
        self._text(found, held)
        if not self.num_calls:
            found.content += self._space
        return found

    def _is_marker(self, held: str) -> bool:
        """Whether it is so much of a call's first marker that it is nothing else."""
        return len(held) >= SURE_CHARS and self._format.markers[0].startswith(held.lstrip())

    def _begins_call(self, raw: str) -> bool:
        """Whether a reader has no use for it. Without a marker, any object may begin alike."""
        if self._format.is_tagged or raw.lstrip().startswith(PYTHON_TAG):
            return True
        named = _NAMED.match(raw)
        return named is not None and any(name.startswith(named[1]) for name in self._names)

    def _advance(self, found: Found) -> bool:
        """One step; False: more text is needed."""
        if self._call is not None:
            return self._in_call(found, self._call)
        if self._format.is_tagged:
            return self._after_tagged() if self._between else self._find_tagged(found)
        return self._find_llama3(found)

    def _in_call(self, found: Found, call: CallScanner | XmlCallScanner) -> bool:
        taken = call.add(self._held)
        self._held = self._held[taken.num_chars :]
        if taken.name is not None:
            self.num_calls += 1
        if call.name is not None and (taken.name is not None or taken.arguments):
            delta = CallDelta(self.num_calls - 1, taken.name, taken.arguments)
            found.calls += (delta,)
        if not call.ended:
            return False
        self._call = None
        if call.name is None:  # it is no call
            self._is_text = True
            self._text(found, call.raw)
        else:
            self._space, self._between, self._follows_call = "", True, True
        return bool(self._held)

    def _find_tagged(self, found: Found) -> bool:
        begin = self._held.find(BEGIN_CALL)
        if begin < 0:
            num_sure = len(self._held) - partial(self._held, BEGIN_CALL)
            text, self._held = self._held[:num_sure], self._held[num_sure:]
            self._text(found, text)
            return False
        self._text(found, self._held[:begin])
        self._held = self._held[begin + len(BEGIN_CALL) :]
        if self._format is ToolFormat.QWEN3_CODER:
            self._call = XmlCallScanner(self._names, self._schemas, lead=BEGIN_CALL)
        else:
            self._call = CallScanner(self._names, "arguments", lead=BEGIN_CALL)
        return True

    def _after_tagged(self) -> bool:
        """Between a call's own end and its end marker nothing counts."""
        end = self._held.find(END_CALL)
        if end < 0:
            self._held = self._held[len(self._held) - partial(self._held, END_CALL) :]
            return False
        self._held = self._held[end + len(END_CALL) :]
        self._between = False
        return bool(self._held)

    def _find_llama3(self, found: Found) -> bool:
        if self._is_text:
            text, self._held = self._held, ""
            self._text(found, text)
            return False
        start = self._held.lstrip()
        if self._between and start.startswith((";", ",")):
            start = start[1:].lstrip()
            if not start:
                return False
        if start.startswith(PYTHON_TAG):
            start = start[len(PYTHON_TAG) :].lstrip()
        if not start or PYTHON_TAG.startswith(start):
            return False
        if start.startswith("{"):
            lead = self._held[: len(self._held) - len(start)]
            self._held, self._between = start, False
            self._call = CallScanner(self._names, "parameters", lead=lead)
        else:
            self._is_text = True
        return True

    def _text(self, found: Found, text: str) -> None:
        """Text for the reader. White space waits until it is known what follows; next to a call it
        is none of the text."""
        if self._follows_call:
            text = text.lstrip()
            if not text:
                return
            self._follows_call = False
            text = "\n" + text if self._has_content else text
        text = self._space + text
        sure = text.rstrip()
        found.content += sure
        self._has_content |= bool(sure)
        self._space = text[len(sure) :]
