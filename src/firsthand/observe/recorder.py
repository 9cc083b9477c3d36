"""The flight recorder: what happened to each of the last requests, always on.

Owns: which fact goes into which record, how much memory all of it may take, who is forgotten first.
May not know: HTTP, files, how a record is shown.
Read next: `records.py`, `step_ring.py` (what is kept), `record_views.py` (how it is told),
`kept_failures.py` (what outlives the server).

It lives where the facts arrive, beside the service and not in the engine's process, so that what
an engine's end took with it is still known here. One event loop owns it. A step costs one packed
row, and two numbers for each sequence in it; everything else is worked out when somebody asks.

Half of the memory is the ring of steps, the other half the records. The oldest that have ended are
forgotten first, steps and records each by their own age: a record whose steps are gone still has
its stages. Requests that are in progress are never forgotten; there are as many as are admitted.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain
from typing import Any

from firsthand.engine.facts import StepFacts
from firsthand.generation.completion import Completion
from firsthand.generation.listeners import Listeners
from firsthand.generation.service import Service
from firsthand.observe.records import ENTRY_BYTES, Arrival, Choice, Content, Ending, Part, Record
from firsthand.observe.step_ring import StepRing
from firsthand.request import Priority, Request, TokenEvent
from firsthand.scheduling.facts import Admitted

MAX_REFUSED = 256  # requests that were refused, which may come by the thousand
CLASSES = [one.value for one in Priority]  # the most urgent first


class Recorder:
    """Told of each request by `submitted`, `finished` (per answer) and `ended`; of the steps of a
    service once it is followed. `on_end` is called with each record that has ended."""

    def __init__(
        self, max_bytes: int, clock: Callable[[], float], *, records_content: bool = False
    ) -> None:
        self.clock = clock
        self.records_content = records_content
        self.made_by: dict[str, dict[str, Any]] = {}  # by model: what its bits depend on
        self.ring = StepRing(max_bytes // 2)
        self._max_bytes = max_bytes - max_bytes // 2
        self._num_bytes = 0
        self._open: dict[int, Record] = {}  # by the identity of their arrival
        self._ended: deque[Record] = deque()  # the oldest first
        self._refused: deque[Record] = deque(maxlen=MAX_REFUSED)
        self._tracks: dict[str, _Track] = {}
        self._listeners: Listeners[Record] = Listeners()

    @property
    def models(self) -> list[str]:
        """Those that are followed; a step names one by its place here."""
        return list(self._tracks)

    @property
    def num_bytes(self) -> int:
        """What the records take, about; the ring has its own half."""
        return self._num_bytes

    def follow(self, service: Service) -> None:
        """From now on, for good. Two of one name, of which one comes in the other's place, have
        one track."""
        name = service.model.name
        track = self._tracks.setdefault(name, _Track(self, len(self._tracks)))
        service.listen(track.stepped)
        service.listen_events(track.events)

    def listen(self, on_end: Callable[[Record], None]) -> Callable[[], None]:
        """It is told of each record that has ended, and must be quick. The result ends it."""
        return self._listeners.add(on_end)

    def submitted(
        self,
        arrival: Arrival,
        model: str,
        request: Request,
        called_s: float,
        tokenized_s: float,
        adapter_sha256: str | None = None,
    ) -> None:
        """A prompt of a call is with the engine of `model`; `arrival` is the same value for all
        prompts of one call."""
        part = Part.of(request, model, called_s, tokenized_s)
        if self.records_content:  # a salt comes of a key, and a deadline is over
            bare = replace(request, tenant="", cache_salt="", deadline_s=None)
            part.content = Content(bare, model, adapter_sha256, *_lists(request.n))
        record = self._open.get(id(arrival))
        if record is None:
            record = self._open[id(arrival)] = Record(arrival)
        record.parts.append(part)
        track = self._tracks.get(model)
        if track is not None:
            part.num_ahead = track.num_ahead(part.priority)
            track.take(part)

    def finished(self, model: str, engine_id: str, completion: Completion) -> None:
        """One of its sequences has ended."""
        track = self._tracks.get(model)
        part = None if track is None else track.parts.get(engine_id)
        if part is None:
            return
        num_tokens, index = len(completion.token_ids), completion.index
        part.choices.append(Choice(index, completion.finish_reason, num_tokens))
        if part.content is not None:  # without what the engine drew after a stop string
            del part.content.outputs[index][num_tokens:], part.content.logprobs[index][num_tokens:]

    def gave_up(self, model: str, engine_ids: Sequence[str]) -> None:
        """Nobody gets what was computed of these: another model is asked."""
        track = self._tracks.get(model)
        parts = {} if track is None else track.parts
        for engine_id in engine_ids:
            part = parts.get(engine_id)
            if part is not None:
                part.given_up_s = self.clock()

    def ended(self, arrival: Arrival, ending: Ending, trace_id: str | None = None) -> Record:
        """The exchange is over, whatever became of it."""
        record = self._open.pop(id(arrival), None) or Record(arrival)
        record.ending, record.trace_id = ending, trace_id
        for track in self._tracks.values():
            track.drop(record.parts)
        if record.parts:
            entries = sum(len(one.steps) for one in record.parts)
            self._num_bytes += record.num_bytes - entries * ENTRY_BYTES  # which were counted
            self._ended.append(record)
        else:
            self._refused.append(record)
        self._forget()
        self._listeners.tell(record)
        return record

    def oldest_waiting(self) -> Iterator[tuple[str, str, float]]:
        """Model, class, and for how long its oldest has waited for a first step; 0: none does."""
        now_s = self.clock()
        for model, track in self._tracks.items():
            for one_class, since_s in track.waiting_since(now_s):
                yield model, one_class, max(0.0, now_s - since_s)

    def records(self) -> Iterator[Record]:
        """All that are known: those in progress, the last that came first; then those that are
        over, refused ones among them, the last that ended first."""
        in_progress = reversed(list(self._open.values()))
        over = merge(reversed(self._ended), reversed(self._refused), key=_since_its_end)
        return chain(in_progress, over)

    def count(self, num_bytes: int) -> None:
        """For a track: records have grown by so much."""
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            self._forget()

    def _forget(self) -> None:
        while self._num_bytes > self._max_bytes and self._ended:
            self._num_bytes -= self._ended.popleft().num_bytes


class _Track:
    """The facts of one model's engine become entries of its open parts."""

    def __init__(self, recorder: Recorder, place: int) -> None:
        self._recorder = recorder
        self._place = place
        self._without_token: dict[str, Part] = {}
        self._kept: dict[str, Part] = {}  # those whose tokens are kept
        self._waiting = dict.fromkeys(CLASSES, 0)  # requests that no step has taken up
        self.parts: dict[str, Part] = {}

    def num_ahead(self, priority: str) -> int:
        return sum(self._waiting[one] for one in CLASSES[: CLASSES.index(priority) + 1])

    def waiting_since(self, now_s: float) -> Iterator[tuple[str, float]]:
        for one_class in CLASSES:
            waits = [
                one.tokenized_s
                for one in self.parts.values()
                if one.began_s is None and one.priority == one_class
            ]
            yield one_class, min(waits, default=now_s)

    def take(self, part: Part) -> None:
        self.parts[part.engine_id] = self._without_token[part.engine_id] = part
        self._waiting[part.priority] += 1
        if part.content is not None:
            self._kept[part.engine_id] = part

    def drop(self, parts: list[Part]) -> None:
        for part in parts:
            if self.parts.get(part.engine_id) is part:
                del self.parts[part.engine_id]
                self._without_token.pop(part.engine_id, None)
                self._kept.pop(part.engine_id, None)
                if part.began_s is None:
                    self._waiting[part.priority] -= 1

    def stepped(self, facts: StepFacts) -> None:
        planned, started_s, parts = facts.planned, facts.started_s, self.parts
        for admitted in planned.admitted:
            part = parts.get(admitted.request_id)
            if part is not None:
                self._admit(part, started_s, admitted)
        for preempted in planned.preempted:
            part = parts.get(preempted.request_id)
            if part is not None:
                part.preemptions.append((started_s, preempted))
        num_tokens = facts.num_tokens
        number = self._recorder.ring.add(facts, num_tokens, self._place)
        num_entries = 0
        end_s = started_s + (facts.plan_ms + facts.run_ms) * 1e-3  # when its tokens are there
        for request_id, taken in zip(facts.request_ids, facts.slice_tokens, strict=True):
            part = parts.get(request_id)
            if part is not None:
                part.steps.append(number)
                part.tokens.append(taken)
                part.last_s = end_s
                num_entries += 1
                if facts.replica is not None and facts.replica not in part.replicas[-1:]:
                    part.replicas.append(facts.replica)
        for one in facts.guesses:
            part = parts.get(one.request_id)
            if part is not None:
                part.num_guesses += one.num_guesses
                part.num_accepted += one.num_accepted
        self._recorder.count(ENTRY_BYTES * num_entries)

    def events(self, events: tuple[TokenEvent, ...]) -> None:
        waiting = self._without_token
        if waiting:
            for event in events:
                if event.request_id in waiting and event.token_id is not None:
                    waiting.pop(event.request_id).first_token_s = event.at_s
        if self._kept:
            self._keep(events)

    def _keep(self, events: tuple[TokenEvent, ...]) -> None:
        for event in events:
            part = self._kept.get(event.request_id)
            if part is None or event.token_id is None or part.content is None:
                continue
            part.content.outputs[event.index].append(event.token_id)
            if event.logprob is not None:
                part.content.logprobs[event.index].append(event.logprob)

    def _admit(self, part: Part, at_s: float, admitted: Admitted) -> None:
        if part.began_s is None:
            part.began_s = at_s
            part.num_cached_tokens = admitted.num_cached_tokens
            self._waiting[part.priority] -= 1
        part.admissions.append((at_s, admitted))


def _lists(n: int) -> tuple[list[array[int]], list[array[float]]]:
    return [array("I") for _ in range(n)], [array("d") for _ in range(n)]


def _since_its_end(record: Record) -> float:
    assert record.ending is not None, "it is over"
    return -record.ending.ended_s
