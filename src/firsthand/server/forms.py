"""What form an answer is to have: plain, JSON, calls of tools, with reasoning before it or not.

Owns: what of a chat body decides the form, and the deltas and messages that an answer read in that
form becomes.
May not know: how a form is kept (that is a grammar) or read (`text/answers.py`), routes, sockets.
Read next: `routes/chat.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from firsthand.errors import InvalidRequest
from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service
from firsthand.request import Grammar
from firsthand.server import writing
from firsthand.server.house import House
from firsthand.server.wire.chat import ChatBody
from firsthand.text.answers import Answer, AnswerForm, AnswerReader, Piece, read_answer
from firsthand.text.grammars import END_THINK, THINK, of_response_format, with_reasoning
from firsthand.text.reasoning import reasoning_of
from firsthand.text.tool_calls import FORMAT_NAMES, format_of
from firsthand.text.tools import (
    ToolUse,
    answer_grammar,
    chosen_tools,
    plain_arguments,
    read_tools,
    tool_grammar,
    tools_as_text,
)
from firsthand.values import dataclass

_KNOWS_NO_CALLS = (
    "this model's chat template knows no calls; serve with --tool-call-parser "
    + " or ".join(FORMAT_NAMES)
)


@dataclass(frozen=True, slots=True)
class ToolFields:
    """What a body says of tools, in the form of chat's; `choice` is its word, or has the name."""

    tools: Sequence[Mapping[str, Any]] | None
    choice: str | Mapping[str, Any] | None
    parallel: bool | None


def tool_use(house: House, service: Service, given: ToolFields) -> ToolUse | None:
    """The tools that may be called; None: none may. Raises InvalidRequest."""
    if given.tools is None:
        if given.choice not in (None, "none"):
            raise InvalidRequest("tool_choice", "needs tools")
        if given.parallel is not None:
            raise InvalidRequest("parallel_tool_calls", "needs tools")
        return None
    callable_tools, mode = chosen_tools(read_tools(list(given.tools)), given.choice)
    if mode == "none":
        return None
    format = house.tool_format or format_of(service.model.chat_template)
    if format is None:
        raise InvalidRequest("tools", _KNOWS_NO_CALLS)
    one = given.choice is not None and not isinstance(given.choice, str)  # the one that is named
    return ToolUse(callable_tools, mode, given.parallel is not False and not one, format)


def told_messages(
    house: House, template: str | None, messages: Sequence[Mapping[str, Any]], use: ToolUse | None
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]] | None]:
    """The conversation and the tools as the template gets them. Raises InvalidRequest."""
    plain = plain_arguments([_with_reasoning_names(message) for message in messages])
    tools = () if use is None else use.tools
    if template is not None and "tools" not in template and house.tool_format is not None:
        return tools_as_text(plain, tools, house.tool_format), None
    if template is not None and "tool_calls" not in template:  # it would leave them out
        for at, message in enumerate(plain):
            if message.get("tool_calls"):
                raise InvalidRequest(f"messages[{at}].tool_calls", _KNOWS_NO_CALLS)
    return plain, [tool.given for tool in tools] or None


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is read; `grammar` is what it was asked to be. `reasoning_fields` are the names
    of reasoning. `keeps_markers`: the reader needs the text of a control token."""

    reading: AnswerForm
    grammar: Grammar | None
    reasoning_fields: tuple[str, ...]
    keeps_markers: bool


def chat_tools(body: ChatBody) -> ToolFields:
    choice = body.tool_choice
    return ToolFields(
        None if body.tools is None else [one.model_dump(exclude_none=True) for one in body.tools],
        choice.model_dump() if isinstance(choice, BaseModel) else choice,
        body.parallel_tool_calls,
    )


def chat_grammar(body: ChatBody, use: ToolUse | None) -> Grammar | None:
    """What the response_format asks for. Raises InvalidRequest where two forms are asked for."""
    asked, structured = None, body.structured_outputs is not None
    if body.response_format is not None:
        given = body.response_format.model_dump(by_alias=True, exclude_none=True)
        asked = of_response_format(given)
    if asked is not None and structured:
        raise InvalidRequest("structured_outputs", "not together with a response_format")
    if use is not None and structured:
        raise InvalidRequest("structured_outputs", "not together with tools that may be called")
    return asked


def form_of(
    house: House, service: Service, prompt: Prompt, use: ToolUse | None, asked: Grammar | None
) -> Form:
    """With tools and a form, the answer is calls or of that form. Raises InvalidRequest."""
    template = service.model.chat_template
    reasoning = "none" if prompt.continues else reasoning_of(template, prompt.text)
    if use is not None:
        asked = tool_grammar(use) if asked is None else answer_grammar(use, asked)
    format = None if use is None else use.format
    markers = () if format is None else format.markers
    if reasoning != "none":
        markers += (THINK, END_THINK)
    return Form(
        AnswerForm(reasoning, format, use.names, use.schemas) if use else AnswerForm(reasoning),
        asked,
        house.reasoning_fields,
        bool(markers) and service.has_control(markers),
    )


def set_grammar(options: Options, form: Form) -> None:
    """The grammar of the form, or of the body's own field, after what the model may reason."""
    grammar = form.grammar or options.get("grammar")
    if isinstance(grammar, Grammar):
        options["grammar"] = with_reasoning(grammar, form.reading.reasoning)


