"""The end of a call: into the recorder, into a file where it failed, into the log.

Owns: the order of these, and that none of them can harm the answer or the next one.
May not know: how a record is kept or told.
Read next: `guard/middleware.py`, which calls it; `logs.py`, `../observe/recorder.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from firsthand.config import read_environment
from firsthand.generation.kept_requests import made_by
from firsthand.generation.member import Member
from firsthand.observe.kept_failures import FAILURES, MAX_STEPS, KeptFailures
from firsthand.observe.record_views import told
from firsthand.observe.recorder import Recorder
from firsthand.observe.records import Ending, Record
from firsthand.server.guard.access import route_path
from firsthand.server.guard.call import Call
from firsthand.server.guard.middleware import GENERATING
from firsthand.server.logs import tell_request
from firsthand.server.settings import Settings
from firsthand.values import dataclass

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ends:
    """Called by the guard at the end of each call."""

    recorder: Recorder
    failures: KeptFailures

    def __call__(
        self, call: Call, scope: MutableMapping[str, Any], status: int, now_s: float
    ) -> None:
        record = None
        try:
            record = self._recorded(call, scope, status, now_s)
        except Exception:
            _LOG.exception("request %s: it could not be recorded", call.request_id)
        tell_request(call, scope, status, now_s, record)

    async def know_what_made(self, member: Member) -> None:
        """What the answers of a model depend on, for whoever replays one. Its files are hashed, if
        their hash is not known."""
        options, window = member.entry.service, member.service.model.context_length
        found = await asyncio.to_thread(made_by, options.model, options.load, window)
        self.recorder.made_by[member.service.model.name] = found

    def close(self) -> None:
        """What is not written yet is; it may take a second or two."""
        self.failures.close()

    def _recorded(
        self, call: Call, scope: MutableMapping[str, Any], status: int, now_s: float
    ) -> Record | None:
        """None: it was to generate nothing. What was refused, or is wrong, is kept too, in short:
        whoever asks by its id is told why."""
        path = route_path(scope)
        if call.arrival is None and not (path in GENERATING and status >= 400):
            return None
        ending = Ending(
            status,
            call.outcome or "",
            now_s,
            call.sent_bytes,
            call.first_sent_s,
            call.error_code,
            call.cause,
        )
        record = self.recorder.ended(call.arrives(path, call.model or ""), ending)
        call.preemptions = record.num_preemptions
        if ending.is_failure and self.failures.has_room:
            kept = told(record, self.recorder, with_cause=True, max_steps=MAX_STEPS)
            self.failures.keep(call.request_id, time.time_ns(), kept)
        return record


def ends_of(settings: Settings, clock: Callable[[], float]) -> Ends:
    recorder = Recorder(settings.recorder_memory, clock, records_content=settings.record_content)
    return Ends(recorder, KeptFailures(read_environment().home / FAILURES))
