"""How much room a text takes on a terminal.

Owns: the width of a text in columns, padding and cutting to a width.
May not know: who prints.
Read next: `cli/output.py`, whose tables are made with it.
"""

from __future__ import annotations

import unicodedata


def columns(text: str) -> int:
    """Wide characters, such as Chinese ones, take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def padded(text: str, width: int, *, to_right: bool = False) -> str:
    space = " " * max(0, width - columns(text))
    return space + text if to_right else text + space


def cut(text: str, width: int) -> str:
    """With … at the end where something is missing."""
    if columns(text) <= width:
        return text
    while columns(text) > width - 1:
        text = text[:-1]
    return text + "…"
