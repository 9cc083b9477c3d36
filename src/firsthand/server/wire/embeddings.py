"""The body and the reply of `/v1/embeddings`, in OpenAI's form.

Owns: its fields. May not know: routes, how a vector is made.
Read next: `../routes/embeddings.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from firsthand.server.wire.base import Name, PriorityInput, Reply, Strict
from firsthand.server.wire.completions import PromptInput

MAX_DIMENSIONS = 65_536


class EmbeddingsBody(Strict):
    """`encoding_format` is float unless given; the official client asks for base64."""

    input: PromptInput
    model: Name | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Name | None = None
    priority: PriorityInput | None = None


class Vector(Reply):
    """`embedding` in base64 is float32, the lowest byte first."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(Reply):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(Reply):
    id: str
    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: EmbeddingsUsage
