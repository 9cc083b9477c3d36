"""`/v1/messages` and its `count_tokens`: Anthropic's form over what chat does.

Owns: how their bodies become prompts and options, the form of the answer, the order of its events.
May not know: models, engines, the connection.
Read next: `chat.py`, `../blocks.py`, `../wire/messages.py`; `../guard/refusal.py`, where errors get
the form of these routes.

The events: message_start, of each block content_block_start, …_delta, …_stop, then message_delta
with the reason and the usage, message_stop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service
from firsthand.server import writing
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.asides import note_ignored, note_said
from firsthand.server.blocks import Blocks, messages_of, stop_of, text_of, tool_fields
from firsthand.server.forms import Form, form_of, set_grammar, told_messages, tool_use
from firsthand.server.guard.refusal import BLOCKS
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.answering import Draft, Wish, answered
from firsthand.server.routes.submitting import (
    Asked,
    check_grammar,
    effort_of,
    header_options,
    json_reply,
    naming,
)
from firsthand.server.sse import EventStreamResponse, event
from firsthand.server.wire.base import Sampling, options_of
from firsthand.server.wire.messages import (
    BlocksError,
    CountBody,
    CountReply,
    MessageReply,
    MessagesBody,
)
from firsthand.text.effort import Effort
from firsthand.text.tools import ToolUse

MESSAGES = BLOCKS
COUNT = f"{BLOCKS}/count_tokens"
BETA = ("beta",)  # in the query of a client that may ask for more
_NAMES = {"prompt": "messages", "stop": "stop_sequences"}


def messages_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(
        MESSAGES,
        **described(
            MessagesBody,
            MessageReply,
            "Answer in blocks",
            streams=True,
            flags=BETA,
            error_body=BlocksError,
        ),
    )
    async def messages(request: Request) -> Response:
        body = await house.read(request, MessagesBody)
        _check(house, request, body)
        sampling = _sampling(body)

        async def prepare(service: Service) -> Draft[MessageAnswer]:
            options: Options = {**options_of(sampling), **header_options(request)}
            options["max_tokens"] = body.max_tokens
            use = tool_use(house, service, tool_fields(body))
            prompt = await _render(house, request, service, body, use)
            form = form_of(house, service, prompt, use, None)
            set_grammar(options, form)
            await check_grammar(service, options)

            def reply(asked: Asked, answers: Answers) -> MessageAnswer:
                return MessageAnswer(asked, answers, form)

            return Draft([prompt], options, reply, form.keeps_markers)

        with naming(_NAMES):
            begun = await answered(house, request, Wish(MESSAGES, body.model, sampling), prepare)
        if body.stream:
            return EventStreamResponse(begun.reply.events(), house.stream, begun.headers)
        return await unless_gone(request, begun.reply.whole(begun.headers))

    @router.post(
        COUNT,
        **described(
            CountBody,
            CountReply,
            "Count the tokens of messages",
            flags=BETA,
            error_body=BlocksError,
        ),
    )
    async def count_tokens(request: Request) -> Response:
        body = await house.read(request, CountBody)
        _, service = house.find(body.model)
        with naming(_NAMES):
            use = tool_use(house, service, tool_fields(body))
            prompt = await _render(house, request, service, body, use)
        return json_reply({"input_tokens": prompt.num_tokens})

    return router


def _check(house: House, request: Request, body: MessagesBody) -> None:
    """Of what users say, as in chat; who asks is noted where content may be."""
    texts = [
        (f"messages[{at}].content", text_of(message))
        for at, message in enumerate(body.messages)
        if message.role == "user"
    ]
    house.contract.check_texts(request.scope, texts, ("max_tokens", body.max_tokens))
    if house.recorder.records_content and body.metadata is not None:
        note_said(request.scope, "user", body.metadata.user_id)


def _sampling(body: MessagesBody) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        stream=body.stream,
    )


async def _render(
    house: House, request: Request, service: Service, body: CountBody, use: ToolUse | None
) -> Prompt:
    """An answer goes on inside the assistant's message that is the last."""
    messages, tools = told_messages(house, service.model.chat_template, messages_of(body), use)
    thinking = body.thinking
    effort: Effort | None = None
    if thinking is not None:
        effort = "none" if thinking.type == "disabled" else "medium"
        if thinking.budget_tokens is not None:
            note_ignored(request.scope, "thinking.budget_tokens")
    continues = messages[-1]["role"] == "assistant"
    return await service.render(
        messages,
        tools=tools,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        variables=effort_of(request, service, effort, "thinking"),
    )


class MessageAnswer:
    """One reply, in either form."""

    def __init__(self, asked: Asked, answers: Answers, form: Form) -> None:
        self._answers = answers
        self._blocks = Blocks(form.reading, _event)
        self._head = {
            "id": writing.reply_id("msg_", answers.request_id),
            "type": "message",
            "role": "assistant",
            "model": asked.model,
        }

    async def whole(self, headers: Mapping[str, str]) -> Response:
        (completion,) = await self._answers.completions()
        self._blocks.add(completion.text)
        self._blocks.finish()
        reply = {
            **self._head,
            "content": self._blocks.done,
            **self._stop(completion),
            "usage": self._usage(),
            **self._answers.more(),
        }
        return json_reply(reply, {**headers, **writing.server_timing([completion])})

    async def events(self) -> AsyncGenerator[bytes, None]:
        begun: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        completion = None
        async with aclosing(self._answers.chunks()) as chunks:
            yield _event("message_start", message={**begun, "usage": self._usage()})
            async for _, chunk in chunks:
                for data in self._blocks.add(chunk.text):
                    yield data
                completion = chunk.completion
        assert completion is not None, "a stream that ended without a fault has a completion"
        for data in self._blocks.finish():
            yield data
        more = self._answers.more()
        yield _event("message_delta", delta=self._stop(completion), usage=self._usage(), **more)
        yield _event("message_stop")

    def _stop(self, completion: Completion) -> dict[str, str | None]:
        return stop_of(completion, ends_with_calls=self._blocks.ends_with_calls)

    def _usage(self) -> dict[str, int]:
        """What was found in the cache is not counted as input, as Anthropic counts."""
        used = self._answers.usage
        return {
            "input_tokens": used.prompt_tokens - used.cached_tokens,
            "cache_read_input_tokens": used.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": used.completion_tokens,
        }


def _event(name: str, /, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
