"""The sequences of one request become texts: the core of every stream.

Owns: which of the request's n sequences an event belongs to, the end of each, and of all.
May not know: where events come from, who waits for them and how.
Read next: `choice.py` (one sequence); above, `stream.py` and `async_stream.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from firsthand.errors import EngineError, FirsthandError, InvalidRequest
from firsthand.generation.choice import Choice, Job
from firsthand.generation.completion import Completion
from firsthand.generation.report import Report, StepLedger, StepTimes, Timeline
from firsthand.generation.service_values import StreamUsage
from firsthand.request import Finish, FinishReason, Request, TokenEvent
from firsthand.text.detokenize import TokenSource

Reporter = Callable[[Request, Timeline, StepTimes], Report]


class Texts:
    """One `Choice` per sequence. `take` each event of a sequence that has not ended."""

    def __init__(
        self,
        job: Job,
        tokens: TokenSource,
        clock: Callable[[], float],
        ledger: StepLedger,
        report: Reporter,
    ) -> None:
        self._request = job.request
        self._ledger = ledger
        self._report = report
        self.choices = [Choice(job, index, tokens, clock) for index in range(job.request.n)]

    @property
    def ended(self) -> bool:
        """All of them."""
        return all(choice.ended for choice in self.choices)

    @property
    def steps(self) -> StepTimes:
        """Those that the request took part in, so far."""
        return self._ledger.of(self._request.request_id)

    @property
    def usage(self) -> StreamUsage:
        """So far; after the last chunk, all of it."""
        steps = self.steps
        return StreamUsage(
            prompt_tokens=len(self._request.prompt_token_ids),
            completion_tokens=sum(choice.num_tokens for choice in self.choices),
            cached_tokens=steps.num_cached_tokens,
            draft_tokens=steps.num_guesses,
            accepted_tokens=steps.num_accepted,
        )

    def take(self, event: TokenEvent) -> Finish | None:
        """The finish that the event brings, if any. It may be a stop string's, of which only the
        text knows: then the event has none, and the engine has still to be told."""
        choice = self.choices[event.index]
        finish = choice.take(event)
        if finish is not None:
            choice.complete(finish, self._report(self._request, choice.timeline(), self.steps))
        return finish

    def fault(self, finish: Finish | None) -> FirsthandError | None:
        """What a reader is told of a fault that ended the only sequence. Where there are more, it
        is in the completion of each that it hit."""
        if finish is None or finish.reason is not FinishReason.ERROR or len(self.choices) > 1:
            return None
        return self.error_of(finish)

    def error_of(self, finish: Finish) -> FirsthandError:
        """A cause that begins with the field of the request's grammar is that grammar's."""
        grammar, cause = self._request.grammar, str(finish.cause)
        if grammar is not None and cause.startswith(f"{grammar.field}: "):
            return InvalidRequest(grammar.field, cause.removeprefix(f"{grammar.field}: "))
        return EngineError(f"request {self._request.request_id}: {cause}")

    def completions(self) -> list[Completion]:
        """One per sequence. Raises EngineError if some have not ended."""
        ended = [choice.completion for choice in self.choices if choice.completion is not None]
        if len(ended) < len(self.choices):
            raise EngineError("the stream was closed before its end")
        return ended
