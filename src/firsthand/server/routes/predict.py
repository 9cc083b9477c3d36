"""`/predict`: a request id, texts and options in; texts and the time that they took out.

Owns: its reply, in JSON or in MessagePack as the body came.
May not know: models, engines.
Read next: `../wire/predict.py`.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.generation.options import Options
from firsthand.generation.service import Service
from firsthand.server import writing
from firsthand.server.answers import Answers, unless_gone
from firsthand.server.body import MESSAGE_PACK, read_body, wants_message_pack
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.answering import Draft, Wish, answered
from firsthand.server.routes.submitting import header_options, json_reply, naming
from firsthand.server.wire.base import Sampling
from firsthand.server.wire.predict import (
    DEFAULT_MAX_LENGTH,
    PredictBody,
    PredictOptions,
    PredictReply,
)

PREDICT = "/predict"
_NAMES = ("temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop")


def predict_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(
        PREDICT, **described(PredictBody, PredictReply, "Answer texts", also=(MESSAGE_PACK,))
    )
    async def predict(request: Request) -> Response:
        started_s = time.perf_counter()
        body = await read_body(request, PredictBody, house.body_limits, message_pack=True)
        given = body.options or PredictOptions()
        texts, max_tokens = _checked(house, request, body, given)

        async def prepare(service: Service) -> Draft[Answers]:
            prompts = [await service.tokenize(text) for text in texts]
            options: Options = {**predict_options(given, max_tokens), **header_options(request)}
            return Draft(prompts, options, lambda asked, answers: answers)

        with naming(
            {name: f"options.{name}" for name in (*_NAMES, "model")}
            | {"prompt": "inputs", "max_tokens": "options.max_length"}
        ):
            begun = await answered(house, request, Wish(PREDICT, given.model, Sampling()), prepare)
        completions = await unless_gone(request, begun.reply.completions())
        reply = {
            "request_id": body.request_id,
            "outputs": [completion.text for completion in completions],
            "latency_ms": (time.perf_counter() - started_s) * 1e3,
        }
        headers = begun.headers | writing.server_timing(completions)
        if wants_message_pack(request):
            return Response(msgspec.msgpack.encode(reply), 200, headers, MESSAGE_PACK)
        return json_reply(reply, headers)

    return router


def _checked(
    house: House, request: Request, body: PredictBody, given: PredictOptions
) -> tuple[list[str], int]:
    """The texts, each by the contract, and how many new tokens are wanted. Raises Refused."""
    texts: list[str] = []
    max_length = given.max_length
    for number, text in enumerate(body.inputs):
        record: dict[str, Any] = {"request_id": body.request_id, "text": text}
        if given.max_length is not None:
            record["max_length"] = given.max_length
        places = {"text": f"inputs[{number}]", "max_length": "options.max_length"}
        values = house.contract.check(request.scope, record, places)
        texts.append(values["text"])
        max_length = values.get("max_length", given.max_length)
    return texts, DEFAULT_MAX_LENGTH if max_length is None else max_length


def predict_options(given: PredictOptions, max_tokens: int) -> Options:
    named: dict[str, Any] = {name: getattr(given, name) for name in _NAMES}
    options: Options = {}
    options.update({name: value for name, value in named.items() if value is not None})  # type: ignore[typeddict-item]
    options["max_tokens"] = max_tokens
    return options
