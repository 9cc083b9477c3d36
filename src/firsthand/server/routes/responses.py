"""`/v1/responses`, for text, streamed and not. Nothing is stored.

Owns: how its body becomes a conversation, the form of its answer, the order of its events.
May not know: models, engines, the connection.
Read next: `chat.py`, `../answers.py`, `../wire/responses.py`.

The events: created, in_progress, then of each item (`../items.py`) output_item.added, what it
holds as it comes, output_item.done; at last completed (or incomplete). Each has its `type` and a
`sequence_number` that counts from 0. There is no [DONE].
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service, StreamUsage
from firsthand.request import Grammar
from firsthand.server import writing
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.asides import note_ignored
from firsthand.server.forms import (
    Form,
    ToolFields,
    form_of,
    set_grammar,
    told_messages,
    tool_use,
)
from firsthand.server.house import House
from firsthand.server.items import Items
from firsthand.server.openapi import described
from firsthand.server.routes.answering import Draft, Wish, answered
from firsthand.server.routes.submitting import (
    Asked,
    check_grammar,
    effort_of,
    header_options,
    json_reply,
    naming,
    note_asides,
)
from firsthand.server.sse import EventStreamResponse, event
from firsthand.server.wire.base import Sampling, options_of, tier_options
from firsthand.server.wire.chat import JsonObjectFormat
from firsthand.server.wire.replies import InputTokens
from firsthand.server.wire.responses import (
    ENCRYPTED,
    FlatNamedTool,
    FlatSchemaFormat,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    InputText,
    ReasoningInput,
    ResponsesBody,
    ResponsesReply,
)
from firsthand.text.grammars import ANY_OBJECT, of_schema
from firsthand.text.tools import ToolUse

RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"


def responses_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(
        RESPONSES, **described(ResponsesBody, ResponsesReply, "Answer with text", streams=True)
    )
    async def responses(request: Request) -> Response:
        body = await house.read(request, ResponsesBody)
        sampling = _sampling(body)
        _check_contract(house, request, body)
        note_ignored(request.scope, *_without_effect(body))
        note_asides(house, request, body)

        async def prepare(service: Service) -> Draft[ResponseAnswer]:
            given: Options = {**tier_options(body), **_options(body, sampling)}
            options: Options = {**given, **header_options(request)}
            use = tool_use(house, service, tool_fields(body))
            prompt = await _render(house, request, service, body, use)
            form = form_of(house, service, prompt, use, _grammar(body))
            set_grammar(options, form)
            await check_grammar(service, options)

            def reply(asked: Asked, answers: Answers) -> ResponseAnswer:
                return ResponseAnswer(asked, body, answers, form)

            return Draft([prompt], options, reply, form.keeps_markers)

        with naming(_NAMES | _tool_names(body)):
            begun = await answered(house, request, Wish(RESPONSES, body.model, sampling), prepare)
        if body.stream:
            return EventStreamResponse(begun.reply.events(), house.stream, begun.headers)
        return await unless_gone(request, begun.reply.whole(begun.headers))

    @router.post(
        INPUT_TOKENS, **described(ResponsesBody, InputTokens, "Count the tokens of a response")
    )
    async def input_tokens(request: Request) -> Response:
        body = await house.read(request, ResponsesBody)
        _, service = house.find(body.model)
        with naming(_NAMES | _tool_names(body)):
            use = tool_use(house, service, tool_fields(body))
            prompt = await _render(house, request, service, body, use)
        return json_reply({"object": "response.input_tokens", "input_tokens": prompt.num_tokens})

    return router


_NAMES = {"max_tokens": "max_output_tokens", "prompt": "input", "messages": "input"}
_NAMES["messages["] = "input"  # its items are not the messages that they become


async def _render(
    house: House, request: Request, service: Service, body: ResponsesBody, use: ToolUse | None
) -> Prompt:
    template = service.model.chat_template
    messages, tools = told_messages(house, template, messages_of(body), use)
    asked = None if body.reasoning is None else body.reasoning.effort
    effort = effort_of(request, service, asked, "reasoning.effort")
    return await service.render(messages, tools=tools, variables=effort)


def _check_contract(house: House, request: Request, body: ResponsesBody) -> None:
    """Of what users say, as in chat."""
    if isinstance(body.input, str):
        texts = [("input", body.input)]
    else:
        texts = [
            (f"input[{at}].content", _text(item.content))
            for at, item in enumerate(body.input)
            if isinstance(item, InputMessage) and item.role == "user"
        ]
    house.contract.check_texts(request.scope, texts, ("max_output_tokens", body.max_output_tokens))


def _without_effect(body: ResponsesBody) -> Iterator[str]:
    for name in ("summary", "generate_summary"):
        if getattr(body.reasoning, name, None) is not None:
            yield f"reasoning.{name}"
    for at, asked in enumerate(body.include or ()):
        if asked == ENCRYPTED:
            yield f"include[{at}]"


def _tool_names(body: ResponsesBody) -> dict[str, str]:
    """A tool is a function without a layer between."""
    parts = ("name", "description", "parameters", "strict")
    places = [f"tools[{at}]" for at in range(len(body.tools or ()))]
    return {f"{place}.function.{part}": f"{place}.{part}" for place in places for part in parts}


def messages_of(body: ResponsesBody) -> list[dict[str, Any]]:
    """The conversation, with the instructions as its system message."""
    messages = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    conversation = _Conversation(messages)
    for item in body.input:
        conversation.add(item)
    return conversation.messages


class _Conversation:
    """Items become messages: reasoning and calls belong to one message of the assistant."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self._reasoning = ""

    def add(self, item: InputItem) -> None:
        match item:
            case ReasoningInput(content=content):
                self._reasoning += "".join(part.text for part in content or ())
            case FunctionCall(call_id=call_id, name=name, arguments=arguments):
                function = {"name": name, "arguments": arguments}
                call = {"id": call_id, "type": "function", "function": function}
                self._assistant().setdefault("tool_calls", []).append(call)
            case FunctionCallOutput(call_id=call_id):
                told = {"role": "tool", "tool_call_id": call_id, "content": _text(item.output)}
                self.messages.append(told)
            case InputMessage(role="assistant"):
                self._assistant(new=True)["content"] = _text(item.content)
            case InputMessage(role=role):
                self.messages.append({"role": role, "content": _text(item.content)})

    def _assistant(self, *, new: bool = False) -> dict[str, Any]:
        """The assistant's message that is being told."""
        last = self.messages[-1] if self.messages else {}
        if new or last.get("role") != "assistant":
            last = {"role": "assistant"}
            self.messages.append(last)
        if self._reasoning:
            last["reasoning_content"], self._reasoning = self._reasoning, ""
        return last


