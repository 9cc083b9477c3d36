"""`/v1/embeddings`: checked, and refused by name until a model here can give hidden states.

Owns: its body. May not know: models.
Read next: `../guard/refusal.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from firsthand.server.body import read_body
from firsthand.server.guard.refusal import Refused
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.wire.base import Name, Strict
from firsthand.server.wire.completions import PromptInput


class EmbeddingsBody(Strict):
    input: PromptInput
    model: Name | None = None
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Name | None = None


def embeddings_router(house: House) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/embeddings",
        **described(EmbeddingsBody, None, "Not supported by the models here: always an error"),
    )
    async def embeddings(request: Request) -> Response:
        body = await read_body(request, EmbeddingsBody, house.body_limits)
        model, _ = house.find(body.model)
        message = f"model: {model!r} generates text; its engine gives out no hidden states to pool"
        raise Refused(400, message, "unsupported_parameter", "model")

    return router
