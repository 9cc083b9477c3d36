"""Parts that several replies share.

Owns: usage and timings, as documents of their form. May not know: how they are measured.
Read next: `chat.py`, `../writing.py` (who fills them).
"""

from __future__ import annotations

from typing import Any, Literal

from firsthand.server.wire.base import Reply


class CachedTokens(Reply):
    cached_tokens: int


class ReasoningTokens(Reply):
    reasoning_tokens: int


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class Timings(Reply):
    """Milliseconds; the names are llama.cpp's, and the last three ours. `prompt_n` tokens of the
    prompt were computed, `cache_n` found."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    queue_ms: float
    ttft_ms: float
    peak_batch: int


class PromptLogprob(Reply):
    """Of one token of a prompt, under its id. `rank` 1 is the likeliest; null: not among those that
    were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


class ErrorFields(Reply):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Reply):
    """What every failure looks like."""

    error: ErrorFields


class Fingerprint(Reply):
    """`word` is the `system_fingerprint` of its answers; the rest is what it is made of."""

    word: str
    engine: str
    manifest_sha256: str | None
    adapter_sha256: str | None
    numerics: str


class ModelCard(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    firsthand_manifest_sha256: str | None
    firsthand_release: str | None
    firsthand_fingerprint: Fingerprint | None


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelCard]


class InputTokens(Reply):
    """`object` is `response.input_tokens`, of a conversation `chat.completion.input_tokens`."""

    object: str
    input_tokens: int


class StatusReply(Reply):
    status: str


class VersionReply(Reply):
    version: str


class RecordStage(Reply):
    name: str
    start_ms: float
    ms: float


class RecordSummary(Reply):
    """A request as the recorder knows it. The stages follow each other from its arrival on, and
    add up to `total_ms`."""

    id: str
    state: str
    arrived: str
    model: str
    endpoint: str
    status: int | None
    finish_reasons: list[str]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    total_ms: float
    stages: list[RecordStage]


class RecordsReply(Reply):
    requests: list[RecordSummary]


class CancelReply(Reply):
    """`cancelled` false: it had come to its end by itself."""

    id: str
    cancelled: bool


class RecordReply(RecordSummary):
    """With its parts (a prompt each: queue, admissions, preemptions, first token, choices) and the
    steps in which it took part."""

    step_ms: dict[str, float]
    parts: list[dict[str, Any]]
    num_steps: int
    steps_left_out: int
    steps: list[dict[str, Any]]