def tool_fields(body: ResponsesBody) -> ToolFields:
    """In chat's form. No tools are none, whatever the fields beside them say."""
    if not body.tools:
        needs = body.tool_choice if body.tool_choice != "auto" else None
        return ToolFields(None, "required" if isinstance(needs, FlatNamedTool) else needs, None)
    flat = [one.model_dump(exclude_none=True, exclude={"type"}) for one in body.tools]
    tools = [{"type": "function", "function": function} for function in flat]
    choice = body.tool_choice
    if isinstance(choice, FlatNamedTool):
        return ToolFields(tools, {"function": {"name": choice.name}}, body.parallel_tool_calls)
    return ToolFields(tools, choice, body.parallel_tool_calls)


def _grammar(body: ResponsesBody) -> Grammar | None:
    format = None if body.text is None else body.text.format
    match format:
        case JsonObjectFormat():
            return of_schema(ANY_OBJECT, "text.format")
        case FlatSchemaFormat():
            return of_schema(format.schema_, "text.format.schema")
        case _:
            return None


def _text(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _sampling(body: ResponsesBody) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        priority=body.priority,
        repetition_guard=body.repetition_guard,
        stream=body.stream,
    )


def _options(body: ResponsesBody, sampling: Sampling) -> Options:
    options = options_of(sampling)
    if body.wants_logprobs:
        options["logprobs"] = body.top_logprobs or 0
    if body.max_output_tokens is not None:
        options["max_tokens"] = body.max_output_tokens
    return options


class ResponseAnswer:
    """One reply, in either form."""

    def __init__(self, asked: Asked, body: ResponsesBody, answers: Answers, form: Form) -> None:
        self._model, self._service = asked.model, asked.service
        self._body = body
        self._answers = answers
        self._items = Items(form.reading, self._event)
        self._id = writing.reply_id("resp_", answers.request_id)
        self._created = writing.now()
        self._num_events = 0

    async def whole(self, headers: Mapping[str, str]) -> Response:
        (completion,) = await self._answers.completions()
        self._items.add(completion.text, completion.logprobs)
        self._items.finish(_status(completion))
        timing = writing.server_timing([completion])
        return json_reply(self._response(completion), {**headers, **timing})

    async def events(self) -> AsyncGenerator[bytes, None]:
        items = self._items
        async with aclosing(self._answers.chunks()) as chunks:
            yield self._event("created", response=self._response(None))
            yield self._event("in_progress", response=self._response(None))
            for data in items.begin():
                yield data
            completion = None
            async for _, chunk in chunks:
                for data in items.add(chunk.text, chunk.logprobs):
                    yield data
                completion = chunk.completion
        assert completion is not None, "a stream that ended without a fault has a completion"
        for data in items.finish(_status(completion)):
            yield data
        yield self._event(_status(completion), response=self._response(completion))

    def _event(self, name: str, /, **fields: Any) -> bytes:
        kind = f"response.{name}"
        number = self._num_events
        self._num_events += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _response(self, completion: Completion | None) -> dict[str, Any]:
        """`completion` None: it is in progress."""
        body, cut, used = self._body, None, None
        if completion is not None:
            num_chars = self._items.num_reasoning_chars
            num_reasoning = self._service.num_tokens_of(completion.token_ids, num_chars)
            used = _usage(self._answers.usage, num_reasoning if num_chars else 0)
            if _status(completion) == "incomplete":
                cut = {"reason": "max_output_tokens"}
        format = None if body.text is None else body.text.format
        effort = None if body.reasoning is None else body.reasoning.effort
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None if completion is None else writing.now(),
            "status": "in_progress" if completion is None else _status(completion),
            "background": False,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": [] if completion is None else self._items.done,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": _dumped(format) or {"type": "text"}},
            "tool_choice": _dumped(body.tool_choice) or "auto",
            "tools": [_dumped(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": used,
            **({} if completion is None else self._answers.more()),
        }


def _status(completion: Completion) -> str:
    return (
        "incomplete" if writing.openai_reason(completion.finish.reason) == "length" else "completed"
    )


def _dumped(value: BaseModel | str | None) -> Any:
    """As it was given."""
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value


def _usage(used: StreamUsage, num_reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": used.total_tokens,
    }
