"""The bodies of `/v1/messages` and its `count_tokens`, in Anthropic's form, for text.

Owns: their fields. May not know: routes, how an answer comes to be.
Read next: `../routes/messages.py`, `chat.py`.

`cache_control` is taken wherever clients put it: a prompt that begins as an earlier one did is
found in the cache without being marked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from firsthand.request import MAX_TOP_K
from firsthand.server.wire.base import (
    MAX_PARTS,
    MAX_TOKENS,
    Essential,
    Name,
    Reply,
    StopString,
    Strict,
    TextBlocks,
    Unsupported,
)
from firsthand.text.grammars import MAX_NAME_CHARS
from firsthand.text.stops import MAX_STOPS
from firsthand.text.templates import MAX_MESSAGES
from firsthand.text.tools import MAX_TOOLS


class CacheControl(Strict):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Block(Strict):
    cache_control: CacheControl | None = None


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


Text = Annotated[TextBlock, TextBlocks]


class ToolResultBlock(_Block):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | Annotated[list[Text], Field(max_length=MAX_PARTS, fail_fast=True)] = ""
    is_error: bool | None = None


class ThinkingBlock(_Block):
    """Of an earlier answer of ours; its signature says nothing."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(_Block):
    """A call that the model made before."""

    type: Literal["tool_use"]
    id: Name
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    input: dict[str, Any]


AskingBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type"), TextBlocks]
AnsweringBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class UserTurn(Strict):
    role: Literal["user"]
    content: str | Annotated[list[AskingBlock], Field(max_length=MAX_PARTS, fail_fast=True)]


class AssistantTurn(Strict):
    """As the last one, it is what the answer goes on from."""

    role: Literal["assistant"]
    content: str | Annotated[list[AnsweringBlock], Field(max_length=MAX_PARTS, fail_fast=True)]


class OwnTool(_Block):
    type: Literal["custom"] | None = None
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolChoice(Strict):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """`budget_tokens` bounds nothing here."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class Metadata(Strict):
    user_id: Name | None = None


class CountBody(Strict):
    messages: Annotated[
        list[Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]],
        Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    ]
    model: Name | None = None
    system: str | Annotated[list[TextBlock], Field(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[OwnTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    mcp_servers: Essential = None
    container: Essential = None
    output_config: Unsupported = None
    context_management: Unsupported = None


class MessagesBody(CountBody):
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class MessageUsage(Reply):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class MessageReply(Reply):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class BlocksErrorFields(Reply):
    type: str
    message: str


class BlocksError(Reply):
    """What every failure looks like here."""

    type: Literal["error"]
    error: BlocksErrorFields


class CountReply(Reply):
    input_tokens: int
