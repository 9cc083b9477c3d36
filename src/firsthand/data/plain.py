"""Values as JSON: what is none is refused by name, and equal values are equal bytes.

Owns: which values of Python have a form in an output.
May not know: records, sinks.
Read next: `stages.py` and `forms.py`, which write so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

WRITTEN = (date, time, timedelta, Decimal, UUID, PurePath)


class NotPlain(Exception):
    """`field`: the first that has no form."""

    def __init__(self, field: str | None, detail: str) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail


def plain_json(value: Any) -> bytes:
    """Raises NotPlain: a number that is none, half a character, what holds itself, any object."""
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, default=_written, separators=(",", ":")
        )
        return text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, UnicodeError):
            why = "holds half a character"
        raise NotPlain(None, f"has no form in JSON: {why}"[:200]) from None


def check_plain(values: Mapping[str, Any]) -> None:
    """Raises NotPlain."""
    try:
        plain_json(values)
    except NotPlain:
        for name, value in values.items():
            try:
                plain_json({name: value})
            except NotPlain as found:
                raise NotPlain(name.encode("ascii", "replace").decode(), found.detail) from None
        raise


def _written(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, WRITTEN):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")