class ChoiceReader:
    """One choice of a stream: text in, deltas out."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._reader = AnswerReader(form.reading)
        self._ids: dict[int, str] = {}

    @property
    def ends_with_calls(self) -> bool:
        return self._reader.ends_with_calls

    @property
    def num_reasoning_chars(self) -> int:
        return self._reader.answer.num_reasoning_chars

    def add(self, text: str, *, ended: bool) -> dict[str, Any]:
        """The delta that the text brings; empty if none."""
        delta: dict[str, Any] = {}
        self._put(delta, self._reader.add(text))
        if ended:
            self._put(delta, self._reader.finish())
        return delta

    def _put(self, delta: dict[str, Any], piece: Piece) -> None:
        if piece.reasoning:
            for field in self._form.reasoning_fields:
                delta[field] = delta.get(field, "") + piece.reasoning
        if piece.content:
            delta["content"] = delta.get("content", "") + piece.content
        for number, name, arguments in piece.calls:
            calls = delta.setdefault("tool_calls", [])
            if name is not None:
                self._ids[number] = writing.new_id("call_")
                named = {"name": name, "arguments": arguments}
                calls.append(
                    {
                        "index": number,
                        "id": self._ids[number],
                        "type": "function",
                        "function": named,
                    }
                )
            elif calls and calls[-1]["index"] == number:
                calls[-1]["function"]["arguments"] += arguments
            else:
                calls.append({"index": number, "function": {"arguments": arguments}})


def message_of(completion: Completion, form: Form) -> tuple[dict[str, Any], Answer]:
    """The whole message, and what it was made of."""
    answer = read_answer(completion.text, form.reading)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.content or (None if answer.calls else ""),
        "refusal": None,
    }
    if answer.reasoning:
        message |= dict.fromkeys(form.reasoning_fields, answer.reasoning)
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": writing.new_id("call_"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message, answer


def finish_of(completion: Completion | None, *, ends_with_calls: bool) -> dict[str, Any]:
    """As `writing.finish`; an answer that calls tools ends for that reason, unless it was cut, or
    ended in the middle of a call."""
    finish = writing.finish(completion)
    if ends_with_calls and finish["finish_reason"] == "stop":
        finish["finish_reason"] = "tool_calls"
    return finish


def _with_reasoning_names(message: Mapping[str, Any]) -> dict[str, Any]:
    """Both names of reasoning are taken; templates know the older one."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not reasoning:
        return dict(message)
    return {**message, "reasoning": reasoning, "reasoning_content": reasoning}
