"""One sequence of a request becomes text, piece by piece.

Owns: the order event → bytes → characters → stop strings, and the one end of each sequence.
May not know: models, threads, the request's other sequences.
Read next: `text/detokenize.py`, `text/stops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from firsthand.generation.completion import Chunk, Completion, TokenLogprob
from firsthand.generation.report import Report, Timeline
from firsthand.request import MAX_SEED, Finish, FinishReason, Request, TokenEvent, Usage
from firsthand.text.detokenize import Detokenizer, TokenSource
from firsthand.text.stops import StopStrings
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A request with what only the façade knows of it. Times are those of the clock.

    `continues`: the text goes on from the prompt's, so a space at its beginning belongs to it.
    `skip_special`: control tokens have no text. `include_stop`: what ended it, a stop string or a
    token by its id, is part of the text.
    """

    request: Request
    stop_strings: tuple[str, ...]
    continues: bool
    called_s: float
    tokenized_s: float
    skip_special: bool = True
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one event brought: its text, its token if it had one, when it came; and what it told of
    the prompt's next tokens."""

    text: str
    token_id: int | None
    at_s: float
    logprob: TokenLogprob | None
    prompt: tuple[TokenLogprob | None, ...] = ()


class Choice:
    """Sequence `index` of the job's request."""

    def __init__(
        self, job: Job, index: int, tokens: TokenSource, clock: Callable[[], float]
    ) -> None:
        self.index = index
        self.completion: Completion | None = None
        self._job = job
        self._tokens = tokens
        self._clock = clock
        self._detokenizer = Detokenizer(
            tokens, skip_special=job.skip_special, continues=job.continues
        )
        self._stops = StopStrings(job.stop_strings, include=job.include_stop)
        self._pieces: list[_Piece] = []
        self._num_given = 0  # pieces in the chunks that have certainly reached the caller
        self._num_in_chunk = 0  # the same, with the last chunk
        self._detokenize_s = 0.0
        self._num_scored = 0  # tokens of the prompt that have their entry
        self._pooled = b""

    @property
    def ended(self) -> bool:
        return self.completion is not None

    @property
    def num_tokens(self) -> int:
        """New ones, so far."""
        return sum(piece.token_id is not None for piece in self._pieces)

    def take(self, event: TokenEvent) -> Finish | None:
        """The finish that the event brings, the engine's or a stop string's before it."""
        started_s = self._clock()
        logprob = self._logprob(event)
        prompt = self._prompt_entries(event)
        text, finish = self._text_of(event)
        # In one go: an interrupt finds a token with its text and its logprob, or none of them.
        self._pieces.append(_Piece(text, event.token_id, event.at_s, logprob, prompt))
        if event.prompt is not None and event.prompt.pooled:
            self._pooled = event.prompt.pooled
        self._detokenize_s += self._clock() - started_s
        return finish

    def chunk(self) -> Chunk:
        """The pieces since the last chunk that reached the caller; an interrupt loses none."""
        pieces = self._pieces[self._num_given :]
        self._num_in_chunk = len(self._pieces)
        logprobs = tuple(piece.logprob for piece in pieces if piece.logprob is not None)
        return Chunk(
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(piece.token_id for piece in pieces if piece.token_id is not None),
            logprobs=logprobs if self._wants_logprobs else None,
            completion=self.completion,
            index=self.index,
            prompt_logprobs=_of_prompt(pieces) if self._reads_prompt else None,
        )

    def was_given(self) -> None:
        """The last chunk has reached the caller, who asks for the next one."""
        self._num_given = self._num_in_chunk

    def timeline(self) -> Timeline:
        """So far."""
        return Timeline(
            called_s=self._job.called_s,
            tokenized_s=self._job.tokenized_s,
            token_at_s=tuple(p.at_s for p in self._pieces if p.token_id is not None),
            ended_s=self._clock(),
            detokenize_ms=self._detokenize_s * 1e3,
        )

    def complete(self, finish: Finish, report: Report) -> None:
        """The sequence has ended with `finish`."""
        request = self._job.request
        token_ids = [piece.token_id for piece in self._pieces if piece.token_id is not None]
        logprobs = tuple(piece.logprob for piece in self._pieces if piece.logprob is not None)
        self.completion = Completion(
            text="".join(piece.text for piece in self._pieces),
            token_ids=tuple(token_ids),
            finish=finish,
            usage=Usage(len(request.prompt_token_ids), len(token_ids)),
            seed=(request.seed + self.index) % (MAX_SEED + 1),
            report=report,
            logprobs=logprobs if self._wants_logprobs else None,
            index=self.index,
            prompt_logprobs=_of_prompt(self._pieces) if self._reads_prompt else None,
            pooled=self._pooled,
        )

    def _text_of(self, event: TokenEvent) -> tuple[str, Finish | None]:
        """The text that is certain now, and the end: the engine's, or a stop string before it.

        A token that ends the sequence by its id has no text, unless that was asked for. At the
        end, what was held back for half a character or a possible stop string is given out.
        """
        text, stop, finish = "", None, event.finish
        ends_by_id = finish is not None and finish.reason in _ENDS_BY_ID
        ends_by_id = ends_by_id and not self._job.include_stop
        if event.token_id is not None and not ends_by_id:
            text, stop = self._stops.add(self._detokenizer.add(event.token_id))
        if finish is not None and stop is None:
            tail, stop = self._stops.add(self._detokenizer.finish())
            text += tail if stop is not None else tail + self._stops.finish()
        if stop is not None:
            late = self._job.request.is_late(event.at_s)
            finish = (
                Finish(FinishReason.DEADLINE) if late else Finish(FinishReason.STOP_STRING, stop)
            )
        return text, finish

    @property
    def _wants_logprobs(self) -> bool:
        return self._job.request.sampling.logprobs is not None

    def _logprob(self, event: TokenEvent) -> TokenLogprob | None:
        """The entry of the event's token, if entries were asked for."""
        if not self._wants_logprobs or event.token_id is None or event.logprob is None:
            return None
        return self._entry(event.token_id, event.logprob, event.top_logprobs)

    @property
    def _reads_prompt(self) -> bool:
        return self._job.request.prompt_logprobs is not None and self.index == 0

    def _prompt_entries(self, event: TokenEvent) -> tuple[TokenLogprob | None, ...]:
        """Those of the prompt's tokens that the event tells of; the first token has none, and goes
        with the first event."""
        scores = () if event.prompt is None else event.prompt.scores
        if not self._reads_prompt or (self._num_scored and not scores):
            return ()
        first: tuple[None, ...] = () if self._num_scored else (None,)
        start = self._num_scored + len(first)
        self._num_scored = start + len(scores)
        token_ids = self._job.request.prompt_token_ids[start : self._num_scored]
        entries = (self._entry(t, *score) for t, score in zip(token_ids, scores, strict=True))
        return (*first, *entries)

    def _entry(
        self, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]
    ) -> TokenLogprob:
        raw = self._tokens.token_bytes(token_id)
        return TokenLogprob(
            token_id=token_id,
            text=_text(raw),
            raw=raw,
            logprob=logprob,
            top=tuple(
                (other_id, _text(self._tokens.token_bytes(other_id)), value)
                for other_id, value in top
            ),
        )


_ENDS_BY_ID = (FinishReason.END_TOKEN, FinishReason.STOP_ID)


def _of_prompt(pieces: Sequence[_Piece]) -> tuple[TokenLogprob | None, ...]:
    return tuple(chain.from_iterable(piece.prompt for piece in pieces))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
