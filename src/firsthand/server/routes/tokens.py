"""`/tokenize` and `/detokenize`: text to ids and back, without an engine.

Owns: which texts they take. May not know: vocabularies.
Read next: `../wire/tokens.py`.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.errors import InvalidRequest
from firsthand.generation.service import Prompt, Service
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.chat import render
from firsthand.server.routes.submitting import json_reply, naming
from firsthand.server.wire.chat import ChatTemplateInput
from firsthand.server.wire.tokens import (
    DetokenizeBody,
    DetokenizeReply,
    TokenizeBody,
    TokenizeReply,
)


def tokens_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", **described(TokenizeBody, TokenizeReply, "Text to token ids"))
    async def tokenize(request: Request) -> Response:
        body = await house.read(request, TokenizeBody)
        _, service = house.find(body.model)
        prompt = await _prompt(house, service, body)
        texts = None
        if body.return_token_strs:
            texts = [service.token_text(token_id) for token_id in prompt.token_ids]
        return json_reply(
            {
                "count": prompt.num_tokens,
                "max_model_len": service.model.context_length,
                "tokens": prompt.token_ids,
                "token_strs": texts,
            }
        )

    @router.post("/detokenize", **described(DetokenizeBody, DetokenizeReply, "Token ids to text"))
    async def detokenize(request: Request) -> Response:
        body = await house.read(request, DetokenizeBody)
        _, service = house.find(body.model)
        with naming({"token_ids": "tokens"}):
            text = await service.detokenize(body.tokens)
        return json_reply({"prompt": text})

    return router


async def _prompt(house: House, service: Service, body: TokenizeBody) -> Prompt:
    if body.prompt is not None and body.messages is None:
        _only_for_messages(body)
        add_bos = False if body.add_special_tokens is False else None
        return await service.tokenize(body.prompt, add_bos=add_bos)
    if body.messages is None or body.prompt is not None:
        raise InvalidRequest("prompt", "exactly one of prompt and messages is needed")
    if body.add_special_tokens:
        raise InvalidRequest("add_special_tokens", "the chat template writes them")
    with naming({"prompt": "messages"}):
        return await render(
            house,
            service,
            ChatTemplateInput(
                messages=body.messages,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
            ),
        )


def _only_for_messages(body: TokenizeBody) -> None:
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(body, name) is not None:
            raise InvalidRequest(name, "goes with messages, not with a prompt")
