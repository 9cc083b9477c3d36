"""Which regular expressions of a tokenizer.json we let run.

Owns: a reader of patterns, and the rules that bound the work at one place of the text.
May not know: who uses a pattern, files, the library that runs it.
Read next: `pipeline_rules.py`, the only user.

A backtracking engine takes exponential time for `(a+)+b`, and the library gives no clock. So a
pattern is refused unless, at each place of the text, the work is linear in what is matched there:
- a repeated group holds no choice and no repetition: `(?:ab)+`, not `(a|aa)+`;
- one alternative has at most two unbounded repetitions, and behind the first one nothing that
  must match: `\\s*[\\r\\n]+`, not `a*a*b`; a look ahead (`\\s+(?!\\S)`) only behind a single one;
- bounded repetitions go to 16, and the ways through the pattern (its choices multiplied) to 128;
- no backreference, no subexpression call, no atomic or conditional group, no repetition inside a
  look ahead or behind.
The patterns of GPT-2, Llama 3, Qwen, DeepSeek, Tekken and o200k pass. What is left is a text on
which no alternative matches for long: then the work is quadratic in that stretch.
"""

from __future__ import annotations

import re

from firsthand.values import dataclass

MAX_PATTERN_CHARS = 4000
MAX_REPEATS = 16
MAX_WAYS = 128
MAX_UNBOUNDED = 2
MAX_GROUP_DEPTH = 8

_INTERVAL = re.compile(r"\{(?:(\d{1,9})(?:(,)(\d{1,9})?)?|,(\d{1,9}))\}")
_GROUP = re.compile(r"\(\?(?:[ims]*(?:-[ims]+)?:|(<?[=!]))")
_SAFE_ESCAPES = frozenset("AbBdDfhHnpPrRsStuvwWxzZ")  # of the letters and digits
_ASSERTIONS = frozenset("AbBzZ")


@dataclass(slots=True)
class _Shape:
    """What a part costs: the ways through it, its unbounded repetitions; `repeats`: has any."""

    ways: int = 1
    unbounded: int = 0
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class _Quantifier:
    least: int = 1
    most: int | None = 1  # None: unbounded


class _Refused(Exception):
    """The text is the reason."""


def pattern_refusal(regex: str) -> str | None:
    """Why this pattern may not run; None when it may."""
    if len(regex) > MAX_PATTERN_CHARS:
        return f"is over {MAX_PATTERN_CHARS} characters"
    reader = _Reader(regex)
    try:
        reader.alternatives(0)
        if reader.position < len(regex):
            return "has a ) too many"
    except _Refused as reason:
        return str(reason)
    return None


