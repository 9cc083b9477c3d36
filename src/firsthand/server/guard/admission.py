"""Between a route's question and the gate: what a generation costs, and what became of it.

Owns: how options become `Work`, what the caller's key changes in them, what is noted for the log.
May not know: bodies, streams, how the gate decides.
Read next: `../asking.py` (who asks), `gate.py` (who answers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Service, StreamUsage
from firsthand.request import Priority
from firsthand.server.asking import Ask
from firsthand.server.guard.call import Call, call_of
from firsthand.server.guard.gate import Gate, Grant
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.work import Work
from firsthand.values import dataclass

LEAST_TIMEOUT_S = 1e-3
MANIFEST_CHARS = 16  # of the hash, as in X-Manifest


@dataclass(slots=True)
class Admitted:
    """The ticket of a route."""

    options: Options
    place: Grant

    def finished(self, completion: Completion) -> None:
        """Of several answers the log tells the first token that came and the last reason."""
        call, report = self.place.call, completion.report
        call.finish_reason = completion.finish.reason.value
        call.batch_max = max(call.batch_max or 0, report.peak_batch)
        ttft_ms = call.attempt_ms + report.ttft_ms
        if call.ttft_ms is None or ttft_ms < call.ttft_ms:
            call.ttft_ms, call.queue_ms = ttft_ms, report.queue_ms
            call.itl_ms_p50 = median(report.token_ms) if report.token_ms else None

    def close(self, usage: StreamUsage, *, ended: bool) -> None:
        call = self.place.call
        call.prompt_tokens = (call.prompt_tokens or 0) + usage.prompt_tokens
        call.cached_tokens = (call.cached_tokens or 0) + usage.cached_tokens
        call.output_tokens = (call.output_tokens or 0) + usage.completion_tokens
        if usage.draft_tokens:
            call.draft_tokens = (call.draft_tokens or 0) + usage.draft_tokens
            call.accepted_tokens = (call.accepted_tokens or 0) + usage.accepted_tokens
        self.place.close(usage.completion_tokens)

    def withdraw(self) -> None:
        self.place.withdraw()

    def submitted(self, abort: Callable[[], object]) -> None:
        self.place.end = abort

    @property
    def spent(self) -> bool:
        return self.place.spent


@dataclass(frozen=True, slots=True)
class GateAdmission:
    gate: Gate

    def most_at_once(self, service: Service) -> int:
        return self.gate.queue(service.model.name).most_at_once

    def admit(self, asks: Sequence[Ask]) -> list[Admitted]:
        """Raises Refused. The options are those of the caller, with its class capped, its tenant,
        its salt, and the time that is left."""
        call = call_of(asks[0].scope, self.gate.clock())
        call.model = asks[0].model
        try:
            model = asks[0].service.model
            call.manifest = (model.manifest_sha256 or "")[:MANIFEST_CHARS] or None
            places = self.gate.admit(call, [work_of(ask) for ask in asks], model.name)
        except Refused as refused:
            call.error_code = refused.code
            raise
        return [_admitted(call, ask, place) for ask, place in zip(asks, places, strict=True)]


def _admitted(call: Call, ask: Ask, place: Grant) -> Admitted:
    call.at_end.append(place.close)
    call.priority = place.priority.value
    options = ask.options.copy()
    options["priority"] = place.priority.value
    options["tenant"] = call.caller.tenant
    options["cache_salt"] = joined_salt(call, ask.options.get("cache_salt") or "")
    options["timeout_s"] = max(place.deadline_s - ask.prompt.called_s, LEAST_TIMEOUT_S)
    return Admitted(options, place)


def work_of(ask: Ask) -> Work:
    options = ask.options
    return Work(
        num_prompt_tokens=ask.prompt.num_tokens,
        max_tokens=options.get("max_tokens") or 0,
        n=ask.n,
        logprobs=not {options.get("logprobs"), options.get("prompt_logprobs")} <= {None},
        priority=Priority(options.get("priority") or Priority.NORMAL),
        timeout_s=options.get("timeout_s"),
        open_ended=ask.open_ended,
    )


def joined_salt(call: Call, given: str) -> str:
    """The key's own, and inside it what the caller chose: no caller can choose another's."""
    return f"{call.caller.cache_salt}:{given}" if call.caller.cache_salt else given
