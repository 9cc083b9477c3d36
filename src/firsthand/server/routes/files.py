"""`/v1/files`: what a caller keeps here for batches, and what those have made.

Owns: the fields of an upload, these routes, the pages of a list.
May not know: where a file lies.
Read next: `../stored/files.py`; `../stored/multipart.py`, the form of an upload.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Protocol

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from firsthand.server.guard.call import call_of
from firsthand.server.guard.incoming import Incoming, declared_bytes
from firsthand.server.guard.refusal import Refused
from firsthand.server.headers import at_end
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.submitting import json_reply
from firsthand.server.stored.batches import PURPOSE
from firsthand.server.stored.files import Files, Page, StoredFile, Upload
from firsthand.server.stored.multipart import Head, Piece, read_form
from firsthand.server.wire.files import (
    LEAST_KEPT_S,
    MOST_KEPT_S,
    UPLOAD,
    FileDeleted,
    FileList,
    FileReply,
)

FILES = "/v1/files"
ONE = "/v1/files/{file_id}"
PIECE_BYTES = 256 << 10  # at a time to the disk, and from it
FORM_BYTES = 64 << 10  # that a form may have beside its file
MAX_FIELD_BYTES = 200
MAX_NAME_CHARS = 255
MOST_LISTED = 10_000
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
KNOWN = (400, 404, 500, 503)


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


def files_router(house: House) -> APIRouter:
    router = APIRouter()
    stored = house.stored
    upload: dict[str, Any] = described(
        None, FileReply, "Keep a file", errors=(400, 404, 413, 415, 500, 503)
    )

    @router.post(FILES, **upload, openapi_extra=UPLOAD)
    async def create(request: Request) -> Response:
        files, incoming = stored.files, Incoming(request.receive, request.scope["headers"])
        receiving = Receiving(files, owner_of(request))
        try:
            files.check_size((declared_bytes(request.scope["headers"]) or 0) - FORM_BYTES)
            kind = request.headers.get("content-type", "")
            patience_s = house.body_limits.receive_timeout_s
            async for part in read_form(incoming, kind, patience_s):
                await receiving.take(part)
            return json_reply((await receiving.keep()).to_dict())
        except Refused as refused:
            stays = not refused.close and await incoming.ends_soon(house.body_limits)
            raise replace(refused, close=not stays) from refused
        finally:
            await asyncio.to_thread(receiving.close)

    @router.get(
        FILES,
        **described(
            None,
            FileList,
            "The caller's files",
            flags=("after", "limit", "order", "purpose"),
            errors=KNOWN,
        ),
    )
    async def every(request: Request) -> Response:
        page, purpose = page_of(request, MOST_LISTED, MOST_LISTED), query(request, "purpose")
        files, owner = stored.files, owner_of(request)
        return listed(*await asyncio.to_thread(files.list, owner, page, purpose))

    @router.get(ONE, **described(None, FileReply, "One file", errors=KNOWN))
    async def retrieve(request: Request, file_id: str) -> Response:
        found = await asyncio.to_thread(stored.files.find, owner_of(request), file_id)
        return json_reply(found.to_dict())

    @router.delete(ONE, **described(None, FileDeleted, "Delete a file", errors=KNOWN))
    async def delete(request: Request, file_id: str) -> Response:
        await asyncio.to_thread(stored.files.delete, owner_of(request), file_id)
        return json_reply({"id": file_id, "object": "file", "deleted": True})

    @router.get(
        f"{ONE}/content",
        **described(
            None, None, "What is in a file", texts=("application/octet-stream",), errors=KNOWN
        ),
    )
    async def content(request: Request, file_id: str) -> Response:
        found, stream = await asyncio.to_thread(stored.files.open, owner_of(request), file_id)
        at_end(request.scope, stream.close)
        headers = {"content-length": str(found.num_bytes)}
        return StreamingResponse(
            _pieces(stream), headers=headers, media_type="application/octet-stream"
        )

    return router


class Receiving:
    """An upload as its form comes in. Raises Refused. Close it, whatever became of it."""

    def __init__(self, files: Files, owner: str) -> None:
        self._files, self._owner = files, owner
        self._upload: Upload | None = None
        self._name = ""
        self._fields: dict[str, bytes] = {}
        self._now: str | None = None  # the field that is being read; None: the file
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def take(self, part: Head | Piece) -> None:
        if isinstance(part, Head):
            await self._begin(part)
        elif self._now is None:
            self._waiting.append(part.content)
            self._waiting_bytes += len(part.content)
            if self._waiting_bytes >= PIECE_BYTES:
                await self._write()
        else:
            self._fields[self._now] += part.content
            if len(self._fields[self._now]) > MAX_FIELD_BYTES:
                raise wrong(self._now, f"has at most {MAX_FIELD_BYTES} bytes")

    async def _begin(self, head: Head) -> None:
        name = head.name[:MAX_FIELD_BYTES]
        if name == "file":
            if self._upload is not None:
                raise wrong("file", "is there twice; one file at a time")
            self._name = _checked_name(head.filename)
            self._upload, self._now = await asyncio.to_thread(self._files.begin), None
            return
        if name not in FIELDS:
            message = f"{name}: no such field is supported"
            raise Refused(400, message, "unsupported_parameter", name)
        if name in self._fields:
            raise wrong(name, "is there twice")
        self._fields[name], self._now = b"", name

    async def keep(self) -> StoredFile:
        if self._upload is None:
            raise wrong("file", "is missing")
        purpose, keep_s = self._field("purpose"), self._keep_s()
        if purpose != PURPOSE:
            why = "is missing" if purpose is None else f"must be {PURPOSE!r}"
            raise wrong("purpose", why)
        await self._write()
        given = (self._owner, self._name, PURPOSE, keep_s)
        return await asyncio.to_thread(self._upload.keep, *given)

    def _keep_s(self) -> int | None:
        anchor, seconds = (self._field(name) for name in FIELDS[1:])
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise wrong(FIELDS[1], "must be 'created_at'")
        if not re.fullmatch(r"[0-9]{1,8}", seconds or "", re.ASCII):
            raise wrong(FIELDS[2], "is a number of seconds")
        if not LEAST_KEPT_S <= int(seconds or 0) <= MOST_KEPT_S:
            raise wrong(FIELDS[2], f"is {LEAST_KEPT_S} to {MOST_KEPT_S}")
        return int(seconds or 0)

    def _field(self, name: str) -> str | None:
        found = self._fields.get(name)
        return None if found is None else found.decode("utf-8", "replace")

    async def _write(self) -> None:
        content, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        if content and self._upload is not None:
            await asyncio.to_thread(self._upload.write, content)

    def close(self) -> None:
        if self._upload is not None:
            self._upload.close()


def _checked_name(given: str | None) -> str:
    if not given:
        raise wrong("file", "has no filename")
    if len(given) > MAX_NAME_CHARS or not given.isprintable():
        raise wrong("file", f"its name has 1 to {MAX_NAME_CHARS} characters that can be printed")
    return given


def wrong(name: str, why: str) -> Refused:
    return Refused(400, f"{name}: {why}", "invalid_value", name)


def owner_of(request: Request) -> str:
    """Files and batches are a key's own; where there are no keys, everybody's who may connect."""
    return call_of(request.scope).caller.key_id


def query(request: Request, name: str) -> str | None:
    """Raises Refused."""
    given = request.query_params.getlist(name)
    if len(given) > 1 or (given and len(given[0]) > MAX_FIELD_BYTES):
        raise wrong(name, f"is given once, and has at most {MAX_FIELD_BYTES} bytes")
    return given[0] if given else None


def page_of(request: Request, default: int, most: int) -> Page:
    """Raises Refused."""
    limit, order = query(request, "limit"), query(request, "order") or "desc"
    if limit is not None and not (
        re.fullmatch(r"[0-9]{1,5}", limit, re.ASCII) and 1 <= int(limit) <= most
    ):
        raise wrong("limit", f"takes 1 to {most}")
    if order not in ("asc", "desc"):
        raise wrong("order", "must be 'asc' or 'desc'")
    number = default if limit is None else int(limit)
    return Page(number, query(request, "after"), newest_first=order == "desc")


def listed(found: Sequence[Listed], has_more: bool) -> Response:
    return json_reply(
        {
            "object": "list",
            "data": [one.to_dict() for one in found],
            "first_id": found[0].id if found else None,
            "last_id": found[-1].id if found else None,
            "has_more": has_more,
        }
    )


async def _pieces(stream: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(stream.read, PIECE_BYTES):
        yield piece
