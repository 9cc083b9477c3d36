"""What the engines do, as they do it: a feed for whoever watches, and nothing while nobody does.

Owns: what is kept for watchers and its bounds, how often an engine is asked for a picture, the
words of the feed.
May not know: HTTP, how any of it is drawn.
Read next: `scheduling/picture.py` (who runs and waits), `engine/facts.py` (steps); above,
`server/routes/live.py`.

A watcher that is slow loses steps, not the engine time: of what it did not fetch the last
`MAX_STEPS` are kept, and how many were left out is told. Times are seconds of the engines' clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, field
from typing import Any

from firsthand.engine.facts import StepFacts
from firsthand.errors import CapacityExceeded
from firsthand.generation.service import Service
from firsthand.observe.queue_view import queue_of
from firsthand.values import dataclass

MAX_WATCHERS = 32
MAX_STEPS = 64  # of one model in one message
MAX_NAMES = 4096
LOOK_S = 0.25  # between two pictures

Name = Callable[[str], str | None]


@dataclass(slots=True)
class _Followed:
    """One model. `names` are those that callers know their requests by, each with its key."""

    service: Service
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    steps: deque[StepFacts] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    num_steps: int = 0
    looked_s: float = 0.0
    looked_at: tuple[int, ...] = ()

    def stepped(self, facts: StepFacts) -> None:
        self.steps.append(facts)
        self.num_steps += 1

    def name_for(self, key_id: str) -> Name:
        def name(request_id: str) -> str | None:
            known, key = self.names.get(request_id, (None, ""))
            return known if key == key_id else None

        return name

    def look(self, now_s: float) -> None:
        """Ask for a picture, if anything has happened since the last one."""
        load = self.service.load
        happened = (self.num_steps, load.total_submitted, load.total_ended)
        if happened != self.looked_at and now_s - self.looked_s >= LOOK_S:
            self.looked_s, self.looked_at = now_s, happened
            self.service.look()


@dataclass(slots=True)
class _Told:
    """What a watcher knows of one model."""

    num_steps: int = 0
    picture_s: float = -1.0
    rest: dict[str, Any] = field(default_factory=dict)


class Live:
    """Every model of a server. `follow` each once, `name` each request, `watch` any time."""

    def __init__(self) -> None:
        self._followed: dict[int, _Followed] = {}
        self._num_watchers = 0
        self._ends: list[Callable[[], None]] = []

    def follow(self, service: Service) -> None:
        self._followed[id(service)] = _Followed(service)

    def succeed(self, old: Service, new: Service) -> None:
        """`new` comes in the place of `old`. Whoever watches now sees only `old`."""
        self.leave(old)
        self.join(new)

    def join(self, service: Service) -> None:
        """It is served from now on, beside the others."""
        self.follow(service)
        if self._num_watchers:
            self._ends.append(service.listen(self._followed[id(service)].stepped))

    def leave(self, service: Service) -> None:
        self._followed.pop(id(service), None)

    def name(self, service: Service, request_id: str, name: str, key_id: str) -> None:
        """What the caller calls a request; the oldest names are forgotten."""
        found = self._followed.get(id(service))
        if found is not None:
            found.names[request_id] = (name, key_id)
            if len(found.names) > MAX_NAMES:
                del found.names[next(iter(found.names))]

    @contextmanager
    def watch(self, key_id: str = "") -> Iterator[Watch]:
        """For whoever has that key, "" where there are none: the names of others' requests are not
        told. Raises CapacityExceeded."""
        if self._num_watchers >= MAX_WATCHERS:
            raise CapacityExceeded(f"{MAX_WATCHERS} watch already")
        if not self._num_watchers:
            self._ends = [one.service.listen(one.stepped) for one in self._followed.values()]
        self._num_watchers += 1
        try:
            yield Watch(list(self._followed.values()), key_id)
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                for end in self._ends:
                    end()
                for one in self._followed.values():
                    one.steps.clear()
                    one.looked_at = ()


class Watch:
    """One watcher: everything at first, then what has changed."""

    def __init__(self, followed: list[_Followed], key_id: str) -> None:
        self._followed = followed
        self._key_id = key_id
        self._told = [_Told(one.num_steps) for one in followed]

    def look(self) -> None:
        """Have every engine asked now, whatever happened."""
        for one in self._followed:
            one.service.look()

    def queues(self) -> list[dict[str, Any]]:
        """Who waits, of each model, as of its last picture."""
        return [queue_of(one.service, one.name_for(self._key_id)) for one in self._followed]

    def news(self) -> dict[str, Any]:
        """What this watcher has not been told; empty: nothing has happened."""
        pairs = zip(self._followed, self._told, strict=True)
        models = [_news(one, told, self._key_id) for one, told in pairs]
        models = [one for one in models if len(one) > 1]
        return {"models": models} if models else {}


def _news(one: _Followed, told: _Told, key_id: str) -> dict[str, Any]:
    """Of one model; nothing but its name where nothing has happened."""
    service = one.service
    one.look(service.clock())
    found: dict[str, Any] = {"name": service.model.name}
    name = one.name_for(key_id)
    rest = {"model": _model(service), **_state(service)}
    found |= {part: value for part, value in rest.items() if told.rest.get(part) != value}
    told.rest = rest
    num_new = one.num_steps - told.num_steps
    if num_new:
        steps = list(one.steps)[-num_new:]
        first = one.num_steps - len(steps) + 1
        found["steps"] = [_step(n, facts, name) for n, facts in enumerate(steps, first)]
        found["num_left_out"] = num_new - len(steps)
    told.num_steps = one.num_steps
    picture = service.picture
    if picture is not None and picture.at_s != told.picture_s:
        rows = (*picture.running, *picture.waiting)
        names = {row.request_id: name(row.request_id) for row in rows}
        found["picture"] = picture  # as it is: there may be a thousand rows
        found["names"] = {request_id: known for request_id, known in names.items() if known}
        told.picture_s = picture.at_s
    return found


def _model(service: Service) -> dict[str, Any]:
    model = service.model
    return {
        "file": model.file,
        "sha256": model.manifest_sha256,
        "release": model.release,
        "context_length": model.context_length,
        "own_context_length": model.own_context_length,
        "vocab_size": model.vocab_size,
        "width": model.width,
        "max_sequences": model.max_sequences,
        "num_blocks": model.num_blocks,
        "block_size": model.block_size,
        "has_chat_template": model.has_chat_template,
        "adapters": [{"name": name, **asdict(one)} for name, one in model.adapters.items()],
    }


def _state(service: Service) -> dict[str, Any]:
    """What changes, by how often it does: a watcher gets the parts that have."""
    state, load, memory, pace = service.state, service.load, service.memory, service.pace
    progress = None if state.progress is None else round(state.progress, 2)
    return {
        "state": {
            "status": state.status.value,
            "reason": state.reason,
            "num_restarts": state.num_restarts,
            "progress": progress,
            "memory_short": state.memory_short,
        },
        "pace": {"paused": pace.paused, "delay_s": pace.delay_s},
        "load": asdict(load),
        "memory": None if memory is None else asdict(memory),
    }


def _step(number: int, facts: StepFacts, name: Name) -> dict[str, Any]:
    """`ms` are the phases in their order: plan, prepare, forward, sample, commit."""
    planned = facts.planned
    prepare_ms = max(0.0, facts.run_ms - facts.forward_ms - facts.sample_ms)
    phases = (facts.plan_ms, prepare_ms, facts.forward_ms, facts.sample_ms, facts.commit_ms)
    return {
        "n": number,
        "at_s": facts.started_s,
        "ms": [round(one, 4) for one in phases],
        "who": list(zip(facts.request_ids, facts.slice_tokens, strict=True)),
        "num_drawn": facts.num_drawn,
        "num_finished": facts.num_finished,
        "num_waiting": facts.num_waiting,
        "num_running": facts.num_running,
        "num_used_blocks": facts.num_used_blocks,
        "num_cached_blocks": facts.num_cached_blocks,
        "evicted": [one.request_id for one in planned.preempted],
        "served_by_class": planned.served_by_class,
        "error": facts.error,
        "began": [
            {
                "id": one.request_id,
                "name": name(one.request_id),
                "waited_s": one.waited_s,
                "num_cached_tokens": one.num_cached_tokens,
                "resumed": one.resumed,
            }
            for one in planned.admitted
        ],
    }
