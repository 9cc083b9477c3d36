"""What a score is worth: measured on a set, kept in a file, for two models and no others.

Owns: the fit, the file with the hash of its content, from a threshold to a rule.
May not know: how the set was answered (`evaluate/cascade.py`), servers.
Read next: `confidence.py`, whose rules these are; `decision.py`.

The fit is isotonic: of all functions that never fall, the one with the least squared error, found
by joining neighbours that are in the wrong order (Ayer and others, 1955). It is a stair; a score
that is lower than any that was seen is worth nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from firsthand.canonical import canonical
from firsthand.cascade.confidence import Rule
from firsthand.checks import check_choice, check_integer, check_number, shown
from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.files import parse_json_object, read_whole
from firsthand.values import dataclass

VERSION = 1
MAX_FILE_BYTES = 1 << 20
MAX_STEPS = 10_000
MAX_ITEMS = 4 * MAX_STEPS
LOWEST = -1e6  # of a score
FORMS = CHAT, TEXT = "chat", "text"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models: how it was called, all that its log-probabilities depend on, and how
    many parameters it has. `weights` is the hash of its files."""

    model: str
    weights: str
    quantization: str
    kv_dtype: str
    executor: str
    numerics: int
    parameters: int

    def __post_init__(self) -> None:
        for name in ("model", "weights", "quantization", "kv_dtype", "executor"):
            if not isinstance(getattr(self, name), str):
                raise InvalidRequest(name, f"must be text, not {shown(getattr(self, name))}")
        check_integer("numerics", self.numerics, 0)
        check_integer("parameters", self.parameters, 1)

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """Of two models with the same one the same request has the same bits."""
        return (self.weights, self.quantization, self.kv_dtype, self.executor, self.numerics)

    def __str__(self) -> str:
        return f"{self.model} (weights {self.weights[:12]}, {self.quantization}, {self.kv_dtype})"


@dataclass(frozen=True, slots=True)
class Calibration:
    """`steps` are (least score, worth) in rising order: an answer with that score, or more, had so
    much of the large one's quality, 0 … 1. One that is worth `confidence` is kept. `error` is the
    root of the mean squared error on the `num_prompts` prompts of the set, answered in `form` with
    up to `max_tokens`."""

    small: Side
    large: Side
    form: str
    measure: str
    window: int
    confidence: float
    steps: tuple[tuple[float, float], ...]
    num_prompts: int
    max_tokens: int
    error: float

    def __post_init__(self) -> None:
        check_choice("form", self.form, FORMS)
        check_number("confidence", self.confidence, 0, 1)
        check_integer("num_prompts", self.num_prompts, 1)
        check_integer("max_tokens", self.max_tokens, 1)
        check_number("error", self.error, 0, 1)
        if not 0 < len(self.steps) <= MAX_STEPS or any(len(step) != 2 for step in self.steps):
            raise InvalidRequest("steps", f"must be 1 to {MAX_STEPS} pairs")
        for score, worth in self.steps:
            check_number("steps", score, LOWEST, 0)
            check_number("steps", worth, 0, 1)
        if list(self.steps) != sorted(set(self.steps)) or not _rises(self.steps):
            raise InvalidRequest("steps", "must rise, in both")
        self.rule()

    @property
    def identities(self) -> tuple[object, object]:
        """Of the two models."""
        return self.small.identity, self.large.identity

    def worth(self, score: float) -> float:
        """Of an answer with that score."""
        return _worth(self.steps, score)

    def rule(self, confidence: float | None = None) -> Rule:
        """By which answers are kept; `confidence` in place of the file's own."""
        wanted = self.confidence if confidence is None else confidence
        found = [least for least, worth in self.steps if worth >= wanted]
        least = min(found, default=inf) if wanted > 0 else -inf
        return Rule(self.measure, self.window, least)

    def to_dict(self) -> dict[str, Any]:
        """As the file has it; the hash is that of all the rest."""
        content = {"version": VERSION, **asdict(self), "steps": [list(one) for one in self.steps]}
        return {**content, "sha256": hashlib.sha256(canonical(content)).hexdigest()}

    def content(self) -> bytes:
        """Of the file."""
        return (json.dumps(self.to_dict(), indent=1) + "\n").encode()

    @property
    def sha256(self) -> str:
        return str(self.to_dict()["sha256"])


