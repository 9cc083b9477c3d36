"""How much is under way on an engine, and how fast it leaves: the numbers of admission.

Owns: open requests by what they may still need, and rates over the last half minute of work.
May not know: who is admitted and who is not (that is the server's), text, processes.
Read next: `service_values.py` (`Load`); `engine/facts.py`, from which most of it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from firsthand.engine.facts import StepFacts
from firsthand.generation.service_values import Load
from firsthand.request import Request
from firsthand.values import dataclass

WINDOW_S = 30.0
BUCKET_S = 1.0


@dataclass(slots=True)
class _Open:
    """A request in progress; `owed` tokens may still be computed for it at most."""

    num_prompt_tokens: int
    owed: int
    has_begun: bool = False


@dataclass(slots=True)
class _Bucket:
    """Sums of a second in which there was work."""

    began_s: float
    busy_s: float = 0.0
    ended: int = 0
    computed: int = 0
    drawn: int = 0


class Traffic:
    """Told of each request and each step, in order; asked for `load` at any time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._waiting_tokens = 0
        self._owed_tokens = 0
        self._buckets: deque[_Bucket] = deque()
        self._last: StepFacts | None = None
        self._submitted = self._ended = self._computed = self._drawn = 0

    def submitted(self, request: Request) -> None:
        num_prompt_tokens = len(request.prompt_token_ids)
        owed = request.n * (num_prompt_tokens + request.stop.max_tokens)
        self._open[request.request_id] = _Open(num_prompt_tokens, owed)
        self._waiting_tokens += num_prompt_tokens
        self._owed_tokens += owed
        self._submitted += 1

    def stepped(self, facts: StepFacts) -> None:
        self._last = facts
        for admitted in facts.planned.admitted:
            self._begin(admitted.request_id)
        for request_id, num_tokens in zip(facts.request_ids, facts.slice_tokens, strict=True):
            one = self._open.get(request_id)
            if one is not None:  # computing again after an eviction may exceed what was owed
                paid = min(num_tokens, one.owed)
                one.owed -= paid
                self._owed_tokens -= paid
        self._computed += facts.num_tokens
        self._drawn += facts.num_drawn
        bucket = self._bucket()
        bucket.busy_s += (facts.plan_ms + facts.run_ms + facts.commit_ms) * 1e-3
        bucket.computed += facts.num_tokens
        bucket.drawn += facts.num_drawn

    def ended(self, request: Request) -> None:
        self._begin(request.request_id)
        one = self._open.pop(request.request_id, None)
        if one is not None:
            self._owed_tokens -= one.owed
            self._ended += 1
            self._bucket().ended += 1
        if not self._open:  # whatever an engine that was lost last said, nothing is under way
            self._last = None

    def load(self, num_blocks: int) -> Load:
        self._forget()
        last = self._last
        busy_s = sum(bucket.busy_s for bucket in self._buckets)
        per_s = 1.0 / busy_s if busy_s > 0 else 0.0
        return Load(
            num_open=len(self._open),
            num_waiting=last.num_waiting if last else 0,
            num_running=last.num_running if last else 0,
            waiting_by_class=_by_class(last.waiting_by_class if last else ()),
            running_by_class=_by_class(last.running_by_class if last else ()),
            num_used_blocks=last.num_used_blocks if last else 0,
            num_blocks=num_blocks,
            num_waiting_tokens=self._waiting_tokens,
            num_owed_tokens=self._owed_tokens,
            total_submitted=self._submitted,
            total_ended=self._ended,
            total_computed_tokens=self._computed,
            total_drawn_tokens=self._drawn,
            ended_per_s=sum(bucket.ended for bucket in self._buckets) * per_s,
            computed_tokens_per_s=sum(bucket.computed for bucket in self._buckets) * per_s,
            drawn_tokens_per_s=sum(bucket.drawn for bucket in self._buckets) * per_s,
        )

    def _begin(self, request_id: str) -> None:
        one = self._open.get(request_id)
        if one is not None and not one.has_begun:
            one.has_begun = True
            self._waiting_tokens -= one.num_prompt_tokens

    def _bucket(self) -> _Bucket:
        now_s = self._clock()
        if not self._buckets or now_s - self._buckets[-1].began_s >= BUCKET_S:
            self._buckets.append(_Bucket(now_s))
            self._forget()
        return self._buckets[-1]

    def _forget(self) -> None:
        oldest_s = self._clock() - WINDOW_S
        while self._buckets and self._buckets[0].began_s < oldest_s:
            self._buckets.popleft()


def _by_class(counts: tuple[int, ...]) -> tuple[int, int, int]:
    urgent, normal, background = counts or (0, 0, 0)
    return urgent, normal, background
