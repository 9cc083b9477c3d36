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
from itertools import pairwise
from typing import Any

from firsthand.checks import is_integer
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


def outcome_of(answer: Answer, intended_s: float, sent_s: float, zero_s: float) -> Outcome:
    """`zero_s`: when the load began, on the clock of the answer."""
    ended_s = answer.ended_s - zero_s
    if answer.fault or answer.status != 200:
        return Outcome(intended_s, sent_s, ended_s, fault=answer.fault or _refusal(answer))
    times: list[float] = []
    usage: dict[str, Any] = {}
    finished = False
    for came_s, data in _events(answer):
        if data == "[DONE]":
            finished = True
            continue
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or "error" in value:
            return Outcome(intended_s, sent_s, ended_s, fault=_shown(data))
        usage = value["usage"] if isinstance(value.get("usage"), dict) else usage
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            finished = finished or choice.get("finish_reason") is not None
            if _has_text(choice):
                times.append(came_s - zero_s)
    if not times or not finished:
        return Outcome(intended_s, sent_s, ended_s, fault="the answer is empty, or was cut off")
    return Outcome(
        intended_s,
        sent_s,
        times[-1],
        tuple(times),
        _count(usage, "prompt_tokens", 0),
        _count(usage, "completion_tokens", len(times)),
    )


def _events(answer: Answer) -> Iterator[tuple[float, str]]:
    """The data of each event, with the time at which its line was whole."""
    rest = b""
    for came_s, piece in answer.pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield came_s, line[5:].strip().decode("utf-8", "replace")


def _has_text(choice: dict[str, Any]) -> bool:
    """Of a completion, or of a chat, also reasoning and calls of tools."""
    delta = choice.get("delta")
    parts = delta if isinstance(delta, dict) else choice
    names = ("text", "content", "reasoning", "reasoning_content", "tool_calls")
    return any(parts.get(name) for name in names)


def _refusal(answer: Answer) -> str:
    return f"status {answer.status}: {_shown(b''.join(piece for _, piece in answer.pieces))}"


def _shown(content: bytes | str) -> str:
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    return " ".join(text[:MAX_FAULT_CHARS].split())


def _count(usage: dict[str, Any], name: str, default: int) -> int:
    value = usage.get(name)
    return value if is_integer(value) and value > 0 else default
