"""The body and the reply of `/predict`: several texts in, several texts out, one clock.

Owns: its fields, and which options it takes. May not know: routes.
Read next: `../routes/predict.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from firsthand.request import MAX_SEED, MAX_TOP_K, MIN_REPETITION_PENALTY
from firsthand.server.wire.base import MAX_TOKENS, Name, Reply, StopString, Strict
from firsthand.text.stops import MAX_STOPS

MAX_INPUTS = 256
DEFAULT_MAX_LENGTH = 512  # where the contract says nothing of it


class PredictOptions(Strict):
    """The white list; anything else is refused by name. `max_length` counts new tokens; its range
    is the contract's, and so is what a text or an id has to be."""

    model: Name | None = None
    max_length: Annotated[int, Field(ge=-MAX_TOKENS, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None


class PredictBody(Strict):
    request_id: Annotated[str, Field(max_length=128)]
    inputs: Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
    options: PredictOptions | None = None


class PredictReply(Reply):
    request_id: str
    outputs: list[str]
    latency_ms: float
