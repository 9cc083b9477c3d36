"""`/v1/chat/completions`, streamed and not, and its render.

Owns: how a chat body becomes a prompt and options, and the form of its answers.
May not know: models, engines, the connection.
Read next: `../answers.py`, `../writing.py`, `completions.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.errors import InvalidRequest
from firsthand.generation.completion import Chunk, Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service
from firsthand.server import writing
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.fingerprint import fingerprint
from firsthand.server.forms import (
    ChoiceReader,
    Form,
    chat_grammar,
    chat_tools,
    finish_of,
    form_of,
    message_of,
    set_grammar,
    told_messages,
    tool_use,
)
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.answering import Draft, Wish, answered
from firsthand.server.routes.submitting import (
    Asked,
    check_grammar,
    cut,
    effort_of,
    header_options,
    json_reply,
    naming,
    note_asides,
)
from firsthand.server.sse import DONE, EventStreamResponse, event
from firsthand.server.wire.base import options_of, tier_options
from firsthand.server.wire.chat import (
    ChatBody,
    ChatMessage,
    ChatReply,
    ChatTemplateInput,
    Content,
    RenderReply,
)
from firsthand.server.wire.replies import InputTokens
from firsthand.text.tools import ToolUse

CHAT = "/v1/chat/completions"
RENDER = "/v1/chat/completions/render"
INPUT_TOKENS = "/v1/chat/completions/input_tokens"
REASONING_EFFORT = "reasoning_effort"


def chat_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(CHAT, **described(ChatBody, ChatReply, "Answer a conversation", streams=True))
    async def chat(request: Request) -> Response:
        body = await house.read(request, ChatBody)
        _check_contract(house, request, body)
        note_asides(house, request, body)

        async def prepare(service: Service) -> Draft[ChatAnswer]:
            given: Options = {**tier_options(body), **chat_options(body)}
            options: Options = {**given, **header_options(request)}
            use = tool_use(house, service, chat_tools(body))
            grammar = chat_grammar(body, use)
            effort = effort_of(request, service, body.reasoning_effort, REASONING_EFFORT)
            prompt = await render(house, service, body, use, effort)
            prompt = cut(prompt, service, body, options)
            form = form_of(house, service, prompt, use, grammar)
            if body.include_reasoning is False:
                form = replace(form, reasoning_fields=())
            set_grammar(options, form)
            await check_grammar(service, options)

            def reply(asked: Asked, answers: Answers) -> ChatAnswer:
                return ChatAnswer(asked, body, answers, form)

            return Draft([prompt], options, reply, form.keeps_markers)

        with naming(
            {
                "max_tokens": _limit_name(body),
                "prompt": "messages",
                "ignore_end": "ignore_eos",
            }
        ):
            begun = await answered(house, request, Wish(CHAT, body.model, body), prepare)
        if body.stream:
            return EventStreamResponse(begun.reply.events(), house.stream, begun.headers)
        return await unless_gone(request, begun.reply.whole(begun.headers))

    @router.post(RENDER, **described(ChatBody, RenderReply, "Show the prompt of a conversation"))
    async def rendered(request: Request) -> Response:
        body = await house.read(request, ChatBody)
        service, prompt = await _only_rendered(house, request, body)
        return json_reply(
            {
                "prompt": prompt.text,
                "token_ids": prompt.token_ids,
                "count": prompt.num_tokens,
                "max_model_len": service.model.context_length,
            }
        )

    @router.post(INPUT_TOKENS, **described(ChatBody, InputTokens, "Count a conversation's tokens"))
    async def input_tokens(request: Request) -> Response:
        body = await house.read(request, ChatBody)
        _, prompt = await _only_rendered(house, request, body)
        kind = "chat.completion.input_tokens"
        return json_reply({"object": kind, "input_tokens": prompt.num_tokens})

    return router


async def _only_rendered(house: House, request: Request, body: ChatBody) -> tuple[Service, Prompt]:
    """As it would be asked; no engine is needed for it."""
    _, service = house.find(body.model)
    with naming({"prompt": "messages"}):
        effort = effort_of(request, service, body.reasoning_effort, REASONING_EFFORT)
        use = tool_use(house, service, chat_tools(body))
        return service, await render(house, service, body, use, effort)


def _check_contract(house: House, request: Request, body: ChatBody) -> None:
    """Of what users say: the rest is the operator's own, or the model's."""
    texts = [
        (f"messages[{number}].content", _text(message.content))
        for number, message in enumerate(body.messages)
        if message.role == "user"
    ]
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    house.contract.check_texts(request.scope, texts, (_limit_name(body), limit))


def _text(content: Content | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or ())


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """As a template sees them: what is null is not there."""
    return [message.model_dump(exclude_none=True) for message in messages]


async def render(
    house: House,
    service: Service,
    body: ChatTemplateInput,
    use: ToolUse | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Prompt:
    """`variables` are the template's, where the body does not set them itself."""
    continues = bool(body.continue_final_message)
    adds = body.add_generation_prompt
    if adds and continues:
        raise InvalidRequest("continue_final_message", "not together with add_generation_prompt")
    template = service.model.chat_template
    messages, tools = told_messages(house, template, plain_messages(body.messages), use)
    return await service.render(
        messages,
        add_generation_prompt=not continues if adds is None else adds,
        continue_final_message=continues,
        tools=tools,
        variables={**(variables or {}), **(body.chat_template_kwargs or {})},
    )


