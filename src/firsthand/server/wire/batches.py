"""The bodies and replies of `/v1/batches`.

Owns: their fields. May not know: routes, how a batch is carried out.
Read next: `../routes/batches.py`; `../../data/batch.py`, the lines of its files.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from firsthand.data.engines import ROUTES
from firsthand.server.wire.base import Reply, Strict
from firsthand.server.wire.files import ExpiresAfter

Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class BatchBody(Strict):
    input_file_id: Annotated[str, Field(max_length=128)]
    endpoint: ROUTES
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(Reply):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(Reply):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Reply):
    total: int
    completed: int
    failed: int


class BatchReply(Reply):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating",
        "in_progress",
        "finalizing",
        "completed",
        "failed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(Reply):
    object: Literal["list"]
    data: list[BatchReply]
    first_id: str | None
    last_id: str | None
    has_more: bool
