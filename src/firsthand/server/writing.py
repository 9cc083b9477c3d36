"""Completions and chunks in the words of OpenAI's API.

Owns: usage, timings, log-probabilities, the reason of an end, ids of replies.
May not know: routes, sockets, how an answer comes to be.
Read next: `routes/chat.py`, `routes/completions.py`.

`finish_reason` is OpenAI's word (`stop` or `length`); `stop_reason` is our cause: null for
max_tokens, `eos`, the stop string, the stop id, `context` (the window is full), `repetition`.
"""

from __future__ import annotations

import secrets
import time
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from firsthand.generation.completion import Completion, TokenLogprob
from firsthand.generation.service import Service, StreamUsage
from firsthand.request import FinishReason
from firsthand.server.guard.admission import MANIFEST_CHARS


def new_id(prefix: str) -> str:
    """Of a part of a reply: `call_…`, `msg_…`."""
    return f"{prefix}{secrets.token_hex(12)}"


def reply_id(prefix: str, request_id: str) -> str:
    """That of its request behind a prefix: the one that header, log, trace and recorder have."""
    return prefix + request_id.removeprefix("req-")


def now() -> int:
    return int(time.time())


def usage(used: StreamUsage, num_reasoning_tokens: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.total_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
    }


def stop_reason(completion: Completion) -> int | str | None:
    match completion.finish.reason:
        case FinishReason.END_TOKEN:
            return "eos"
        case FinishReason.STOP_STRING | FinishReason.STOP_ID:
            return completion.finish.cause
        case FinishReason.CONTEXT | FinishReason.REPETITION as reason:
            return reason.value
        case _:
            return None


def timings(completion: Completion) -> dict[str, Any]:
    """The object that llama.cpp's users know, with the waits and the most sequences of a step.
    As there, the prompt's figures are about the tokens that were not cached."""
    report = completion.report
    num_later = len(report.token_ms)
    return {
        "cache_n": report.num_cached_tokens,
        "prompt_n": report.num_computed_prompt_tokens,
        "prompt_ms": report.prompt_ms,
        "prompt_per_token_ms": report.prompt_per_token_ms,
        "prompt_per_second": report.prompt_per_second,
        "predicted_n": report.num_tokens,
        "predicted_ms": report.predicted_ms,
        "predicted_per_token_ms": report.predicted_ms / num_later if num_later else None,
        "predicted_per_second": report.predicted_per_second,
        "queue_ms": report.queue_ms,
        "ttft_ms": report.ttft_ms,
        "peak_batch": report.peak_batch,
        **report.guesses,
    }


def manifest(service: Service) -> dict[str, str]:
    """The headers that say what answers: the short hash of the model's manifest, once known, and
    that of the release that it is."""
    model = service.model
    known = {"x-manifest": model.manifest_sha256, "x-release": model.release}
    return {name: sha256[:MANIFEST_CHARS] for name, sha256 in known.items() if sha256 is not None}


def server_timing(completions: Sequence[Completion]) -> dict[str, str]:
    """The header that browsers show, in milliseconds; of the first answer."""
    report = completions[0].report
    phases = (
        ("queue", report.queue_ms),
        ("prefill", report.prompt_ms),
        ("decode", report.predicted_ms),
    )
    return {"server-timing": ", ".join(f"{name};dur={spent:.1f}" for name, spent in phases)}


def chat_logprobs(entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    return {"content": [_chat_entry(entry) for entry in entries], "refusal": None}


def _chat_entry(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.text,
        "logprob": entry.logprob,
        "bytes": list(entry.raw),
        "top_logprobs": [
            {"token": text, "logprob": logprob, "bytes": _bytes(text)}
            for _, text, logprob in entry.top
        ],
    }


def _bytes(text: str) -> list[int] | None:
    """Unknown where the text stands for half a character."""
    return None if "\ufffd" in text else list(text.encode())


class Places:
    """Where tokens begin in a text: how many of its characters are whole before each of them."""

    def __init__(self, start: int) -> None:
        self.next = start
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def take(self, raw: bytes) -> int:
        """The place of the next token, which has these bytes."""
        place = self.next
        self.next += len(self._decoder.decode(raw))
        return place


def completion_logprobs(
    entries: Sequence[TokenLogprob] | None, places: Places, *, end: int | None = None
) -> dict[str, Any] | None:
    """The older form. `end`: the length of the text, once it is known; a stop may have cut it."""
    if entries is None:
        return None
    offsets = [places.take(entry.raw) for entry in entries]
    if end is not None:
        offsets = [min(one, end) for one in offsets]
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{text: value for _, text, value in entry.top} for entry in entries],
        "text_offset": offsets,
    }


def echo_logprobs(
    text: str, first: bytes, entries: Sequence[TokenLogprob | None]
) -> dict[str, Any]:
    """The same for a prompt that is given back; its first token follows nothing and has none."""
    places = Places(0)
    start: dict[str, Any] = {
        "tokens": first.decode("utf-8", "replace"),
        "token_logprobs": None,
        "top_logprobs": None,
        "text_offset": places.take(first),
    }
    scored = completion_logprobs([one for one in entries if one is not None], places) or {}
    found = {name: [value, *scored[name]] for name, value in start.items()}
    unseen = max(0, places.next - len(text))  # before it: a BOS, the space of a first word
    found["text_offset"] = [max(0, offset - unseen) for offset in found["text_offset"]]
    return found


def prompt_logprobs(entries: Sequence[TokenLogprob | None] | None) -> list[Any] | None:
    """vLLM's form: of each token of the prompt, what was told of it and of those in its place, by
    their ids; null for the first."""
    if entries is None:
        return None
    return [None if entry is None else _by_id(entry) for entry in entries]


def _by_id(entry: TokenLogprob) -> dict[str, Any]:
    given = {str(entry.token_id): _ranked(entry.logprob, None, entry.text)}
    best = enumerate(entry.top, 1)
    return given | {str(t): _ranked(logprob, rank, text) for rank, (t, text, logprob) in best}


def _ranked(logprob: float, rank: int | None, text: str) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


def openai_reason(reason: FinishReason) -> str:
    """The word of OpenAI's API: `stop` or `length`."""
    return "length" if reason in (FinishReason.LENGTH, FinishReason.CONTEXT) else "stop"


def finish(completion: Completion | None) -> dict[str, Any]:
    """The two fields of an end; null and absent before it."""
    if completion is None:
        return {"finish_reason": None}
    reason = openai_reason(completion.finish.reason)
    return {"finish_reason": reason, "stop_reason": stop_reason(completion)}
