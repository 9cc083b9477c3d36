"""What a caller says beside the question: noted, and told to whoever asks what became of it.

Owns: which field had no effect here, by its name in the header `X-Ignored-Fields`, in the log and
in the record; what is noted with its value, because it says how something was asked.
May not know: bodies, what a field means.
Read next: `guard/call.py`, which carries both; `guard/middleware.py`, which sends the header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from firsthand.server.guard.call import call_of
from firsthand.server.headers import MADE

MAX_IGNORED = 32
MAX_FIELD_CHARS = 80
_UNFIT = re.compile(r"[^A-Za-z0-9_.\[\]-]")  # for a header and a log: a name is the caller's own


def note_ignored(scope: Mapping[str, Any], *fields: str) -> None:
    """They had no effect. Of very many the first are named."""
    ignored = call_of(scope).ignored
    for one in fields:
        name = _UNFIT.sub("_", one[:MAX_FIELD_CHARS])
        if name not in ignored and len(ignored) < MAX_IGNORED:
            ignored.append(name)


def take_request_id(scope: MutableMapping[str, Any], given: str | None) -> None:
    """A body's name for its request. One that came in the header stays."""
    call = call_of(scope)
    if given is None or given == call.request_id:
        return
    if call.request_id and not call.request_id.startswith(MADE):
        note_ignored(scope, "request_id")
        return
    scope.setdefault("state", {})["request_id"] = call.request_id = given


def note_said(scope: Mapping[str, Any], field: str, value: object) -> None:
    """None is nothing."""
    if value is not None:
        call_of(scope).said[field] = value
