"""A run: records to a sink, each exactly one of answered, refused or double, also after a crash.

Owns: the window of records that are being answered, the order of outputs, when a step is durable.
May not know: what is asked of an engine, the form of a line, any kind of source or sink.
Read next: `ledger.py`, `stages.py`, `engines.py`; `job.py` and `batch.py`, which say what is run.

Outputs stand in the order of the records, whenever each answer came. A record whose key another one
in the window has waits until that one's outcome is known, so that what is a duplicate depends on
nothing but the order of the records.
"""

from __future__ import annotations

import hashlib
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress

from firsthand.data.buffer import Ended, Reader
from firsthand.data.engines import (
    BACK_OFF_S,
    BUSY_S,
    MAX_TRIES,
    Engine,
    Meaning,
    Reply,
    meaning_of,
)
from firsthand.data.identity import request_id_of
from firsthand.data.ledger import Output
from firsthand.data.plain import plain_json
from firsthand.data.record import (
    Accepted,
    Duplicate,
    Position,
    Reason,
    Rejected,
    content_sha256,
    rejected,
)
from firsthand.data.run_parts import Form, Journal, Progress, RunOptions, Slot
from firsthand.data.seen import digest_of
from firsthand.data.sink import Sink
from firsthand.data.source import Flaw, Source
from firsthand.errors import EngineUnavailable, FirsthandError

ENGINE = "engine"  # the stage of what the engine refuses, or never answers
SINK = "sink"  # of what does not fit the output
ANY_WIDTH = 64  # of a window in which nothing is asked
NEXT_ITEMS_S = 0.2  # how long the loop waits at most, when nothing is due


