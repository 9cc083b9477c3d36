"""The body and the reply of `/v1/completions`, in OpenAI's form with vLLM's extensions.

Owns: its fields. May not know: routes, how an answer comes to be.
Read next: `base.py`, `../routes/completions.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from firsthand.request import MAX_LOGPROBS
from firsthand.server.wire.base import (
    MAX_TOKENS,
    Essential,
    Ignored,
    Reply,
    Sampling,
    TokenId,
)
from firsthand.server.wire.replies import PromptLogprob, Timings, Usage

MAX_PROMPTS = 2048  # OpenAI's, of embeddings; of texts that are to go on, fewer can be answered
OPENAI_MAX_TOKENS = 16  # where a body names none


def _form(value: Any) -> str | None:
    """Which of the four forms a prompt has, from its first item."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else 0
    if isinstance(first, list):
        return "batches_of_ids"
    return "texts" if isinstance(first, str) else "token_ids"


Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
PromptInput = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("texts")]
    | Annotated[Ids, Tag("token_ids")]
    | Annotated[list[Ids], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("batches_of_ids")],
    Discriminator(
        _form,
        custom_error_type="prompt_form",
        custom_error_message="must be a text, token ids, or a list of one of them",
    ),
]


class CompletionBody(Sampling, Ignored):
    """`max_tokens` 0 is for the log-probabilities of the prompt alone. `suffix` is what follows the
    text that is wanted."""

    prompt: PromptInput
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    suffix: str | None = None
    response_format: Essential = None


class CompletionLogprobs(Reply):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class CompletionReply(Reply):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings | None = None
