"""A small model that answers, and a large one where it is not sure: the façade over two `LLM`s.

Owns: what is held back until it is known who answers, that no text of the one ever follows text of
the other, which two models a calibration is of.
May not know: how a score comes to be, or what it is worth (`cascade/`); HTTP.
Read next: `cascade/confidence.py`, `llm.py`; `server/cascade.py`, the same in a server.

    with Cascade.open("quick.json") as cascade:
        stream = cascade.stream_chat([{"role": "user", "content": "Hello!"}], max_tokens=64)
        print(stream.decision.reason, stream.completion().text, stream.told.to_dict())

The answer is, bit for bit, the one that the model which gives it would give alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Unpack

from firsthand.cascade.calibration import Calibration, read_calibration
from firsthand.cascade.confidence import Hearing
from firsthand.cascade.decision import TOO_LONG, Decision, Told
from firsthand.errors import ContextLengthExceeded, InvalidRequest
from firsthand.generation.calibrated import (
    as_calibrated,
    calibrated_keywords,
    check_options,
    check_sides,
    decided,
    side_of,
    spent_of,
)
from firsthand.generation.completion import Chunk, Completion, without_logprobs
from firsthand.generation.llm import LLM, Messages
from firsthand.generation.load_options import LoadKeywords
from firsthand.generation.options import Options
from firsthand.generation.stream import TextStream
from firsthand.request import FinishReason

NO_ANSWER = (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR)


class Cascade:
    """Owns neither model, but for those that `open` has loaded."""

    def __init__(self, small: LLM, large: LLM, calibration: Calibration) -> None:
        """That they are the models of the calibration is the caller's to know (`check_sides`)."""
        self.small, self.large, self.calibration = small, large, calibration
        self._owned = ExitStack()

    @classmethod
    def open(cls, path: str | Path, **options: Unpack[LoadKeywords]) -> Cascade:
        """The two models that a file of `cascade calibrate` names, loaded as they were then.
        Raises InvalidRequest where one of them has changed."""
        calibration = read_calibration(Path(path))
        sides = (calibration.small, calibration.large)
        loads = [as_calibrated(side, options) for side in sides]
        found = [side_of(one.model, load) for one, load in zip(sides, loads, strict=True)]
        check_sides(calibration, *found)
        with ExitStack() as owned:
            small, large = (
                owned.enter_context(LLM(side.model, **calibrated_keywords(side, options)))
                for side in sides
            )
            cascade = cls(small, large, calibration)
            cascade._owned = owned.pop_all()
        return cascade

    def close(self) -> None:
        self._owned.close()

    def __enter__(self) -> Cascade:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self, prompt: str, *, n: int | None = None, **options: Unpack[Options]
    ) -> CascadeStream:
        """As `stream`, read to its end."""
        return self.stream(prompt, n=n, **options).read()

    def chat(
        self, messages: Messages, *, n: int | None = None, **options: Unpack[Options]
    ) -> CascadeStream:
        """As `stream_chat`, read to its end."""
        return self.stream_chat(messages, n=n, **options).read()

    def stream(
        self, prompt: str, *, n: int | None = None, **options: Unpack[Options]
    ) -> CascadeStream:
        """Continue a text; it returns when it is known who does. Raises InvalidRequest for token
        ids, and options that only one of the models could understand."""
        if not isinstance(prompt, str):
            raise InvalidRequest("prompt", "must be text: token ids are of one model")
        return self._asked(lambda llm, own: llm.stream(prompt, n=n, **own), n or 1, options)

    def stream_chat(
        self, messages: Messages, *, n: int | None = None, **options: Unpack[Options]
    ) -> CascadeStream:
        """Answer a conversation, each model by its own template; otherwise as `stream`."""
        return self._asked(lambda llm, own: llm.stream_chat(messages, n=n, **own), n or 1, options)

    def _asked(
        self, ask: Callable[[LLM, Options], TextStream], n: int, options: Options
    ) -> CascadeStream:
        check_options(options)
        began_s = time.perf_counter()
        scored: Options = {**options}
        if scored.get("logprobs") is None:
            scored["logprobs"] = 0
        small, large, held = None, None, list[Chunk]()
        decision = Decision(TOO_LONG, self.calibration.confidence)
        with suppress(ContextLengthExceeded):
            small = ask(self.small, scored)
        if small is not None:
            hearing = Hearing(self.calibration.rule(), n)
            held = _read_ahead(small, hearing)
            decision = decided(self.calibration, hearing)
        attempt_ms = (time.perf_counter() - began_s) * 1e3
        if decision.escalated:
            held.clear()
            if small is not None:
                small.close()
            large = ask(self.large, options)
        hides = options.get("logprobs") is None
        return CascadeStream(
            self.calibration, decision, (small, large), held, attempt_ms, hides_logprobs=hides
        )


def _read_ahead(stream: TextStream, hearing: Hearing) -> list[Chunk]:
    """Until there is a verdict. An answer that was cut short is nobody's doubt: it is kept."""
    held = []
    for chunk in stream:
        held.append(chunk)
        ended = chunk.completion
        if ended is not None and ended.finish.reason in NO_ANSWER:
            hearing.verdict = True
        else:
            scores = [one.logprob for one in chunk.logprobs or ()]
            hearing.add(chunk.index, scores, ended=ended is not None)
        if hearing.verdict is not None:
            break
    return held


class CascadeStream:
    """The answer of one of the two models, as `TextStream` gives it."""

    def __init__(
        self,
        calibration: Calibration,
        decision: Decision,
        streams: tuple[TextStream | None, TextStream | None],
        held: Sequence[Chunk],
        attempt_ms: float,
        *,
        hides_logprobs: bool,
    ) -> None:
        self.decision = decision
        self._calibration = calibration
        self._small, self._large = streams
        self._held = deque(held)
        self._attempt_ms = attempt_ms
        self._hides = hides_logprobs
        self._completions: dict[int, Completion] = {}

    @property
    def told(self) -> Told:
        """Both costs, so far."""
        sides = (self._calibration.small, self._calibration.large)
        small, large = (
            None if stream is None else spent_of(side, stream.usage)
            for side, stream in zip(sides, (self._small, self._large), strict=True)
        )
        return Told("", self.decision, small, large, self._attempt_ms)

    def __iter__(self) -> Iterator[Chunk]:
        stream = self._large or self._small
        assert stream is not None, "one of them answers"
        while self._held:
            yield self._given(self._held.popleft())
        for chunk in stream:
            yield self._given(chunk)

    def close(self) -> None:
        """Abort what is left."""
        for stream in (self._small, self._large):
            if stream is not None:
                stream.close()

    def read(self) -> CascadeStream:
        """To the end."""
        for _ in self:
            pass
        return self

    def completion(self) -> Completion:
        """Read to the end; of the first sequence."""
        return self.completions()[0]

    def completions(self) -> list[Completion]:
        """Read to the end; one per sequence, in the order of their index."""
        self.read()
        return [self._completions[index] for index in sorted(self._completions)]

    def _given(self, chunk: Chunk) -> Chunk:
        chunk = without_logprobs(chunk) if self._hides else chunk
        if chunk.completion is not None:
            self._completions[chunk.index] = chunk.completion
        return chunk