class Run:
    """One run. `items` come of the source by the stages; the run reads them once."""

    def __init__(
        self,
        source: Source,
        items: Iterable[Accepted | Rejected],
        form: Form,
        engine: Engine | None,
        sink: Sink,
        journal: Journal,
        identify: Callable[[Position, str], bytes],
        options: RunOptions,
        tell: Callable[[Progress], None] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._items, self._form = source, items, form
        self._engine, self._sink, self._journal = engine, sink, journal
        self._identify = identify
        self._options, self._tell, self._clock = options, tell, clock
        self._inbox: queue.SimpleQueue[list[Accepted | Rejected] | Ended | tuple[Slot, Reply]]
        self._inbox = queue.SimpleQueue()
        self._waiting: deque[Accepted | Rejected] = deque()
        self._window: deque[Slot] = deque()
        self._resting: list[Slot] = []  # between two tries
        self._taken: dict[bytes, int] = {}  # keys of those in the window
        self._finished: list[Position] = []  # since the last commit
        self._begun_s = self._commit_s = clock()
        self._busy_since_s: float | None = None
        self._begun_share = source.facts.share(journal.position)
        self._num_now = 0

    def run(self) -> None:
        """Until the source ends. Raises what ended it before; what was finished until then is
        durable, if it can be."""
        try:
            live = self._source.facts.live
            if self._options.careful or (self._engine is None and not live):
                self._run_by_one()
            else:
                self._run_ahead()
        except FirsthandError:
            self._commit()
            raise
        self._commit()
        self._tell(self._progress())

    def _run_by_one(self) -> None:
        for item in self._items:
            self._take(item)
            while self._window:
                self._ask_due()
                self._finish_ended()
                if self._window:
                    self._receive()
            self._commit_if_due()

    def _run_ahead(self) -> None:
        """The source is read in a thread of its own, by a bounded buffer."""
        ended: Ended | None = None
        live = self._source.facts.live
        with closing(Reader(self._items, self._inbox.put, at_once=live)) as reader:
            while ended is None or self._waiting or self._window:
                while self._waiting and len(self._window) < self._width:
                    self._take(self._waiting.popleft())
                    reader.give_room()
                self._ask_due()
                self._finish_ended()
                self._commit_if_due()
                stuck = not self._waiting or len(self._window) >= self._width
                if stuck and (ended is None or self._window):
                    ended = self._receive() or ended
        if ended is not None and ended.fault is not None:
            raise ended.fault

    @property
    def _width(self) -> int:
        return ANY_WIDTH if self._engine is None else self._engine.width

    def _receive(self) -> Ended | None:
        """What comes next from the reader or the engine, or a time that is due."""
        due_s = min((one.due_s for one in self._resting if one.due_s is not None), default=None)
        wait_s = NEXT_ITEMS_S if due_s is None else min(NEXT_ITEMS_S, due_s - self._clock())
        try:
            found = self._inbox.get(timeout=max(0.001, wait_s))
        except queue.Empty:
            return None
        if isinstance(found, Ended):
            return found
        if isinstance(found, list):
            self._waiting.extend(found)
        else:
            self._on_reply(*found)
        return None

    def _take(self, item: Accepted | Rejected) -> None:
        """Into the window."""
        claims = item.claims if isinstance(item, Accepted) else []
        sha256 = content_sha256(item.record if isinstance(item, Accepted) else item)
        position = item.position
        identity = self._identify(position, sha256)
        digests = [digest_of(space, text) for space, text in claims]
        if self._source.facts.live:  # the same message may come again
            digests.append(digest_of("id", identity.hex()))
        slot = Slot(item, position, identity, sha256, digests)
        slot.waits = any(digest in self._taken for digest in digests)
        for digest in digests:
            self._taken[digest] = self._taken.get(digest, 0) + 1
        self._window.append(slot)
        if not slot.waits:
            self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        """Ask about it, unless its outcome is known without."""
        item = slot.item
        if any(map(self._journal.has_seen, slot.digests)):
            key = item.key if isinstance(item, Accepted) else None
            slot.item = Duplicate(slot.position, key or slot.identity.hex())
        elif isinstance(item, Accepted):
            try:
                slot.request = self._form.request(item, slot.identity)
                if slot.request is None:
                    slot.line = self._form.line(item, slot.identity, slot.sha256, None)
            except Flaw as flaw:
                self._end(slot, flaw.reason, flaw.detail)
            if slot.request is not None:
                self._ask(slot)
                return
        slot.ended = True

    def _ask(self, slot: Slot) -> None:
        assert self._engine is not None and slot.request is not None
        request = slot.request

        def on_reply(future: Future[Reply]) -> None:
            if not future.cancelled():
                fault = future.exception()
                gone = Reply(0, f"{type(fault).__name__}: {fault}".encode())
                self._inbox.put((slot, gone if fault is not None else future.result()))

        slot.due_s = None
        name = request_id_of(slot.identity.hex())
        future = self._engine.ask(request.method, request.path, request.content, name)
        future.add_done_callback(on_reply)

    def _on_reply(self, slot: Slot, reply: Reply) -> None:
        """Raises EngineUnavailable: there will be no answers."""
        item, meaning = slot.item, meaning_of(reply)
        assert isinstance(item, Accepted)
        if meaning is Meaning.BUSY:
            self._rest(slot, reply)
            return
        self._busy_since_s = None
        why = reply.message if meaning is not Meaning.ANSWERED else ""
        if meaning is Meaning.CLOSED:
            raise EngineUnavailable(f"the engine answers nothing: {why}")
        if meaning is Meaning.REFUSED:
            with suppress(Flaw):
                slot.line = self._form.refusal(item, slot.identity, reply)
            self._end(slot, Reason.REFUSED, why)
            return
        if meaning is Meaning.ANSWERED:
            try:
                slot.line = self._form.line(item, slot.identity, slot.sha256, reply)
                slot.ended = True
                return
            except Flaw as flaw:
                why = flaw.detail
        slot.tries += 1
        if slot.tries < MAX_TRIES:
            slot.due_s = self._clock() + BACK_OFF_S[slot.tries - 1]
            self._resting.append(slot)
        else:
            self._end(slot, Reason.POISON, f"tried {MAX_TRIES} times; {why}")

    def _end(self, slot: Slot, reason: Reason, why: str, stage: str = ENGINE) -> None:
        """Refused, unless a line says so."""
        if slot.line is None:
            assert isinstance(slot.item, Accepted)
            raw = slot.item.record.raw
            slot.item = rejected(slot.position, raw, stage, reason, why, sha256=slot.sha256)
        slot.ended = True

    def _rest(self, slot: Slot, reply: Reply) -> None:
        now_s = self._clock()
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        waited_s = now_s - self._busy_since_s
        if waited_s > self._options.patience_s:
            message = f"the engine has taken nothing for {waited_s:.0f} s: {reply.message}"
            raise EngineUnavailable(message)
        later_s = next((one for one in BUSY_S if one > waited_s), BUSY_S[-1])
        slot.due_s = now_s + min(reply.retry_after_s or later_s, BUSY_S[-1])
        self._resting.append(slot)

    def _ask_due(self) -> None:
        now_s = self._clock()
        for slot in [one for one in self._resting if one.due_s is not None and one.due_s <= now_s]:
            self._resting.remove(slot)
            self._ask(slot)

    def _finish_ended(self) -> None:
        """In order, as far as each has an outcome."""
        while self._window:
            slot = self._window[0]
            if slot.waits:  # all before it are finished now
                slot.waits = False
                self._begin(slot)
            if not slot.ended:
                return
            self._window.popleft()
            self._finish(slot)

    def _finish(self, slot: Slot) -> None:
        journal, kept = self._journal, slot.digests
        output = self._put(slot, slot.item) if isinstance(slot.item, Accepted) else None
        item = slot.item
        if output is not None:
            journal.put(output)
        elif isinstance(item, Rejected):
            journal.hold(item, slot.identity)
            kept = kept[-1:] if self._source.facts.live else []  # it takes no key
        elif isinstance(item, Duplicate):
            journal.pass_over(item)
            kept = []
        for digest in kept:
            journal.add_seen(digest)
        for digest in slot.digests:
            self._taken[digest] -= 1
            if not self._taken[digest]:
                del self._taken[digest]
        self._finished.append(slot.position)
        self._num_now += 1

    def _put(self, slot: Slot, item: Accepted) -> Output | None:
        """Into the sink. None: that has no place for it, and it is refused now."""
        assert slot.line is not None
        try:
            place, num_bytes = self._sink.add(slot.identity, slot.line)
        except Flaw as flaw:
            slot.line = None
            self._end(slot, flaw.reason, flaw.detail, SINK)
            return None
        return Output(
            id=slot.identity,
            key=item.key,
            position=slot.position,
            input_sha256=(sha256 := bytes.fromhex(slot.sha256)),
            place=place,
            place_bytes=num_bytes,
            output_sha256=hashlib.sha256(slot.line).digest(),
            sample=self._sample(item, sha256),
        )

    def _sample(self, item: Accepted, sha256: bytes) -> str | None:
        """One record of so many, the same ones each time: its hash decides."""
        every = self._options.sample
        if not every or int.from_bytes(sha256[:8], "big") % every:
            return None
        return plain_json(item.values).decode()

    def _commit_if_due(self) -> None:
        now_s, options = self._clock(), self._options
        num = len(self._finished)
        due = num >= options.checkpoint_records or now_s - self._commit_s >= options.checkpoint_s
        if options.careful or due:
            self._commit()
            self._tell(self._progress())

    def _commit(self) -> None:
        """Everything that is finished becomes durable: first the output, then what is said of it,
        and then the source may forget it."""
        self._commit_s = self._clock()
        self._source.check()
        if not self._finished:
            return
        state = self._sink.flush()
        self._journal.commit(self._finished[-1], state)
        done, self._finished = self._finished, []
        self._source.done(done)

    def _progress(self) -> Progress:
        share = self._source.facts.share(self._journal.position)
        seconds = self._clock() - self._begun_s
        now = None if share is None or self._begun_share is None else share - self._begun_share
        return Progress(self._journal.books, share, seconds, self._num_now, now)
