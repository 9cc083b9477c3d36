"""When requests are to arrive, and how long each is.

Owns: the processes of arrival, the traces that are read, the prompts of requests that have none.
May not know: how a request is sent, how a server keeps up: arrivals do not wait for answers.
Read next: `playing.py`, which keeps to these times.

Gaps are drawn from a gamma distribution and scaled, so that `num` requests always take
`num / rate` seconds: two runs at one rate differ in their bursts alone. A burstiness of 1 is a
Poisson process; more is more even; infinite is constant.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from firsthand.checks import check_integer, check_number, is_integer, shown
from firsthand.errors import InvalidRequest
from firsthand.files import read_text, strict_json
from firsthand.values import dataclass

CONSTANT = math.inf  # a burstiness
MAX_RATE = 100_000.0
FIELD = "dataset_path"
MAX_ARRIVALS = 1_000_000
MAX_TOKENS = 1 << 20
MAX_TRACE_BYTES = 256 << 20
MAX_TIMESTAMP_MS = 1e15  # beyond what milliseconds since 1970 are, and below what smaller units are
MAX_LOAD_S = 7 * 86_400.0
MAX_PROMPT_CHARS = 1 << 30  # of all requests together: they are made before the first one is sent
WORD_CHARS = 6  # with its blank, about
# fmt: off
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
    "member", "law", "car", "city", "community", "name",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds after the beginning, tokens to generate, and the prompt."""

    at_s: float
    output_tokens: int
    prompt: str


