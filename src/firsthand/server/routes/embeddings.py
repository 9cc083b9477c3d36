"""`/v1/embeddings`: one vector for each text, or list of token ids.

Owns: how its body becomes prompts to pool, and the form of its reply.
May not know: how a vector is made (`../../generation/embedding.py`), the connection.
Read next: `../answers.py`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.generation.completion import Completion
from firsthand.generation.embedding import Shape
from firsthand.generation.options import Options
from firsthand.generation.service import Prompt
from firsthand.server import writing
from firsthand.server.answers import unless_gone
from firsthand.server.headers import request_id_of
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.completions import read_prompts
from firsthand.server.routes.submitting import Asked, header_options, json_reply, naming, submit
from firsthand.server.wire.base import Sampling, priority_of
from firsthand.server.wire.embeddings import EmbeddingsBody, EmbeddingsReply

EMBEDDINGS = "/v1/embeddings"
WINDOW = 64


def embeddings_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(EMBEDDINGS, **described(EmbeddingsBody, EmbeddingsReply, "Vectors of texts"))
    async def embeddings(request: Request) -> Response:
        body = await house.read(request, EmbeddingsBody)
        model, service = await house.enter(request, body.model)
        with naming({"prompt": "input"}):
            shape = Shape(service.model.width, house.pooling, dimensions=body.dimensions)
            options: Options = {**_options(body), **header_options(request)}
            prompts = await read_prompts(service, body.input, "input")
            asked = Asked(EMBEDDINGS, model, service, Sampling(), pooling=shape.pooling)
            completions = await _completions(house, request, asked, prompts, options)
        num_tokens = sum(prompt.num_tokens for prompt in prompts)
        reply = {
            "id": writing.reply_id("embd-", request_id_of(request.scope)),
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _vector(shape, one, body)}
                for index, one in enumerate(completions)
            ],
            "model": model,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        return json_reply(reply, writing.manifest(service) | writing.server_timing(completions))

    return router


async def _completions(
    house: House, request: Request, asked: Asked, prompts: Sequence[Prompt], options: Options
) -> list[Completion]:
    """Some at a time: a long list is not to fill the queue."""
    found: list[Completion] = []
    window = min(WINDOW, house.admission.most_at_once(asked.service))
    for start in range(0, len(prompts), window):
        some = prompts[start : start + window]
        answers = submit(house, request, asked, some, options)
        found += await unless_gone(request, answers.completions())
    return found


def _options(body: EmbeddingsBody) -> Options:
    options: Options = {"max_tokens": 0}
    if body.priority is not None:
        options["priority"] = priority_of(body.priority)
    return options


def _vector(shape: Shape, completion: Completion, body: EmbeddingsBody) -> Any:
    values = shape.vector(completion)
    if body.encoding_format == "base64":
        return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")
    return values.tolist()
