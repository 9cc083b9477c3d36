"""Anthropic's form of a conversation and of an answer: blocks.

Owns: how messages of blocks become chat's, and how the text of an answer becomes blocks, with the
events that tell of them.
May not know: routes, how a text is read (`text/answers.py`), models.
Read next: `routes/messages.py`, `items.py` (the same for responses).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from firsthand.generation.completion import Completion
from firsthand.request import FinishReason
from firsthand.server import writing
from firsthand.server.forms import ToolFields
from firsthand.server.wire.messages import (
    AssistantTurn,
    CountBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from firsthand.text.answers import AnswerForm, AnswerReader, Piece

Send = Callable[..., bytes]
CHOICES = {"any": "required", "auto": "auto", "none": "none"}


def messages_of(body: CountBody) -> list[dict[str, Any]]:
    """In chat's form."""
    found: list[dict[str, Any]] = []
    if body.system is not None:
        found.append({"role": "system", "content": _text(body.system)})
    for message in body.messages:
        if isinstance(message, UserTurn):
            found += _asked(message)
        else:
            found.append(_answered(message))
    return found


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def text_of(message: UserTurn | AssistantTurn) -> str:
    """What it says, without what calls gave."""
    if isinstance(message.content, str):
        return message.content
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def _asked(message: UserTurn) -> list[dict[str, Any]]:
    """What calls gave is told before what the user says then."""
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    found: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": one.tool_use_id, "content": _text(one.content)}
        for one in results
    ]
    if texts or not results:
        found.append({"role": "user", "content": _text(texts)})
    return found


def _answered(message: AssistantTurn) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    found: dict[str, Any] = {"role": "assistant"}
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    thoughts = [one.thinking for one in message.content if isinstance(one, ThinkingBlock)]
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    if texts or not calls:
        found["content"] = _text(texts)
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    if calls:
        found["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {
                    "name": one.name,
                    "arguments": json.dumps(one.input, ensure_ascii=False),
                },
            }
            for one in calls
        ]
    return found


def tool_fields(body: CountBody) -> ToolFields:
    choice = body.tool_choice
    if not body.tools:
        return ToolFields(None, None if choice is None else CHOICES.get(choice.type, "none"), None)
    tools = [
        {
            "type": "function",
            "function": {
                "name": one.name,
                "parameters": one.input_schema,
                **({} if one.description is None else {"description": one.description}),
                **({} if one.strict is None else {"strict": one.strict}),
            },
        }
        for one in body.tools
    ]
    if choice is None:
        return ToolFields(tools, None, None)
    one_at_most = choice.disable_parallel_tool_use
    parallel = None if one_at_most is None else not one_at_most
    if choice.type == "tool":
        return ToolFields(tools, {"function": {"name": choice.name or ""}}, None)
    return ToolFields(tools, CHOICES[choice.type], parallel)


def stop_of(completion: Completion, *, ends_with_calls: bool) -> dict[str, str | None]:
    cause = completion.finish.cause
    if completion.finish.reason is FinishReason.STOP_STRING:
        return {"stop_reason": "stop_sequence", "stop_sequence": str(cause)}
    if writing.openai_reason(completion.finish.reason) == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    return {"stop_reason": "tool_use" if ends_with_calls else "end_turn", "stop_sequence": None}


class Blocks:
    """`add` each piece of the text, then `finish`; both give events, made by `send(name, …)`. What
    has ended is in `done`."""

    def __init__(self, form: AnswerForm, send: Send) -> None:
        self._reader = AnswerReader(form)
        self._send = send
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._call = -1
        self.done: list[dict[str, Any]] = []

    @property
    def ends_with_calls(self) -> bool:
        return self._reader.ends_with_calls

    def add(self, text: str) -> list[bytes]:
        return self._put(self._reader.add(text))

    def finish(self) -> list[bytes]:
        """An answer without any is an empty text."""
        events = self._put(self._reader.finish())
        if self._open is None and not self.done:
            events += self._go_to({"type": "text", "text": ""})
        return events + self._close()

    def _put(self, piece: Piece) -> list[bytes]:
        events: list[bytes] = []
        if piece.reasoning:
            events += self._go_to({"type": "thinking", "thinking": "", "signature": ""})
            events += self._more("thinking_delta", "thinking", piece.reasoning)
        if piece.content:
            events += self._go_to({"type": "text", "text": ""})
            events += self._more("text_delta", "text", piece.content)
        for number, name, arguments in piece.calls:
            if number != self._call:
                self._call = number
                use = {"type": "tool_use", "id": writing.new_id("toolu_"), "name": name}
                events += self._go_to({**use, "input": {}}, new=True)
            if arguments:
                events += self._more("input_json_delta", "partial_json", arguments)
        return events

    def _go_to(self, block: dict[str, Any], *, new: bool = False) -> list[bytes]:
        if self._open is not None and self._open["type"] == block["type"] and not new:
            return []
        events = self._close()
        self._open, self._text = block, ""
        start = self._send("content_block_start", index=len(self.done), content_block=block)
        return [*events, start]

    def _more(self, kind: str, field: str, text: str) -> list[bytes]:
        self._text += text
        delta = {"type": kind, field: text}
        return [self._send("content_block_delta", index=len(self.done), delta=delta)]

    def _close(self) -> list[bytes]:
        block, self._open = self._open, None
        if block is None:
            return []
        if block["type"] == "tool_use":
            block = {**block, "input": _read(self._text)}
        else:
            block = {**block, block["type"]: self._text}
        stop = self._send("content_block_stop", index=len(self.done))
        self.done.append(block)
        return [stop]


def _read(arguments: str) -> dict[str, Any]:
    """Of a call that was cut, or of a model that wrote no JSON, there is no input."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