@dataclass(frozen=True, slots=True)
class Sized:
    """One request of a trace: with a prompt, or only as long as one (in tokens)."""

    at_s: float
    input_tokens: int
    output_tokens: int
    prompt: str | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of requests that no file has, in tokens; those of the prompt are about as many."""

    input_tokens: int = 64
    output_tokens: int = 64

    def __post_init__(self) -> None:
        check_integer("random_input_len", self.input_tokens, 1, MAX_TOKENS)
        check_integer("random_output_len", self.output_tokens, 1, MAX_TOKENS)


def times_at(rate: float, num: int, burstiness: float, draw: random.Random) -> list[float]:
    """When each of `num` requests arrives; an infinite rate: all at once. Raises InvalidRequest."""
    if burstiness != CONSTANT:
        check_number("burstiness", burstiness, 0, 1e6, low_open=True)
    if rate == math.inf:
        return [0.0] * num
    check_number("request_rate", rate, 0, MAX_RATE, low_open=True)
    _check_end("request_rate", num / rate)
    if burstiness == CONSTANT:
        return [index / rate for index in range(num)]
    gaps = [draw.gammavariate(burstiness, 1.0) for _ in range(num)]
    scale = num / rate / (sum(gaps) or 1.0)
    return [0.0, *(at_s * scale for at_s in accumulate(gaps[:-1]))]


def ramped_times(first_rate: float, last_rate: float, num: int, *, is_linear: bool) -> list[float]:
    """Evenly denser ones: the rate goes from the first to the last, by addition or by factors."""
    for name, rate in (("ramp_up_start_rps", first_rate), ("ramp_up_end_rps", last_rate)):
        check_number(name, rate, 0, MAX_RATE, low_open=True)
    times, at_s = [], 0.0
    for index in range(num):
        times.append(at_s)
        share = index / max(1, num - 1)
        step = (last_rate - first_rate) * share
        rate = first_rate + step if is_linear else first_rate * (last_rate / first_rate) ** share
        at_s += 1 / rate
    _check_end("ramp_up_start_rps", times[-1])
    return times


def prompt_of(num_tokens: int, draw: random.Random) -> str:
    """So many words, each of which is one token in most vocabularies; two hardly ever begin alike,
    so nothing is found in a cache."""
    return " ".join(draw.choices(WORDS, k=num_tokens))


def random_requests(times: list[float], lengths: Lengths, draw: random.Random) -> list[Arrival]:
    """Raises InvalidRequest where they are more than memory should hold."""
    _check_size("random_input_len", len(times) * lengths.input_tokens * WORD_CHARS)
    return [
        Arrival(at_s, lengths.output_tokens, prompt_of(lengths.input_tokens, draw))
        for at_s in times
    ]


def custom_requests(times: list[float], prompts: Sequence[tuple[str, int]]) -> list[Arrival]:
    """The prompts in turn. Raises InvalidRequest where they are more than memory should hold."""
    found = [
        Arrival(at_s, num_tokens, prompt)
        for index, at_s in enumerate(times)
        for prompt, num_tokens in (prompts[index % len(prompts)],)
    ]
    _check_size("num_prompts", sum(len(one.prompt) for one in found))
    return found


def read_prompts(path: Path, output_tokens: int) -> list[tuple[str, int]]:
    """From JSON lines of `prompt` and, if there is one, `output_tokens`. Raises InvalidRequest."""
    found = []
    for where, row in _json_rows(path, read_text(path, FIELD, MAX_TRACE_BYTES)):
        prompt = row.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise InvalidRequest(FIELD, f"{where}: no prompt")
        found.append((prompt, _count(where, row, "output_tokens", output_tokens)))
    if not found:
        raise InvalidRequest(FIELD, f"{path} has no line")
    return found


def read_trace(
    path: Path, lengths: Lengths, draw: random.Random, most: int = MAX_ARRIVALS
) -> list[Arrival]:
    """The first `most` of a recorded load, beginning at 0. Raises InvalidRequest, naming the line;
    also where it lasts too long, or is more than memory should hold."""
    sizes = read_sizes(path, lengths)[:most]
    _check_end(FIELD, sizes[-1].at_s)
    chars = (
        one.input_tokens * WORD_CHARS if one.prompt is None else len(one.prompt) for one in sizes
    )
    _check_size(FIELD, sum(chars))
    return [
        Arrival(
            one.at_s,
            one.output_tokens,
            prompt_of(one.input_tokens, draw) if one.prompt is None else one.prompt,
        )
        for one in sizes
    ]


def read_sizes(path: Path, lengths: Lengths) -> list[Sized]:
    """What a trace says. JSON lines of `timestamp` (ms), `input_length`, `output_length`, or
    `prompt` in place of a length; or CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Raises
    InvalidRequest, naming the line."""
    text = read_text(path, FIELD, MAX_TRACE_BYTES)
    rows = _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(path, text)
    found = []
    for where, row in rows:
        at_ms: Any = row.get("timestamp")
        try:
            check_number("timestamp", at_ms, -MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
        except InvalidRequest as error:
            raise InvalidRequest(FIELD, f"{where}: {error}, in milliseconds") from None
        prompt = row.get("prompt")
        if prompt is not None and (not isinstance(prompt, str) or not prompt):
            raise InvalidRequest(FIELD, f"{where}: prompt is {shown(prompt)}")
        input_tokens = 0
        if prompt is None:
            input_tokens = _count(where, row, "input_length", lengths.input_tokens)
        length = _count(where, row, "output_length", lengths.output_tokens)
        found.append(Sized(at_ms / 1e3, input_tokens, length, prompt))
    if not found:
        raise InvalidRequest(FIELD, f"{path} has no line")
    found.sort(key=lambda one: one.at_s)
    begin_s = found[0].at_s
    return [replace(one, at_s=one.at_s - begin_s) for one in found]


def _check_end(field: str, last_s: float) -> None:
    if not last_s <= MAX_LOAD_S:  # nor is it a number of rates that are next to 0
        message = f"the load would last {last_s:.3g} s; at most {MAX_LOAD_S:.0f}"
        raise InvalidRequest(field, message)


def _check_size(field: str, num_chars: int) -> None:
    if num_chars > MAX_PROMPT_CHARS:
        message = f"all prompts together would have {num_chars} characters; at most"
        raise InvalidRequest(field, f"{message} {MAX_PROMPT_CHARS}")


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):  # a prompt may hold other ends of lines
        where = f"{path}:{number}"
        if not line.strip():
            continue
        if number > MAX_ARRIVALS:
            raise InvalidRequest(FIELD, f"{path} has over {MAX_ARRIVALS} lines")
        try:
            row = strict_json(line)
        except ValueError as error:
            raise InvalidRequest(FIELD, f"{where}: is no JSON: {str(error)[:200]}") from None
        if not isinstance(row, dict):
            raise InvalidRequest(FIELD, f"{where}: is no JSON object")
        yield where, row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A time without a zone is one of UTC: what lies between two of them is the same everywhere."""
    rows = csv.DictReader(io.StringIO(text))
    number = 1
    try:
        for number, row in enumerate(rows, 2):
            if number > MAX_ARRIVALS:
                raise InvalidRequest(FIELD, f"{path} has over {MAX_ARRIVALS} lines")
            at = datetime.fromisoformat(row["TIMESTAMP"])
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            yield (
                f"{path}:{number}",
                {
                    "timestamp": at.timestamp() * 1e3,
                    "input_length": int(row["ContextTokens"]),
                    "output_length": int(row["GeneratedTokens"]),
                },
            )
    except (KeyError, TypeError, ValueError, csv.Error):
        message = f"{path}:{number}: needs TIMESTAMP, ContextTokens, GeneratedTokens"
        raise InvalidRequest(FIELD, message) from None


def _count(where: str, row: Mapping[str, Any], name: str, default: int) -> int:
    value = row.get(name, default)
    if not is_integer(value) or not 1 <= value <= MAX_TOKENS:
        raise InvalidRequest(FIELD, f"{where}: {name} is {shown(value)}")
    return value
