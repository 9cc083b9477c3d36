"""`/v1/batches`: many requests in a file, answered when there is room for them.

Owns: these routes.
May not know: how a batch is carried out.
Read next: `../stored/batches.py`, its states; `../stored/runner.py`.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from firsthand.server.body import read_body
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.files import KNOWN, listed, owner_of, page_of
from firsthand.server.routes.submitting import json_reply
from firsthand.server.wire.batches import BatchBody, BatchList, BatchReply

BATCHES = "/v1/batches"
ONE = "/v1/batches/{batch_id}"
MOST_LISTED, LISTED = 100, 20


def batches_router(house: House) -> APIRouter:
    router = APIRouter()
    stored = house.stored

    @router.post(BATCHES, **described(BatchBody, BatchReply, "Answer a file of requests"))
    async def create(request: Request) -> Response:
        batches = stored.batches
        body = await read_body(request, BatchBody, house.body_limits)
        keep_s = None if body.output_expires_after is None else body.output_expires_after.seconds
        found = await asyncio.to_thread(
            batches.create,
            owner_of(request),
            body.endpoint,
            body.input_file_id,
            body.metadata,
            keep_s,
        )
        stored.wanted.set()
        return json_reply(found.to_dict())

    @router.get(
        BATCHES,
        **described(
            None, BatchList, "The caller's batches", flags=("after", "limit"), errors=KNOWN
        ),
    )
    async def every(request: Request) -> Response:
        page = page_of(request, LISTED, MOST_LISTED)
        return listed(*await asyncio.to_thread(stored.batches.list, owner_of(request), page))

    @router.get(ONE, **described(None, BatchReply, "One batch", errors=KNOWN))
    async def retrieve(request: Request, batch_id: str) -> Response:
        found = await asyncio.to_thread(stored.batches.find, owner_of(request), batch_id)
        return json_reply(found.to_dict())

    @router.post(f"{ONE}/cancel", **described(None, BatchReply, "End a batch", errors=KNOWN))
    async def cancel(request: Request, batch_id: str) -> Response:
        found = await asyncio.to_thread(stored.batches.cancel, owner_of(request), batch_id)
        stored.wanted.set()
        return json_reply(found.to_dict())

    return router