class _Reader:
    """One pass over a pattern, from the left."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self.position = 0

    def alternatives(self, depth: int) -> _Shape:
        """Up to the end or the `)` of this group."""
        whole = _Shape(ways=0)
        while True:
            shape = self._sequence(depth)
            whole.ways += shape.ways
            whole.unbounded = max(whole.unbounded, shape.unbounded)
            whole.repeats |= shape.repeats
            if whole.ways > MAX_WAYS:
                raise _Refused(f"has over {MAX_WAYS} ways to match")
            if self._next() != "|":
                return whole
            self.position += 1

    def _sequence(self, depth: int) -> _Shape:
        shape = _Shape()
        while self._next() not in ("", "|", ")"):
            is_assertion, part = self._atom(depth)
            quantifier = self._quantifier()
            if is_assertion:
                _add_assertion(shape, part, quantifier)
            else:
                _add(shape, part, quantifier)
        return shape

    def _next(self) -> str:
        return self._regex[self.position : self.position + 1]

    def _atom(self, depth: int) -> tuple[bool, _Shape]:
        """Whether it matches no character itself, and its shape."""
        char = self._next()
        if char == "(":
            return self._group(depth)
        if char == "\\":
            return self._escape(), _Shape()
        if char in "*+?":
            raise _Refused("repeats a repetition, or nothing")
        if char == "[":
            self.position = self._class_end()
        else:
            self.position += 1
        return char in "^$", _Shape()

    def _group(self, depth: int) -> tuple[bool, _Shape]:
        if depth == MAX_GROUP_DEPTH:
            raise _Refused(f"has groups over {MAX_GROUP_DEPTH} deep")
        is_look = False
        opening = _GROUP.match(self._regex, self.position)
        if opening is not None:
            is_look = opening[1] is not None
            self.position = opening.end()
        elif self._regex[self.position + 1 : self.position + 2] in ("?", "*"):
            raise _Refused("has a group of a kind that is not known")
        else:
            self.position += 1
        shape = self.alternatives(depth + 1)
        if self._next() != ")":
            raise _Refused("has a ( too many")
        self.position += 1
        if is_look and shape.repeats:
            raise _Refused("repeats inside a look ahead or behind")
        return is_look, shape

    def _escape(self) -> bool:
        letter = self._regex[self.position + 1 : self.position + 2]
        if not letter or (letter.isalnum() and letter not in _SAFE_ESCAPES):
            raise _Refused(f"has the escape \\{letter}")
        self.position += 2
        if letter in "pPxu" and self._next() == "{":
            self.position = self._regex.find("}", self.position) + 1 or len(self._regex)
        return letter in _ASSERTIONS

    def _class_end(self) -> int:
        depth, position = 0, self.position
        while position < len(self._regex):
            char = self._regex[position]
            if char == "\\":
                position += 1
            elif char == "[":
                depth += 1
                if self._regex.startswith(("]", "^]"), position + 1):
                    raise _Refused("has a class that begins with ]")
            elif char == "]":
                depth -= 1
                if depth == 0:
                    return position + 1
            position += 1
        raise _Refused("has a class without an end")

    def _quantifier(self) -> _Quantifier:
        char = self._next()
        interval = _INTERVAL.match(self._regex, self.position)
        if interval is not None:
            found = _interval(interval)
            self.position = interval.end()
            self.position += self._next() == "?"  # lazy; a + would repeat the repetition
        elif char and char in "*+?":
            found = _Quantifier(int(char == "+"), 1 if char == "?" else None)
            self.position += 1
            self.position += self._next() in ("?", "+")  # lazy, or without backtracking
        else:
            return _Quantifier()
        if _INTERVAL.match(self._regex, self.position):
            raise _Refused("repeats a repetition")
        return found


def _interval(match: re.Match[str]) -> _Quantifier:
    least, comma, most, alone = match.groups()
    low = int(least or 0)
    high = int(alone or most or low)
    if max(low, high) > MAX_REPEATS:
        raise _Refused(f"repeats over {MAX_REPEATS} times")
    return _Quantifier(low, None if comma and most is None else high)


def _add(shape: _Shape, part: _Shape, quantifier: _Quantifier) -> None:
    """`part`, repeated by the quantifier, behind what `shape` has so far."""
    least, most = quantifier.least, quantifier.most
    if most != 1 and (part.ways > 1 or part.repeats):
        raise _Refused("repeats a group that holds a choice or a repetition")
    if shape.unbounded and most is not None and (least, most) != (0, 1):
        raise _Refused("has something that must match behind an unbounded repetition")
    shape.repeats |= part.repeats or most != 1
    if most is None:
        shape.unbounded += 1
    else:
        shape.unbounded += part.unbounded
        shape.ways *= part.ways + most - least if most == 1 else max(1, most - least + 1)
    if shape.unbounded > MAX_UNBOUNDED:
        raise _Refused(f"has over {MAX_UNBOUNDED} unbounded repetitions in a row")
    if shape.ways > MAX_WAYS:
        raise _Refused(f"has over {MAX_WAYS} ways to match")


def _add_assertion(shape: _Shape, part: _Shape, quantifier: _Quantifier) -> None:
    if quantifier != _Quantifier():
        raise _Refused("repeats something that matches no character")
    if shape.unbounded > 1:
        raise _Refused("has a condition behind two unbounded repetitions")
    shape.ways *= part.ways
