"""The events of one request become text, piece by piece.

Owns: the order event → bytes → characters → stop strings, and the one end of each generation.
May not know: models, threads, how a prompt came to be.
Read next: `text/detokenize.py`, `text/stops.py`; below, `engine/worker.py` (`EventStream`).

Streamed and not streamed are the same thing here: `completion` reads the stream to its end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from firsthand.engine.worker import EventStream
from firsthand.errors import EngineError
from firsthand.generation.completion import Chunk, Completion, TokenLogprob
from firsthand.generation.report import Report, StepLedger, StepTimes, Timeline
from firsthand.request import Finish, FinishReason, Request, TokenEvent, Usage
from firsthand.text.detokenize import Detokenizer, TokenSource
from firsthand.text.stops import StopStrings


@dataclass(frozen=True, slots=True)
class Job:
    """A request with what only the façade knows of it. Times are those of the clock.

    `continues`: the text goes on from the prompt's, so a space at its beginning belongs to it.
    """

    request: Request
    stop_strings: tuple[str, ...]
    continues: bool
    called_s: float
    tokenized_s: float


Reporter = Callable[[Request, Timeline, StepTimes], Report]


class TextStream:
    """An iterator of `Chunk`; the last one has the `Completion`.

    Each wait for a token can be interrupted: Ctrl-C ends the generation with CANCELLED, the
    chunk with the end still comes, and the engine goes on serving. Closing, or dropping, the
    stream before its end aborts the request. A fault of the engine raises EngineError from
    `__next__`, after which `failed` has what was generated until then.
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
        self._tokens = tokens
        self._clock = clock
        self._ledger = ledger
        self._report = report
        self._detokenizer = Detokenizer(tokens, continues=job.continues)
        self._stops = StopStrings(job.stop_strings)
        self._pieces: list[_Piece] = []
        self._num_given = 0  # pieces in the chunks that have certainly reached the caller
        self._num_in_chunk = 0  # the same, with the last chunk
        self._detokenize_s = 0.0
        self._closed = False
        self._completion: Completion | None = None
        self.failed: Completion | None = None
        # Runs also when the stream is dropped unread, where a generator's clean-up would not.
        self._abandon = weakref.finalize(self, events.close)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        self._num_given = self._num_in_chunk
        if self._closed:
            raise StopIteration
        try:
            return self._take(next(self._events))
        except KeyboardInterrupt:
            return self.cancel()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what is left; no-op after the end."""
        self._closed = True
        self._abandon()

    def cancel(self) -> Chunk:
        """End the generation now, with reason CANCELLED and the text so far. After its end, the
        same end again."""
        if self._completion is not None:
            return self._chunk(self._completion)
        at_s = self._clock()
        finish = Finish(FinishReason.CANCELLED, "interrupted")
        return self._take(TokenEvent(self._job.request.request_id, None, at_s, finish=finish))

    def completion(self) -> Completion:
        """Read to the end. Raises EngineError as `__next__` does."""
        for chunk in self:
            if chunk.completion is not None:
                return chunk.completion
        raise EngineError("the stream was closed before its end")

    def _take(self, event: TokenEvent) -> Chunk:
        started_s = self._clock()
        logprob = self._logprob(event)
        text, finish = self._text_of(event)
        # In one go: an interrupt finds a token with its text and its logprob, or none of them.
        self._pieces.append(_Piece(text, event.token_id, event.at_s, logprob))
        self._detokenize_s += self._clock() - started_s
        if finish is None:
            return self._chunk(None)
        completion = self._end(finish)
        if finish.reason is FinishReason.ERROR:
            self.failed = completion
            raise EngineError(f"request {self._job.request.request_id}: {finish.cause}")
        return self._chunk(completion)

    def _chunk(self, completion: Completion | None) -> Chunk:
        """The pieces since the last chunk that reached the caller; an interrupt loses none."""
        pieces = self._pieces[self._num_given :]
        self._num_in_chunk = len(self._pieces)
        logprobs = tuple(piece.logprob for piece in pieces if piece.logprob is not None)
        return Chunk(
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(piece.token_id for piece in pieces if piece.token_id is not None),
            logprobs=logprobs if self._wants_logprobs else None,
            completion=completion,
        )

    def _text_of(self, event: TokenEvent) -> tuple[str, Finish | None]:
        """The text that is certain now, and the end: the engine's, or a stop string before it.

        A token that ends the sequence by its id has no text. At the end, what was held back for
        half a character or a possible stop string is given out.
        """
        text, stop, finish = "", None, event.finish
        ends_by_id = finish is not None and finish.reason in _ENDS_BY_ID
        if event.token_id is not None and not ends_by_id:
            text, stop = self._stops.add(self._detokenizer.add(event.token_id))
        if finish is not None and stop is None:
            tail, stop = self._stops.add(self._detokenizer.finish())
            text += tail if stop is not None else tail + self._stops.finish()
        if stop is not None:
            finish = Finish(FinishReason.STOP_STRING, stop)
        return text, finish

    @property
    def _wants_logprobs(self) -> bool:
        return self._job.request.sampling.logprobs is not None

    def _logprob(self, event: TokenEvent) -> TokenLogprob | None:
        """The entry of the event's token, if entries were asked for."""
        if not self._wants_logprobs or event.token_id is None or event.logprob is None:
            return None
        raw = self._tokens.token_bytes(event.token_id)
        return TokenLogprob(
            token_id=event.token_id,
            text=_text(raw),
            raw=raw,
            logprob=event.logprob,
            top=tuple(
                (token_id, _text(self._tokens.token_bytes(token_id)), logprob)
                for token_id, logprob in event.top_logprobs
            ),
        )

    def _end(self, finish: Finish) -> Completion:
        self.close()  # a stop string or an interrupt: the engine learns of it by this abort
        request = self._job.request
        token_ids = [piece.token_id for piece in self._pieces if piece.token_id is not None]
        logprobs = tuple(piece.logprob for piece in self._pieces if piece.logprob is not None)
        timeline = Timeline(
            called_s=self._job.called_s,
            tokenized_s=self._job.tokenized_s,
            token_at_s=tuple(p.at_s for p in self._pieces if p.token_id is not None),
            ended_s=self._clock(),
            detokenize_ms=self._detokenize_s * 1e3,
        )
        self._completion = Completion(
            text="".join(piece.text for piece in self._pieces),
            token_ids=tuple(token_ids),
            finish=finish,
            usage=Usage(len(request.prompt_token_ids), len(token_ids)),
            seed=request.seed,
            report=self._report(request, timeline, self._ledger.of(request.request_id)),
            logprobs=logprobs if self._wants_logprobs else None,
        )
        return self._completion


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one event brought: its text, its token if it had one, when it came."""

    text: str
    token_id: int | None
    at_s: float
    logprob: TokenLogprob | None


_ENDS_BY_ID = (FinishReason.END_TOKEN, FinishReason.STOP_ID)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
