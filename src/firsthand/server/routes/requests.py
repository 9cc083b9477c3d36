"""What the recorder knows: the last requests, and each by its id, by which it can be ended too.

Owns: these routes, and whose requests a caller may see: those of its own key. Where there are no
keys, everybody who may connect sees all.
May not know: how a record is kept.
Read next: `../../observe/record_views.py`.

An operator who may see all asks on the admin socket (`../verbs.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from firsthand.errors import InvalidRequest
from firsthand.observe.kept_failures import find
from firsthand.observe.record_views import summary, told
from firsthand.observe.recorder import Recorder
from firsthand.observe.records import Record
from firsthand.server.guard.call import call_of
from firsthand.server.guard.refusal import Refused
from firsthand.server.house import House
from firsthand.server.openapi import described
from firsthand.server.routes.submitting import json_reply
from firsthand.server.wire.replies import CancelReply, RecordReply, RecordsReply

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


def requests_router(house: House) -> APIRouter:
    router = APIRouter()
    recorder = house.recorder

    @router.get(
        "/firsthand/requests",
        **described(
            None, RecordsReply, "The last requests", flags=("limit", "failed"), errors=(400, 500)
        ),
    )
    async def requests(request: Request) -> Response:
        limit = limit_of(request.query_params.get("limit"))
        failed = "failed" in request.query_params
        shown = records_of(recorder, call_of(request.scope).caller.key_id, failed=failed)
        found = [summary(one, recorder) for one, _ in zip(shown, range(limit), strict=False)]
        return json_reply({"requests": found})

    @router.get(
        "/firsthand/requests/{request_id}",
        **described(None, RecordReply, "One request, all of it", errors=(400, 404, 500)),
    )
    async def one_request(request: Request, request_id: str) -> Response:
        key_id = call_of(request.scope).caller.key_id
        found = find_record(records_of(recorder, key_id), request_id)
        if found is not None:
            return json_reply(told(found, recorder))
        kept = None
        if house.failures is not None:
            kept = await run_in_threadpool(find, house.failures, request_id)
        if kept is None or (kept.get("key_id") or "") != key_id:
            message = "no such request is known; of those that ended well only the last are kept"
            raise Refused(404, message, "not_found", "request_id")
        kept.pop("cause", None)
        return json_reply(kept)

    @router.post(
        "/firsthand/requests/{request_id}/cancel",
        **described(None, CancelReply, "End a request", errors=(400, 404, 500)),
    )
    async def cancel(request: Request, request_id: str) -> Response:
        found = find_record(records_of(recorder, call_of(request.scope).caller.key_id), request_id)
        if found is None or found.ending is not None:
            message = "no such request is in progress"
            raise Refused(404, message, "not_found", "request_id")
        ended = [house.find(one.model)[1].abort(one.engine_id) for one in found.answering]
        if any(ended):
            house.metrics.cancelled.labels("request").inc()
        return json_reply({"id": found.arrival.request_id, "cancelled": any(ended)})

    return router


def records_of(
    recorder: Recorder, key_id: str | None = None, *, failed: bool = False
) -> Iterator[Record]:
    """Those of a key, or of all; the last first. `failed`: whose caller got a 5xx, for whatever
    reason."""
    for one in recorder.records():
        is_failure = one.ending is not None and one.ending.status >= 500  # also one refused
        if key_id in (None, one.arrival.key_id) and (is_failure or not failed):
            yield one


def find_record(records: Iterator[Record], request_id: str) -> Record | None:
    """The last one of that id: a caller may have chosen it twice. The id of a reply is that of its
    request behind a prefix."""
    bare = re.sub(r"^(chatcmpl|cmpl|resp|embd)[-_]", "", request_id)
    ids = {request_id, bare, f"req-{bare}"}
    return next((one for one in records if one.arrival.request_id in ids), None)


def limit_of(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not re.fullmatch(r"[0-9]{1,4}", given, re.ASCII) or not 1 <= int(given) <= MAX_LIMIT:
        raise InvalidRequest("limit", f"takes 1 to {MAX_LIMIT}")
    return int(given)


def told_of(recorder: Recorder, request_id: str) -> dict[str, Any]:
    """For the operator. Raises InvalidRequest."""
    found = find_record(records_of(recorder), request_id)
    if found is None:
        raise InvalidRequest("id", "no such request is known")
    return told(found, recorder, with_cause=True)
