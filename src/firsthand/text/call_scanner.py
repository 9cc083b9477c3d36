"""One call's JSON object, scanned as it comes.

Owns: where in it the name and the arguments are; when it has ended.
May not know: formats of calls, what comes before or after.
Read next: `tool_calls.py`.

A scanner and no parser: it follows strings and brackets, so that arguments can be given out while
they are written. What they hold is the model's; it is handed on as it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

SPACE = " \t\r\n"
ARGUMENT_KEYS = ("arguments", "parameters")


class Taken(NamedTuple):
    """Of a piece: how much of it belongs to the call, the name if it became known, and more of
    the arguments."""

    num_chars: int
    name: str | None
    arguments: str


class _At(Enum):
    START = auto()
    KEY = auto()  # a key, a comma or the end
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()  # before it
    IN_VALUE = auto()
    END = auto()


class CallScanner:
    """`names` are those that a call may have. `raw` is everything so far, `lead` before it.
    `name` is None until a name of `names` was read; ended without one, it is no call."""

    def __init__(self, names: Collection[str], arguments_key: str, lead: str = "") -> None:
        self._names = names
        self._keys = dict.fromkeys((arguments_key, *ARGUMENT_KEYS))
        self.raw = lead
        self.name: str | None = None
        self._at = _At.START
        self._key = ""
        self._value = ""  # of the value that is read now
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._arguments = ""  # not given out yet
        self._num_arguments = 0

    @property
    def ended(self) -> bool:
        return self._at is _At.END

    def add(self, text: str) -> Taken:
        known = self.name
        count = 0
        for char in text:
            if self._at is _At.END:
                break
            count += 1
            self._step(char)
        self.raw += text[:count]
        if self.name is None:
            return Taken(count, None, "")
        arguments, self._arguments = self._arguments, ""
        self._num_arguments += len(arguments)
        if self.ended and not self._num_arguments:
            arguments, self._num_arguments = "{}", 2  # a call without any
        return Taken(count, None if known else self.name, arguments)

    def _step(self, char: str) -> None:
        if char in SPACE and self._at not in (_At.IN_KEY, _At.IN_VALUE):
            return
        match self._at:
            case _At.START:
                self._at = _At.KEY if char == "{" else _At.END
            case _At.KEY:
                self._begin_key(char)
            case _At.IN_KEY:
                self._in_key(char)
            case _At.COLON:
                self._at = _At.VALUE if char == ":" else _At.END
            case _At.VALUE:
                self._value, self._depth = "", 0
                self._in_string = self._escaped = False
                self._at = _At.IN_VALUE
                self._in_value(char)
            case _At.IN_VALUE:
                self._in_value(char)
            case _At.END:
                pass

    def _begin_key(self, char: str) -> None:
        if char == '"':
            self._at, self._key, self._escaped = _At.IN_KEY, "", False
        elif char != ",":
            self._at = _At.END

    def _in_key(self, char: str) -> None:
        if char == '"' and not self._escaped:
            self._at = _At.COLON
            return
        self._escaped = char == "\\" and not self._escaped
        self._key += char

    def _in_value(self, char: str) -> None:
        ends = self._depth == 0 and not self._in_string
        if ends and char in ",}" and self._value:
            self._end_value()
            self._at = _At.KEY if char == "," else _At.END
            return
        self._value += char
        if self._in_string:
            if char == '"' and not self._escaped:
                self._in_string = False
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        if self._depth < 0:
            self._at = _At.END
        elif self._is_arguments and self._value[0] == "{" and not self._is_padding(char):
            self._arguments += char

    def _is_padding(self, char: str) -> bool:
        """White space after the arguments' last bracket."""
        return char in SPACE and self._depth == 0

    @property
    def _is_arguments(self) -> bool:
        return self._key in self._keys

    def _end_value(self) -> None:
        value = self._value.strip()
        if self._key == "name" and self.name is None:
            name = _text_of(value)
            if name in self._names:
                self.name = name
        elif self._is_arguments and not value.startswith("{"):
            text = _text_of(value)  # some models write the object as a text
            self._arguments += "{}" if value == "null" else value if text is None else text


def _text_of(value: str) -> str | None:
    try:
        text = json.loads(value)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
