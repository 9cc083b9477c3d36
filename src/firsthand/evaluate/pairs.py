"""Questions with references: read from a file, answered by the model where no answer is given.

Owns: the file's form, JSON Lines with `reference` and either `prompt` or `answer`.
May not know: how answers are scored.
Read next: `text_scores.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firsthand.errors import InvalidRequest
from firsthand.files import read_text
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """`answer` None: it is the model's to give."""

    reference: str
    prompt: str | None = None
    answer: str | None = None


def read_pairs(path: Path) -> list[Pair]:
    """Raises InvalidRequest, which names the line."""
    pairs = []
    for number, line in enumerate(read_text(path, "pairs").splitlines(), 1):
        if not line.strip():
            continue
        try:
            pairs.append(_pair(json.loads(line)))
        except ValueError as error:
            raise InvalidRequest("pairs", f"{path}, line {number}: {error}") from None
    if not pairs:
        raise InvalidRequest("pairs", f"{path} holds none")
    return pairs


def _pair(entry: Any) -> Pair:
    if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
        raise ValueError("must be an object of texts")
    keys = entry.keys()
    if keys != {"reference", "prompt"} and keys != {"reference", "answer"}:
        raise ValueError("must have `reference`, and `prompt` or `answer`")
    return Pair(**entry)


def answers(pairs: list[Pair], generate: Callable[[str], str]) -> list[str]:
    """Each pair's answer: its own, or the model's to its prompt."""
    return [generate(pair.prompt or "") if pair.answer is None else pair.answer for pair in pairs]
