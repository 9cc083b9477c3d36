"""The questions that many values are asked before they are used.

Owns: what counts as an integer, a number, one of a few words, or a slip for one; the wording of the
refusal, also of a value whose size nobody has checked.
May not know: any other module but `errors`.
Read next: `request.py`, which asks most of them.

A bool is never a number here, although Python counts it as one: `top_k=True` is a slip.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeGuard

from firsthand.errors import InvalidRequest

NEAR = 0.72  # of difflib's ratio


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one that was probably meant: with two letters swapped, or with most of its letters."""
    names = list(known)
    swapped = [name for name in names if sorted(name) == sorted(word)]
    return next(iter(swapped or get_close_matches(word, names, n=1, cutoff=NEAR)), None)


def meant(word: str, known: Iterable[str]) -> str:
    """The end of a refusal: what was probably meant, as it is written in files."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {near.replace('_', '-')}?"


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def check_integer(field: str, value: object, low: int, high: int | None = None) -> None:
    """Raise InvalidRequest unless `value` is an integer, low … high. `high` None: no limit."""
    if not is_integer(value):
        raise InvalidRequest(field, f"must be an integer, not {shown(value)}")
    if value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise InvalidRequest(field, f"must be at least {low}{most}, not {shown(value)}")


def check_number(
    field: str, value: object, low: float, high: float, *, low_open: bool = False
) -> None:
    """Raise InvalidRequest unless `value` is a finite number, low … high, or above `low`."""
    if not isinstance(value, float) and not is_integer(value):
        raise InvalidRequest(field, f"must be a number, not {shown(value)}")
    # Compared as it is: NaN is in no range, and a huge integer must not become a float first.
    if not low <= value <= high or (low_open and value == low):
        opening = "above" if low_open else "at least"
        message = f"must be {opening} {low:g} and at most {high:g}, not {shown(value)}"
        raise InvalidRequest(field, message)


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Raise InvalidRequest unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(field, f"must be one of {', '.join(choices)}, not {shown(value)}")


def shown(value: object) -> str:
    """A foreign value as an error may show it: never long, whatever its size or depth."""
    limits = reprlib.Repr()
    limits.maxlevel = 2
    limits.maxstring = limits.maxother = 80
    try:
        return limits.repr(value)[:200]
    except ValueError:  # an integer of too many digits
        return f"a huge {type(value).__name__}"
