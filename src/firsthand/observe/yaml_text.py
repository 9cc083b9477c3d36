"""Plain values as YAML: tables, lists, texts, numbers.

Owns: this small part of the language, in which every text is quoted as JSON has it.
May not know: what is written.
Read next: `exports.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def as_yaml(value: Mapping[str, Any], head: str = "") -> str:
    """A whole file; `head` is a comment of one or more lines."""
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return comment + "\n".join(_table(value)) + "\n"


def _table(value: Mapping[str, Any]) -> Iterator[str]:
    for key, item in value.items():
        yield from _entry(f"{key}:", item)


def _entry(head: str, item: Any) -> Iterator[str]:
    """`head` is `key:` or `-`."""
    if not isinstance(item, Mapping | list | tuple) or not item:
        yield f"{head} {json.dumps(item, ensure_ascii=False)}"
        return
    inner = list(_table(item)) if isinstance(item, Mapping) else list(_list(item))
    if head == "-":
        yield f"- {inner[0]}"
        inner = inner[1:]
    else:
        yield head
    yield from (f"  {line}" for line in inner)


def _list(value: Sequence[Any]) -> Iterator[str]:
    for item in value:
        yield from _entry("-", item)
