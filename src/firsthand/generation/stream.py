"""The events of one request become text, piece by piece.

Owns: waiting for the engine's thread, and what an interrupt or a close means for those who read.
May not know: models, threads, how a prompt came to be.
Read next: `texts.py` (events become texts); below, `engine/worker.py` (`EventStream`).

Streamed and not streamed are the same thing here: `completion` reads the stream to its end.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator

from firsthand.engine.worker import EventStream
from firsthand.errors import EngineError
from firsthand.generation.choice import Choice, Job
from firsthand.generation.completion import Chunk, Completion
from firsthand.generation.report import StepLedger
from firsthand.generation.service_values import StreamUsage
from firsthand.generation.texts import Reporter, Texts
from firsthand.request import Finish, FinishReason, TokenEvent
from firsthand.text.detokenize import TokenSource


class TextStream:
    """An iterator of `Chunk`; the last one of each of the request's n sequences has its
    `Completion`.

    Each wait for a token can be interrupted: Ctrl-C ends the generation with CANCELLED, the
    chunks with the ends still come, and the engine goes on serving. Closing, or dropping, the
    stream before its end aborts the request. With n = 1 a fault of the engine raises EngineError
    from `__next__`, after which `failed` has what was generated until then; with more, it is the
    finish reason ERROR of the sequences that it hit.
    """

    def __init__(
        self,
        events: EventStream,
        job: Job,
        tokens: TokenSource,
        clock: Callable[[], float],
        ledger: StepLedger,
        report: Reporter,
    ) -> None:
        self._events = events
        self._job = job
        self._clock = clock
        self._texts = Texts(job, tokens, clock, ledger, report)
        self._choices = self._texts.choices
        self._last: Choice | None = None  # whose chunk was given last
        self._cancelled: deque[Choice] = deque()  # ended by `cancel`, and not given yet
        self._closed = False
        self.failed: Completion | None = None
        # Runs also when the stream is dropped unread, where a generator's clean-up would not.
        self._abandon = weakref.finalize(self, events.close)

    @property
    def usage(self) -> StreamUsage:
        """So far; after the last chunk, all of it."""
        return self._texts.usage

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._last is not None:
            self._last.was_given()
        try:
            while not self._closed:
                event = next(self._events)
                if not self._choices[event.index].ended:  # else what its abort crossed
                    return self._take(event)
        except KeyboardInterrupt:
            return self.cancel()
        if self._cancelled:
            return self._give(self._cancelled.popleft())
        raise StopIteration

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what is left; no-op after the end."""
        self._closed = True
        self._abandon()

    def cancel(self) -> Chunk:
        """End the generation now, with reason CANCELLED and the texts so far. After its end, the
        same end again. With n > 1 the chunks of the other sequences follow."""
        self.close()
        at_s, request_id = self._clock(), self._job.request.request_id
        finish = Finish(FinishReason.CANCELLED, "interrupted")
        for choice in self._choices:
            if not choice.ended:
                self._end(TokenEvent(request_id, None, at_s, finish=finish, index=choice.index))
                self._cancelled.append(choice)
        return self._give(self._cancelled.popleft() if self._cancelled else self._choices[-1])

    def completion(self) -> Completion:
        """Read to the end; of the first sequence. Raises EngineError as `__next__` does."""
        return self.completions()[0]

    def completions(self) -> list[Completion]:
        """Read to the end; one per sequence, in the order of their index."""
        for _ in self:
            pass
        return self._texts.completions()

    def outcome(self) -> list[Completion]:
        """The completions, also of a request that ended by a fault."""
        try:
            return self.completions()
        except EngineError:
            if self.failed is None:
                raise
            return [self.failed]

    def _take(self, event: TokenEvent) -> Chunk:
        choice = self._choices[event.index]
        fault = self._texts.fault(self._end(event))
        if fault is not None:
            self.failed = choice.completion
            raise fault
        return self._give(choice)

    def _end(self, event: TokenEvent) -> Finish | None:
        """Take the event; if it ends its sequence, here or in the engine, end it in both."""
        finish = self._texts.take(event)
        if self._texts.ended:
            self.close()
        elif finish is not None and event.finish is None:  # a stop string
            self._events.close_index(event.index)
        return finish

    def _give(self, choice: Choice) -> Chunk:
        self._last = choice
        return choice.chunk()
