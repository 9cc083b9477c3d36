"""Where in a body a fault lies, as the caller would write it: `messages[0].content[1].text`.

Owns: the form of such a path, and how it is found: in pydantic's locations, and in JSON that was
refused before it was a value.
May not know: what a fault says, what a field means.
Read next: `body.py`, `errors.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

Step = int | str
MAX_LOCATED_BYTES = 1 << 20
NUMBER_DIGITS = 400  # that no value has


def written(steps: Iterable[Step]) -> str:
    """The path; empty for the body itself."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def steps_in(value: object, location: Sequence[Step], *, missing: bool) -> list[Step]:
    """A location without the names that pydantic gives the branches of a choice: those are no keys
    of what the caller sent. `missing`: the last step is none either, and should be one."""
    found: list[Step] = []
    here = value
    for at, step in enumerate(location):
        if isinstance(here, str):  # whose characters are no fields
            break
        try:
            here = here[step]  # type: ignore[index]
        except (TypeError, KeyError, IndexError):
            absent = missing and at == len(location) - 1 and isinstance(here, dict)
            if not absent:
                continue
        found.append(step)
    return found


def steps_to_fault(content: bytes) -> list[Step]:
    """To what strict JSON refuses: a key that repeats, a number that is none, out of range or too
    long, half a character. Of content that is no JSON at all there are none, and of long content
    none is looked for: it would cost more than it is worth."""
    if len(content) > MAX_LOCATED_BYTES:
        return []
    try:
        tree = json.loads(
            content,
            object_pairs_hook=_Pairs,
            parse_constant=_Wrong,
            parse_float=_float,
            parse_int=_whole,
        )
    except (ValueError, RecursionError):
        return []
    waiting: list[tuple[list[Step], object]] = [([], tree)]
    while waiting:
        steps, here = waiting.pop()
        if isinstance(here, _Wrong | str):
            return steps
        items: Iterable[tuple[Step, object]] = ()
        if isinstance(here, _Pairs):
            twice = here.repeated()
            if twice is not None:
                return [*steps, twice]
            if any(_is_half(key) for key, _ in here.pairs):  # which cannot be written
                return steps
            items = here.pairs
        elif isinstance(here, list):
            items = enumerate(here)
        waiting += [([*steps, step], inner) for step, inner in items if _may_hold(inner)]
    return []


class _Wrong:
    def __init__(self, text: str) -> None:
        self.text = text


class _Pairs:
    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs

    def repeated(self) -> str | None:
        seen: set[str] = set()
        for key, _ in self.pairs:
            if key in seen and not _is_half(key):
                return key
            seen.add(key)
        return None


def _may_hold(value: object) -> bool:
    return _is_half(value) if isinstance(value, str) else isinstance(value, _Wrong | _Pairs | list)


def _is_half(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= mark <= "\udfff" for mark in text)


def _whole(text: str) -> object:
    return None if len(text.lstrip("-")) < NUMBER_DIGITS else _Wrong(text)


def _float(text: str) -> object:
    return None if math.isfinite(float(text)) else _Wrong(text)
