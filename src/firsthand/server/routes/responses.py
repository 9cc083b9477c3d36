"""`/v1/responses`, for text, streamed and not. Nothing is stored.

Owns: how its body becomes a conversation, the form of its answer, the order of its events.
May not know: models, engines, the connection.
Read next: `chat.py`, `../answers.py`, `../wire/responses.py`.

The events: created, in_progress, output_item.added, content_part.added, output_text.delta …,
output_text.done, content_part.done, output_item.done, completed (or incomplete). Each has its
`type` and a `sequence_number` that counts from 0. There is no [DONE].
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.generation.completion import Completion, TokenLogprob
from firsthand.generation.options import Options
from firsthand.generation.service import StreamUsage
from firsthand.server import writing
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.body import read_body
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.chat import set_limit
from firsthand.server.routes.submitting import Asked, header_options, json_reply, naming, submit
from firsthand.server.sse import EventStreamResponse, event
from firsthand.server.wire.base import Sampling, options_of
from firsthand.server.wire.responses import InputMessage, ResponsesBody, ResponsesReply

RESPONSES = "/v1/responses"


def responses_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(
        RESPONSES, **described(ResponsesBody, ResponsesReply, "Answer with text", streams=True)
    )
    async def responses(request: Request) -> Response:
        body = await read_body(request, ResponsesBody, house.body_limits)
        model, service = house.find(body.model)
        with naming({"max_tokens": "max_output_tokens", "prompt": "input", "messages": "input"}):
            sampling = _sampling(body)
            options: Options = {**_options(body, sampling), **header_options(request)}
            prompt = await service.render(messages_of(body))
            set_limit(options, service, prompt)
            asked = Asked(RESPONSES, model, service, sampling)
            answers = submit(house, request, asked, [prompt], options)
        reply = ResponseAnswer(model, body, answers)
        if body.stream:
            return EventStreamResponse(reply.events(), house.stream, writing.manifest(service))
        return await unless_gone(request, reply.whole(writing.manifest(service)))

    return router


def messages_of(body: ResponsesBody) -> list[dict[str, Any]]:
    """The conversation, with the instructions as its system message."""
    messages = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    return messages + [{"role": one.role, "content": _text(one)} for one in body.input]


def _text(message: InputMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def _sampling(body: ResponsesBody) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        priority=body.priority,
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

    def __init__(self, model: str, body: ResponsesBody, answers: Answers) -> None:
        self._model = model
        self._body = body
        self._answers = answers
        self._id = writing.new_id("resp_")
        self._item_id = writing.new_id("msg_")
        self._created = writing.now()
        self._num_events = 0

    async def whole(self, headers: Mapping[str, str]) -> Response:
        completions = await self._answers.completions()
        timing = writing.server_timing(completions)
        return json_reply(self._response(completions[0]), {**headers, **timing})

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._answers.chunks()) as chunks:
            yield self._event("created", response=self._response(None))
            yield self._event("in_progress", response=self._response(None))
            item = self._item("in_progress", [])
            yield self._event("output_item.added", output_index=0, item=item)
            yield self._event("content_part.added", **self._place(), part=_part("", None))
            completion = None
            async for _, chunk in chunks:
                if chunk.text or chunk.logprobs:
                    logprobs = _logprobs(chunk.logprobs)
                    yield self._event(
                        "output_text.delta", **self._place(), delta=chunk.text, logprobs=logprobs
                    )
                completion = chunk.completion
        assert completion is not None, "a stream that ended without a fault has a completion"
        for data in self._ending(completion):
            yield data

    def _ending(self, completion: Completion) -> Sequence[bytes]:
        part = _part(completion.text, completion.logprobs)
        item = self._item(_status(completion), [part])
        place = self._place()
        done = {"text": completion.text, "logprobs": part["logprobs"]}
        return (
            self._event("output_text.done", **place, **done),
            self._event("content_part.done", **place, part=part),
            self._event("output_item.done", output_index=0, item=item),
            self._event(_status(completion), response=self._response(completion)),
        )

    def _event(self, name: str, **fields: Any) -> bytes:
        kind = f"response.{name}"
        number = self._num_events
        self._num_events += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self._item_id,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _response(self, completion: Completion | None) -> dict[str, Any]:
        """`completion` None: it is in progress."""
        body, output, cut = self._body, [], None
        if completion is not None:
            part = _part(completion.text, completion.logprobs)
            output = [self._item(_status(completion), [part])]
            if _status(completion) == "incomplete":
                cut = {"reason": "max_output_tokens"}
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
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None if completion is None else _usage(self._answers.usage),
        }


def _status(completion: Completion) -> str:
    return "incomplete" if completion.finish.reason.openai == "length" else "completed"


def _part(text: str, logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any]:
    found = _logprobs(logprobs)
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": found}


def _logprobs(entries: Sequence[TokenLogprob] | None) -> list[dict[str, Any]]:
    found = writing.chat_logprobs(entries)
    content: list[dict[str, Any]] = [] if found is None else found["content"]
    return content


def _usage(used: StreamUsage) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.total_tokens,
    }