def chat_options(body: ChatBody) -> Options:
    options = options_of(body)
    if body.add_special_tokens:
        raise InvalidRequest("add_special_tokens", "the chat template writes them")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs", "needs logprobs: true")
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise InvalidRequest("max_completion_tokens", "is another number than max_tokens")
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit is not None:
        options["max_tokens"] = limit
    return options


def _limit_name(body: ChatBody) -> str:
    return "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"


class ChatAnswer:
    """One reply, in either form."""

    def __init__(self, asked: Asked, body: ChatBody, answers: Answers, form: Form) -> None:
        self._service = asked.service
        self._body = body
        self._answers = answers
        self._form = form
        self._num_reasoning = 0
        self._readers = [ChoiceReader(form) for _ in range(answers.num_choices)]
        head = {"id": writing.reply_id("chatcmpl-", answers.request_id), "created": writing.now()}
        made_by = fingerprint(asked.service, asked.model)
        self._head = {**head, "model": asked.model, "system_fingerprint": made_by}
        self._chunk_head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk"}
        if body.wants_usage_chunk:  # every other chunk has it as null, as OpenAI's do
            self._chunk_head["usage"] = None

    async def whole(self, headers: Mapping[str, str]) -> Response:
        completions = await self._answers.completions()
        reply: dict[str, Any] = {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, one) for index, one in enumerate(completions)],
        }
        reply["usage"] = writing.usage(self._answers.usage, self._num_reasoning)
        if self._body.return_token_ids:
            reply["prompt_token_ids"] = self._answers.prompt_token_ids[0]
        if self._body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = writing.prompt_logprobs(completions[0].prompt_logprobs)
        if self._body.wants_timings:
            reply["timings"] = writing.timings(completions[0])
        reply |= self._answers.more()
        return json_reply(reply, {**headers, **writing.server_timing(completions)})

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        message, answer = message_of(completion, self._form)
        self._count_reasoning(completion, answer.num_reasoning_chars)
        choice = {
            "index": index,
            "message": message,
            "logprobs": writing.chat_logprobs(completion.logprobs),
            **finish_of(completion, ends_with_calls=answer.ends_with_calls),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._answers.chunks()) as chunks:
            for index in range(self._answers.num_choices):
                yield self._first(index)
            async for index, chunk in chunks:
                reader = self._readers[index]
                delta = reader.add(chunk.text, ended=chunk.completion is not None)
                if chunk.completion is not None:
                    self._count_reasoning(chunk.completion, reader.num_reasoning_chars)
                if delta or self._says_something(chunk):
                    yield self._event(index, chunk, delta)
        if self._body.wants_usage_chunk:
            used = writing.usage(self._answers.usage, self._num_reasoning)
            yield event({**self._chunk_head, "choices": [], "usage": used})
        yield DONE

    def _first(self, index: int) -> bytes:
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        value = {**self._chunk_head, "choices": [choice]}
        if self._body.return_token_ids:
            value["prompt_token_ids"] = self._answers.prompt_token_ids[0]
        return event(self._with_usage(value))

    def _says_something(self, chunk: Chunk) -> bool:
        wants_tokens = self._body.logprobs or self._body.return_token_ids
        return bool(chunk.completion or (wants_tokens and chunk.token_ids))

    def _count_reasoning(self, completion: Completion, num_chars: int) -> None:
        if num_chars:
            self._num_reasoning += self._service.num_tokens_of(completion.token_ids, num_chars)

    def _event(self, index: int, chunk: Chunk, delta: dict[str, Any]) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": writing.chat_logprobs(chunk.logprobs),
            **finish_of(chunk.completion, ends_with_calls=self._readers[index].ends_with_calls),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = chunk.token_ids
        value = {**self._chunk_head, "choices": [choice]}
        if chunk.completion is not None and self._body.wants_timings:
            value["timings"] = writing.timings(chunk.completion)
        if chunk.completion is not None:
            value |= self._answers.more()
        return event(self._with_usage(value))

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """So far, where each chunk is to have it."""
        if self._body.wants_usage_always:
            chunk["usage"] = writing.usage(self._answers.usage, self._num_reasoning)
        return chunk
