"""`/v1/completions`: texts or token ids go on, one or many, streamed and not.

Owns: how its body becomes prompts and options, and the form of its answers (echo included).
May not know: models, engines, the connection.
Read next: `../answers.py`, `../writing.py`, `chat.py`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.errors import InvalidRequest
from firsthand.generation.completion import Chunk, Completion, TokenLogprob
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt, Service
from firsthand.server import writing
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.fingerprint import fingerprint
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.answering import Draft, Wish, answered
from firsthand.server.routes.submitting import (
    Asked,
    check_grammar,
    cut,
    header_options,
    json_reply,
    naming,
    note_asides,
)
from firsthand.server.sse import DONE, EventStreamResponse, event
from firsthand.server.wire.base import options_of, tier_options
from firsthand.server.wire.completions import OPENAI_MAX_TOKENS, CompletionBody, CompletionReply
from firsthand.text.tokenizer import Infill
from firsthand.values import dataclass

COMPLETIONS = "/v1/completions"


def completions_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(
        COMPLETIONS, **described(CompletionBody, CompletionReply, "Continue a text", streams=True)
    )
    async def completions(request: Request) -> Response:
        body = await house.read(request, CompletionBody)
        _check_contract(house, request, body)
        note_asides(house, request, body)

        async def prepare(service: Service) -> Draft[CompletionAnswer]:
            given: Options = {**tier_options(body), **completion_options(body)}
            options: Options = {**given, **header_options(request)}
            prompts = await _prompts(service, body, options)
            echoes = await _echoes(service, prompts) if body.echo else None
            await check_grammar(service, options)

            def reply(asked: Asked, answers: Answers) -> CompletionAnswer:
                return CompletionAnswer(asked, body, answers, echoes)

            return Draft(prompts, options, reply)

        with naming({"ignore_end": "ignore_eos"}):
            begun = await answered(house, request, Wish(COMPLETIONS, body.model, body), prepare)
        if body.stream:
            return EventStreamResponse(begun.reply.events(), house.stream, begun.headers)
        return await unless_gone(request, begun.reply.whole(begun.headers))

    return router


def _check_contract(house: House, request: Request, body: CompletionBody) -> None:
    given = body.prompt
    prompts = [("prompt", given)] if isinstance(given, str) else _placed(given)
    texts = [(place, text) for place, text in prompts if isinstance(text, str)]
    if len(texts) < len(prompts):
        house.contract.refuse_ids(request.scope, "prompt")
    if body.suffix is not None:
        texts.append(("suffix", body.suffix))
    house.contract.check_texts(request.scope, texts, ("max_tokens", body.max_tokens))


def _placed(given: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"prompt[{number}]", one) for number, one in enumerate(given)]


async def _prompts(service: Service, body: CompletionBody, options: Options) -> list[Prompt]:
    """A prompt that was cut has no text: its echo is that of its tokens."""
    cuts = body.truncate_prompt_tokens is not None
    limit = sys.maxsize if cuts else 0
    add_bos = False if body.add_special_tokens is False else None
    if body.suffix is not None:
        infills = _infills(body, body.suffix)
        return [await service.tokenize(one, add_bos=add_bos) for one in infills]
    prompts = await read_prompts(service, body.prompt, "prompt", add_bos=add_bos, limit=limit)
    if not cuts:
        return prompts
    shorter = [cut(one, service, body, options) for one in prompts]
    return [
        one if short is one else replace(short, text=None)
        for one, short in zip(prompts, shorter, strict=True)
    ]


def _infills(body: CompletionBody, suffix: str) -> list[Infill]:
    """Raises InvalidRequest for what has no meaning where the answer belongs between two texts."""
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) < len(given):
        raise InvalidRequest("suffix", "goes with a prompt that is text, not token ids")
    if body.echo:
        raise InvalidRequest("echo", "must be false with suffix: the answer follows no text")
    if body.truncate_prompt_tokens is not None:
        raise InvalidRequest("truncate_prompt_tokens", "must be absent with suffix")
    return [Infill(text, suffix) for text in texts]


async def read_prompts(
    service: Service,
    given: str | list[str] | list[int] | list[list[int]],
    field: str,
    *,
    add_bos: bool | None = None,
    limit: int = 0,
) -> list[Prompt]:
    """One prompt per text, or per list of ids; see `Service.tokenize`. Raises InvalidRequest,
    naming the id's place."""
    if isinstance(given, str):
        return [await service.tokenize(given, add_bos=add_bos, limit=limit)]
    prompts = []
    ids: list[int] = []
    for item in given:
        if isinstance(item, int):
            ids.append(item)
        elif isinstance(item, str):
            prompts.append(await service.tokenize(item, add_bos=add_bos, limit=limit))
        else:
            prompts.append(service.prompt_of(item, f"{field}[{len(prompts)}]"))
    return [service.prompt_of(ids, field)] if ids else prompts


def completion_options(body: CompletionBody) -> Options:
    options = options_of(body)
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
        if body.echo:
            _check_echo(body)
            options["prompt_logprobs"] = body.logprobs
    options["max_tokens"] = OPENAI_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    return options


