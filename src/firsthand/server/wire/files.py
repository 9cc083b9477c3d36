"""The replies of `/v1/files`, and how long a caller wants a file to stay.

Owns: their fields. May not know: routes, folders.
Read next: `../routes/files.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from firsthand.server.wire.base import Reply, Strict

LEAST_KEPT_S, MOST_KEPT_S = 3600, 30 * 86400
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": LEAST_KEPT_S,
                            "maximum": MOST_KEPT_S,
                        },
                    },
                }
            }
        },
    }
}


class ExpiresAfter(Strict):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_KEPT_S, le=MOST_KEPT_S)]


class FileReply(Reply):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class FileList(Reply):
    object: Literal["list"]
    data: list[FileReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Reply):
    id: str
    object: Literal["file"]
    deleted: Literal[True]
