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
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from firsthand.checks import check_integer, check_number, is_integer, shown
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

CONSTANT = math.inf  # a burstiness
MAX_RATE = 100_000.0
MAX_ARRIVALS = 1_000_000
MAX_TOKENS = 1 << 20
MAX_TRACE_BYTES = 256 << 20
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


def check_rate(field: str, rate: object) -> None:
    """Requests per second; infinite: all at once. Raises InvalidRequest."""
    if rate != math.inf:
        check_number(field, rate, 0, MAX_RATE, low_open=True)


def times_at(rate: float, num: int, burstiness: float, draw: random.Random) -> list[float]:
    """When each of `num` requests arrives. Raises InvalidRequest."""
    check_rate("request_rate", rate)
    if burstiness != CONSTANT:
        check_number("burstiness", burstiness, 0, 1e6, low_open=True)
    if rate == math.inf:
        return [0.0] * num
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
    return times


def prompt_of(num_tokens: int, draw: random.Random) -> str:
    """So many words, each of which is one token in most vocabularies; two hardly ever begin alike,
    so nothing is found in a cache."""
    return " ".join(draw.choices(WORDS, k=num_tokens))


def random_requests(times: list[float], lengths: Lengths, draw: random.Random) -> list[Arrival]:
    return [
        Arrival(at_s, lengths.output_tokens, prompt_of(lengths.input_tokens, draw))
        for at_s in times
    ]


def read_prompts(path: Path, output_tokens: int) -> list[tuple[str, int]]:
    """From JSON lines of `prompt` and, if there is one, `output_tokens`. Raises InvalidRequest."""
    found = []
    for where, row in _json_rows(path, _text_of(path)):
        prompt = row.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise InvalidRequest("dataset_path", f"{where}: no prompt")
        found.append((prompt, _count(where, row, "output_tokens", output_tokens)))
    if not found:
        raise InvalidRequest("dataset_path", f"{path} has no line")
    return found


def read_trace(path: Path, lengths: Lengths, draw: random.Random) -> list[Arrival]:
    """A recorded load, its first request at 0. Raises InvalidRequest, naming the line."""
    return [
        Arrival(
            one.at_s,
            one.output_tokens,
            prompt_of(one.input_tokens, draw) if one.prompt is None else one.prompt,
        )
        for one in read_sizes(path, lengths)
    ]


def read_sizes(path: Path, lengths: Lengths) -> list[Sized]:
    """What a trace says. JSON lines of `timestamp` (ms), `input_length`, `output_length`, or
    `prompt` in place of a length; or CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Raises
    InvalidRequest, naming the line."""
    text = _text_of(path)
    rows = _csv_rows(path, text) if path.suffix == ".csv" else _json_rows(path, text)
    found = []
    for where, row in rows:
        at_ms = row.get("timestamp")
        if not (isinstance(at_ms, float) or is_integer(at_ms)) or not math.isfinite(at_ms):
            raise InvalidRequest("dataset_path", f"{where}: timestamp is {shown(at_ms)}")
        prompt = row.get("prompt")
        if not isinstance(prompt, str):
            prompt = None
        input_tokens = 0
        if prompt is None:
            input_tokens = _count(where, row, "input_length", lengths.input_tokens)
        length = _count(where, row, "output_length", lengths.output_tokens)
        found.append(Sized(at_ms / 1e3, input_tokens, length, prompt))
    if not found:
        raise InvalidRequest("dataset_path", f"{path} has no line")
    found.sort(key=lambda one: one.at_s)
    begin_s = found[0].at_s
    return [replace(one, at_s=one.at_s - begin_s) for one in found]


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_TRACE_BYTES + 1)
        if len(content) > MAX_TRACE_BYTES:
            raise InvalidRequest("dataset_path", f"{path} is longer than {MAX_TRACE_BYTES} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise InvalidRequest("dataset_path", f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest("dataset_path", f"{path} is no UTF-8") from None


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if number > MAX_ARRIVALS:
            raise InvalidRequest("dataset_path", f"{path} has over {MAX_ARRIVALS} lines")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InvalidRequest("dataset_path", f"{where}: is no JSON object")
        yield where, row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        where = f"{path}:{number}"
        if number > MAX_ARRIVALS:
            raise InvalidRequest("dataset_path", f"{path} has over {MAX_ARRIVALS} lines")
        try:
            yield (
                where,
                {
                    "timestamp": datetime.fromisoformat(row["TIMESTAMP"]).timestamp() * 1e3,
                    "input_length": int(row["ContextTokens"]),
                    "output_length": int(row["GeneratedTokens"]),
                },
            )
        except (KeyError, TypeError, ValueError):
            message = f"{where}: needs TIMESTAMP, ContextTokens, GeneratedTokens"
            raise InvalidRequest("dataset_path", message) from None


def _count(where: str, row: Mapping[str, Any], name: str, default: int) -> int:
    value = row.get(name, default)
    if not is_integer(value) or not 1 <= value <= MAX_TOKENS:
        raise InvalidRequest("dataset_path", f"{where}: {name} is {shown(value)}")
    return value