def fitted(
    sides: tuple[Side, Side],
    form: str,
    scores: Mapping[str, Sequence[float]],
    worths: Sequence[float],
    window: int,
    confidence: float,
    max_tokens: int,
) -> Calibration:
    """By the measure that tells most: `scores` has those of each answer, by measure; `worths` what
    each turned out to be worth."""
    if not worths:
        raise InvalidRequest("prompts", "there are none")
    found = {name: isotonic(zip(values, worths, strict=True)) for name, values in scores.items()}
    sums = {
        name: sum(
            (_worth(found[name], score) - worth) ** 2
            for score, worth in zip(values, worths, strict=True)
        )
        for name, values in scores.items()
    }
    best = min(scores, key=lambda name: sums[name])
    return Calibration(
        *sides,
        form,
        best,
        window,
        confidence,
        found[best],
        len(worths),
        max_tokens,
        (sums[best] / len(worths)) ** 0.5,
    )


def isotonic(pairs: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The stair through (score, worth): (least score, worth) of each step."""
    at: defaultdict[float, list[float]] = defaultdict(list)
    for score, worth in pairs:
        at[max(score, LOWEST)].append(worth)
    steps: list[tuple[float, float, int]] = []  # least score, sum, count
    for score in sorted(at):
        least, total, count = score, sum(at[score]), len(at[score])
        while steps and steps[-1][1] * count >= total * steps[-1][2]:
            least, more, others = steps.pop()
            total, count = total + more, count + others
        steps.append((least, total, count))
    return tuple((least, min(1.0, total / count)) for least, total, count in steps)


def read_calibration(path: Path) -> Calibration:
    """Raises InvalidRequest, which names the file and the field; also where its content is another
    than its hash says."""
    try:
        content = parse_json_object(read_whole(path, MAX_FILE_BYTES), str(path), MAX_ITEMS)
    except CheckpointError as error:
        raise InvalidRequest("calibration", str(error)) from None
    told = content.pop("sha256", None)
    try:
        if content.pop("version", None) != VERSION:
            raise InvalidRequest("version", f"must be {VERSION}: made by `cascade calibrate`")
        found = _of_dict(content)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.field}", error.message) from None
    if told != found.sha256:
        message = "its content is not what its hash says; `cascade choose` changes a threshold"
        raise InvalidRequest(f"{path}: sha256", message)
    return found


def with_confidence(calibration: Calibration, confidence: float) -> Calibration:
    """Raises InvalidRequest."""
    return replace(calibration, confidence=confidence)


def _of_dict(content: Mapping[str, Any]) -> Calibration:
    values = dict(content)
    for name in ("small", "large"):
        values[name] = Side(**_exact(Side, name, values.get(name)))
    steps = values.get("steps")
    if not isinstance(steps, list) or not all(isinstance(one, list) for one in steps):
        raise InvalidRequest("steps", "must be a list of pairs")
    values["steps"] = tuple(tuple(one) for one in steps)
    return Calibration(**_exact(Calibration, "the file", values))


def _exact(kind: Any, where: str, value: Any) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    if not isinstance(value, Mapping) or value.keys() != names:
        raise InvalidRequest(where, f"must have {', '.join(sorted(names))}, and nothing else")
    return dict(value)


def _rises(steps: Sequence[tuple[float, float]]) -> bool:
    worths = [worth for _, worth in steps]
    scores = [score for score, _ in steps]
    return worths == sorted(worths) and len(set(scores)) == len(scores)


def _worth(steps: Sequence[tuple[float, float]], score: float) -> float:
    return max((worth for least, worth in steps if least <= score), default=0.0)
