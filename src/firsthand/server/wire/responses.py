"""The body and the reply of `/v1/responses`, for text.

Owns: its fields. May not know: routes, how an answer comes to be.
Read next: `../routes/responses.py`, `chat.py`.

Nothing is stored, so what refers to an earlier response is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from firsthand.request import MAX_LOGPROBS, MAX_SEED, MAX_TOP_K
from firsthand.server.wire.base import (
    MAX_PARTS,
    MAX_TOKENS,
    Essential,
    Ignored,
    Name,
    OnlyFalse,
    OnlyText,
    PriorityInput,
    Repetition,
    Reply,
    Strict,
    Unsupported,
)
from firsthand.server.wire.chat import JsonObjectFormat, NamedSchema, TextFormat
from firsthand.text.effort import Effort
from firsthand.text.grammars import MAX_NAME_CHARS
from firsthand.text.templates import MAX_MESSAGES
from firsthand.text.tools import MAX_TOOLS

Status = Literal["completed", "incomplete", "in_progress"]
Summary = Literal["auto", "concise", "detailed"]
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"  # nothing is hidden here, so nothing is encrypted
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class InputText(Strict):
    type: Annotated[Literal["input_text", "output_text"], OnlyText]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None  # of an earlier answer that is sent back


class InputMessage(Strict):
    """A message of the conversation; an earlier answer of ours may be sent back as it is."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText], Field(max_length=MAX_PARTS, fail_fast=True)]
    id: Name | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None  # of an answer; no template has it


class FunctionCall(Strict):
    """A call that the model made before."""

    type: Literal["function_call"]
    call_id: Name
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    arguments: str
    id: Name | None = None
    status: Status | None = None


class FunctionCallOutput(Strict):
    type: Literal["function_call_output"]
    call_id: Name
    output: str | Annotated[list[InputText], Field(max_length=MAX_PARTS, fail_fast=True)]
    id: Name | None = None
    status: Status | None = None


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningInput(Strict):
    """Reasoning of an earlier answer of ours; it goes to the message or the call after it."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: Annotated[list[Any], Field(max_length=0)] | None = None
    encrypted_content: Unsupported = None
    id: Name | None = None
    status: Status | None = None


def _kind(value: Any) -> str | None:
    """A message need not say that it is one."""
    kind = value.get("type", "message") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else "message" if isinstance(value, dict) else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningInput, Tag("reasoning")],
    Discriminator(_kind),
]


class FlatTool(Strict):
    type: Literal["function"]
    name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatNamedTool(Strict):
    type: Literal["function"]
    name: str


class FlatSchemaFormat(NamedSchema):
    type: Literal["json_schema"]


class TextSettings(Strict):
    format: (
        Annotated[TextFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    verbosity: Unsupported = None


class ResponseStreamOptions(Strict):
    include_obfuscation: OnlyFalse | None = None


class ReasoningSettings(Strict):
    """The summary is the model's to write, and none here does: what it thinks is given whole."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponsesBody(Ignored):
    input: (
        str
        | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    )
    model: Name | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    priority: PriorityInput | None = None
    repetition_guard: bool | Repetition | None = None
    include: Annotated[list[Includable], Field(max_length=8)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    text: TextSettings | None = None
    truncation: Literal["disabled"] | None = None
    background: OnlyFalse | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Unsupported = None
    previous_response_id: Essential = None
    conversation: Essential = None
    prompt: Essential = None
    reasoning: ReasoningSettings | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or self.top_logprobs is not None


class InputDetails(Reply):
    cached_tokens: int


class OutputDetails(Reply):
    reasoning_tokens: int


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class OutputText(Reply):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(Reply):
    type: Literal["message"]
    id: str
    status: Literal["completed", "incomplete", "in_progress"]
    role: Literal["assistant"]
    content: list[OutputText]


class ResponsesReply(Reply):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress"]
    model: str
    output: list[OutputMessage]
    usage: ResponseUsage | None
    metadata: dict[str, str]
