"""The body and the reply of `/v1/chat/completions`, in OpenAI's form with vLLM's extensions.

Owns: its fields. May not know: routes, how an answer comes to be.
Read next: `base.py`, `../routes/chat.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from firsthand.server.wire.base import (
    MAX_PARTS,
    MAX_TOKENS,
    Essential,
    Ignored,
    Logprobs,
    Misplaced,
    OnlyText,
    Reply,
    Sampling,
    Strict,
    Unsupported,
)
from firsthand.server.wire.replies import PromptLogprob, Timings, Usage
from firsthand.text.effort import Effort
from firsthand.text.grammars import MAX_NAME_CHARS
from firsthand.text.templates import MAX_MESSAGES
from firsthand.text.tools import MAX_TOOLS

ShortName = Annotated[str, Field(max_length=256)]


class TextPart(Strict):
    type: Annotated[Literal["text"], OnlyText]
    text: str


class CalledFunction(Strict):
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    arguments: str


class ToolCall(Strict):
    """A call that the model made before."""

    id: ShortName
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None


class FunctionDefinition(Strict):
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


Content = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)]


class _Message(Strict):
    """`name` goes to the template, of which most leave it out."""

    name: ShortName | None = None
    function_call: Essential = None
    refusal: Essential = None
    audio: Essential = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class AskingMessage(_Message):
    role: Literal["system", "developer", "user"]
    content: Content
    reasoning: Misplaced = None
    reasoning_content: Misplaced = None
    tool_calls: Misplaced = None
    tool_call_id: Misplaced = None


class AssistantMessage(_Message):
    """What a reply of ours holds may be sent back as it is."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Misplaced = None


class ToolMessage(_Message):
    """What a call gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: ShortName
    reasoning: Misplaced = None
    reasoning_content: Misplaced = None
    tool_calls: Misplaced = None


ChatMessage = Annotated[AskingMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class NamedSchema(Strict):
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    description: str | None = None


class JsonSchemaFormat(Strict):
    """The answer is JSON that the schema allows, whatever `strict` says."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class ChatTemplateInput(Strict):
    """What a template gets: `/v1/chat/completions`, its render, and `/tokenize` share it."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None


class ChatBody(ChatTemplateInput, Sampling, Logprobs, Ignored):
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolDefinition], Field(min_length=1, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Essential = None
    function_call: Essential = None
    reasoning_effort: Effort | None = None
    verbosity: Unsupported = None
    prediction: Unsupported = None
    modalities: list[Literal["text"]] | None = None
    include_reasoning: bool | None = None
    audio: Essential = None
    web_search_options: Unsupported = None
    moderation: Unsupported = None
    prompt_cache_options: Unsupported = None


class TopLogprob(Reply):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Reply):
    content: list[TokenLogprobs]
    refusal: None


class AnswerMessage(Reply):
    """`reasoning` and `reasoning_content` are the same text; they are there if there is any."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Reply):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | None


class ChatReply(Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class RenderReply(Reply):
    prompt: str
    token_ids: list[int]
    count: int
    max_model_len: int
