"""The bodies and replies of `/tokenize` and `/detokenize`, in vLLM's form.

Owns: their fields. May not know: routes, vocabularies.
Read next: `../routes/tokens.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from firsthand.server.wire.base import Name, Reply, Strict, TokenId
from firsthand.server.wire.chat import ChatMessage
from firsthand.text.templates import MAX_MESSAGES

MAX_DETOKENIZE_IDS = 1_000_000


class TokenizeBody(Strict):
    """Exactly one of `prompt` and `messages`. `add_special_tokens` false: no BOS (of a prompt)."""

    model: Name | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
        | None
    ) = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None


class TokenizeReply(Reply):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(Strict):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_DETOKENIZE_IDS, fail_fast=True)]


class DetokenizeReply(Reply):
    prompt: str
