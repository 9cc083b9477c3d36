"""JSON in one form: the same value is the same bytes, so that its hash means the value.

Owns: the order of keys, how a number and a text are written. Source: RFC 8785.
May not know: what is written.
Read next: `weights/manifest.py`, whose bytes these are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def canonical(value: Any) -> bytes:
    """Keys sorted by their UTF-16 units, no space, numbers as ECMAScript writes them. Raises
    ValueError for what JSON has no form for."""
    return _text(value).encode("utf-8")


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_text(key)}:{_text(one)}" for key, one in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    raise ValueError(f"JSON has no form for {type(value).__name__}")


def _number(value: float) -> str:
    """The shortest digits that give the number back, with an exponent from 21 and below −6."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no form for {value}")
    if value == 0:
        return "0"
    sign, all_digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    whole = "".join(map(str, all_digits))
    digits = whole.rstrip("0")
    point = exponent + len(whole)  # digits before it
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        fraction = f".{digits[1:]}" if digits[1:] else ""
        text = f"{digits[0]}{fraction}e{point - 1:+d}"
    return "-" * sign + text