def _check_echo(body: CompletionBody) -> None:
    if body.prompt_logprobs not in (None, body.logprobs):
        raise InvalidRequest("prompt_logprobs", "with echo, as many as logprobs")
    if body.stream and (body.n or 1) > 1:
        raise InvalidRequest("n", "must be 1 in a stream that has an echo with logprobs")


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is given back: its text, and the bytes of its first token."""

    text: str
    first_token: bytes


async def _echoes(service: Service, prompts: Sequence[Prompt]) -> list[Echo]:
    return [
        Echo(
            await service.detokenize(prompt.token_ids) if prompt.text is None else prompt.text,
            b"".join(map(service.token_bytes, prompt.token_ids[:1])),
        )
        for prompt in prompts
    ]


class CompletionAnswer:
    """One reply, in either form. `echoes` are those of the prompts, where they come first."""

    def __init__(
        self, asked: Asked, body: CompletionBody, answers: Answers, echoes: Sequence[Echo] | None
    ) -> None:
        self._body = body
        self._scores_echo = echoes is not None and body.logprobs is not None
        self._answers = answers
        self._n = body.n or 1
        self._echoes = echoes
        self._head: dict[str, Any] = {
            "id": writing.reply_id("cmpl-", answers.request_id),
            "object": "text_completion",
            "created": writing.now(),
            "model": asked.model,
            "system_fingerprint": fingerprint(asked.service, asked.model),
        }
        if body.wants_usage_chunk:  # every other chunk has it as null, as OpenAI's do
            self._head["usage"] = None
        self._places = [
            writing.Places(len(self._echo(index))) for index in range(answers.num_choices)
        ]

    def _echo(self, index: int) -> str:
        return "" if self._echoes is None else self._echoes[index // self._n].text

    def _echo_logprobs(
        self, index: int, entries: Sequence[TokenLogprob | None]
    ) -> dict[str, Any] | None:
        if self._echoes is None or not self._scores_echo:
            return None
        echo = self._echoes[index // self._n]
        return writing.echo_logprobs(echo.text, echo.first_token, entries)

    async def whole(self, headers: Mapping[str, str]) -> Response:
        completions = await self._answers.completions()
        reply: dict[str, Any] = {
            **self._head,
            "choices": [
                self._choice(index, one, completions[index - index % self._n])
                for index, one in enumerate(completions)
            ],
            "usage": writing.usage(self._answers.usage),
        }
        if self._body.wants_timings:
            reply["timings"] = writing.timings(completions[0])
        reply |= self._answers.more()
        return json_reply(reply, {**headers, **writing.server_timing(completions)})

    def _choice(self, index: int, completion: Completion, first: Completion) -> dict[str, Any]:
        """`first` of the prompt's answers is the one that tells of the prompt."""
        text = self._echo(index) + completion.text
        logprobs = writing.completion_logprobs(
            completion.logprobs, self._places[index], end=len(text)
        )
        echoed = self._echo_logprobs(index, first.prompt_logprobs or ())
        if logprobs is not None and echoed is not None:
            logprobs = {name: echoed[name] + logprobs[name] for name in logprobs}
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            **writing.finish(completion),
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = writing.prompt_logprobs(first.prompt_logprobs)
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = self._answers.prompt_token_ids[index // self._n]
            choice["token_ids"] = completion.token_ids
        return choice

    async def events(self) -> AsyncGenerator[bytes, None]:
        is_first = self._echoes is not None or self._body.return_token_ids
        scores: dict[int, list[TokenLogprob | None]] = {}
        async with aclosing(self._answers.chunks()) as chunks:
            for index in range(self._answers.num_choices):
                if self._scores_echo:
                    scores[index] = []  # its first chunk waits for them
                elif is_first:
                    yield self._first(index)
            async for index, chunk in chunks:
                if index in scores:
                    scores[index] += chunk.prompt_logprobs or ()
                    if chunk.token_ids or chunk.completion:
                        yield self._first(index, scores.pop(index))
                if self._says_something(chunk):
                    yield self._event(index, chunk)
        if self._body.wants_usage_chunk:
            used = writing.usage(self._answers.usage)
            yield event({**self._head, "choices": [], "usage": used})
        yield DONE

    def _first(self, index: int, scores: Sequence[TokenLogprob | None] = ()) -> bytes:
        """What is known before the first token: the echo, the prompt's ids and scores."""
        choice: dict[str, Any] = {
            "index": index,
            "text": self._echo(index),
            "logprobs": self._echo_logprobs(index, scores),
            "finish_reason": None,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = self._answers.prompt_token_ids[index // self._n]
        return event(self._with_usage({**self._head, "choices": [choice]}))

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """So far, where each chunk is to have it."""
        if self._body.wants_usage_always:
            chunk["usage"] = writing.usage(self._answers.usage)
        return chunk

    def _says_something(self, chunk: Chunk) -> bool:
        wants_tokens = self._body.logprobs is not None or self._body.return_token_ids
        return bool(chunk.text or chunk.completion or (wants_tokens and chunk.token_ids))

    def _event(self, index: int, chunk: Chunk) -> bytes:
        ended = chunk.completion
        end = None if ended is None else len(self._echo(index)) + len(ended.text)
        logprobs = writing.completion_logprobs(chunk.logprobs, self._places[index], end=end)
        choice: dict[str, Any] = {
            "index": index,
            "text": chunk.text,
            "logprobs": logprobs,
            **writing.finish(chunk.completion),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = chunk.token_ids
        value = {**self._head, "choices": [choice]}
        if chunk.completion is not None and self._body.wants_timings:
            value["timings"] = writing.timings(chunk.completion)
        if chunk.completion is not None:
            value |= self._answers.more()
        return event(self._with_usage(value))
