"""Questions with references: read from a file, answered by the model where no answer is given.

Owns: the file's form, JSON Lines with `reference` and either `prompt` or `answer`; or, where two
models are compared, `prompt` and perhaps `reference`.
May not know: how answers are scored.
Read next: `text_scores.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from firsthand.errors import InvalidRequest
from firsthand.files import read_text, strict_json
from firsthand.values import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """`reference` None: the better model's answer is one."""

    prompt: str
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """`answer` None: it is the model's to give."""

    reference: str
    prompt: str | None = None
    answer: str | None = None


def read_pairs(path: Path) -> list[Pair]:
    """Raises InvalidRequest, which names the line."""
    return _read(path, "pairs", _pair)


def read_questions(path: Path) -> list[Question]:
    """Raises InvalidRequest, which names the line."""
    return _read(path, "prompts", _question)


def _read(path: Path, field: str, made: Callable[[dict[str, str]], T]) -> list[T]:
    found = []
    for number, line in enumerate(read_text(path, field).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry: Any = strict_json(line)
            if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
                raise ValueError("must be an object of texts")
            found.append(made(entry))
        except ValueError as error:
            raise InvalidRequest(field, f"{path}, line {number}: {error}") from None
    if not found:
        raise InvalidRequest(field, f"{path} holds none")
    return found


def _pair(entry: dict[str, str]) -> Pair:
    keys = entry.keys()
    if keys != {"reference", "prompt"} and keys != {"reference", "answer"}:
        raise ValueError("must have `reference`, and `prompt` or `answer`")
    return Pair(**entry)


def _question(entry: dict[str, str]) -> Question:
    if not {"prompt"} <= entry.keys() <= {"prompt", "reference"}:
        raise ValueError("must have `prompt`, and may have `reference`")
    return Question(**entry)


def answers(pairs: list[Pair], generate: Callable[[str], str]) -> list[str]:
    """Each pair's answer: its own, or the model's to its prompt."""
    return [generate(pair.prompt or "") if pair.answer is None else pair.answer for pair in pairs]
