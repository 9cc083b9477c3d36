"""What became of each request, read from the answer after the load.

Owns: events, tokens and their times, faults.
May not know: when requests are sent; percentiles.
Read next: `summary.py`.

Every time counts from the moment at which the request was to be sent, not from that at which it
was: a server, or a client, that falls behind delays all that come after, and each of these waits
is a user's. To leave them out is called coordinated omission.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise
from typing import Any

from firsthand.checks import is_integer, shown
from firsthand.loadtest.arrivals import MAX_TOKENS
from firsthand.loadtest.exchange import Answer
from firsthand.values import dataclass

MAX_FAULT_CHARS = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds from the beginning of the load. `token_times_s`: of each piece of text.
    `fault` empty: it was answered whole."""

    intended_s: float
    sent_s: float
    ended_s: float
    token_times_s: tuple[float, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    fault: str = ""

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0] - self.intended_s

    @property
    def e2el_s(self) -> float:
        return self.ended_s - self.intended_s

    @property
    def tpot_s(self) -> float:
        """Per token after the first."""
        return (self.ended_s - self.token_times_s[0]) / max(1, self.output_tokens - 1)

    @property
    def itls_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.token_times_s)]


@dataclass(slots=True, eq=False)
class _Read:
    """What an answer's events say. `times_s`: when text came, by the clock of the answer."""

    times_s: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    num_events: int = 0
    finished: bool = False
    fault: str = ""


def outcome_of(answer: Answer, intended_s: float, sent_s: float, zero_s: float) -> Outcome:
    """`zero_s`: when the load began, on the clock of the answer."""
    ended_s = answer.ended_s - zero_s
    if answer.fault or answer.status != 200:
        return Outcome(intended_s, sent_s, ended_s, fault=answer.fault or _refusal(answer))
    read = _read(answer)
    fault = read.fault or _fault_of(read, answer)
    if fault:
        return Outcome(intended_s, sent_s, ended_s, fault=fault)
    return Outcome(
        intended_s,
        sent_s,
        read.times_s[-1] - zero_s,
        tuple(time_s - zero_s for time_s in read.times_s),
        read.usage.get("prompt_tokens") or 0,
        read.usage.get("completion_tokens") or len(read.times_s),
    )


def _read(answer: Answer) -> _Read:
    read = _Read()
    for came_s, data in _events(answer):
        read.num_events += 1
        if data == "[DONE]":
            read.finished = True
            continue
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or "error" in value:
            read.fault = _shown(data)
            break
        read.usage = value["usage"] if isinstance(value.get("usage"), dict) else read.usage
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            read.finished = read.finished or choice.get("finish_reason") is not None
            if _has_text(choice):
                read.times_s.append(came_s)
    return read


def _fault_of(read: _Read, answer: Answer) -> str:
    """Why it is no whole answer, if it is none."""
    if not read.num_events:  # perhaps an error under a good status, or no stream
        return f"the answer has no events: {_shown(_content(answer)) or 'it is empty'}"
    if not read.times_s or not read.finished:
        return "the answer is empty, or was cut off"
    for name in ("prompt_tokens", "completion_tokens"):
        value = read.usage.get(name)
        if value is not None and not (is_integer(value) and 0 <= value <= MAX_TOKENS):
            return f"its usage says that {name} is {shown(value)}"
    return ""


def _events(answer: Answer) -> Iterator[tuple[float, str]]:
    """The data of each event, with the time at which its line was whole."""
    begun: list[bytes] = []  # of a line whose end has not come
    for came_s, piece in answer.pieces:
        *ended, rest = piece.replace(b"\r", b"\n").split(b"\n")
        for part in ended:
            line = b"".join((*begun, part))
            begun.clear()
            if line.startswith(b"data:"):
                yield came_s, line[5:].strip().decode("utf-8", "replace")
        begun.append(rest)


def _has_text(choice: dict[str, Any]) -> bool:
    """Of a completion, or of a chat, also reasoning and calls of tools."""
    delta = choice.get("delta")
    parts = delta if isinstance(delta, dict) else choice
    names = ("text", "content", "reasoning", "reasoning_content", "tool_calls")
    return any(parts.get(name) for name in names)


def _refusal(answer: Answer) -> str:
    return f"status {answer.status}: {_shown(_content(answer))}"


def _content(answer: Answer) -> bytes:
    return b"".join(piece for _, piece in answer.pieces)


def _shown(content: bytes | str) -> str:
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    return " ".join(text[:MAX_FAULT_CHARS].split())
