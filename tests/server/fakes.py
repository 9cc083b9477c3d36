"""A service whose answers are written down beforehand, for what a real engine does not do on
demand: wait, fail in the middle, hold text back.

Owns: `FakeService` and `Script`. May not know: the routes. Read next: `conftest.py`.

One token per byte of text, as the micro model has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firsthand.engine.facts import StepFacts
from firsthand.errors import ContextLengthExceeded, EngineError, InvalidRequest
from firsthand.generation.completion import Chunk, Completion, TokenLogprob
from firsthand.generation.frames import Pace
from firsthand.generation.member import Member, RegistryEntry
from firsthand.generation.options import Options, read_options, read_pooling
from firsthand.generation.registry import Registry, Stays
from firsthand.generation.report import LoadTimes, Memory, Report
from firsthand.generation.service import (
    AsyncTextStream,
    Load,
    ModelFacts,
    Prompt,
    Service,
    ServiceOptions,
    ServiceState,
    Status,
    StreamUsage,
)
from firsthand.memory.budget import Limit
from firsthand.request import (
    Finish,
    FinishReason,
    Grammar,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
    Usage,
)
from firsthand.scheduling.limits import check_token_ids
from firsthand.scheduling.picture import Picture
from firsthand.text.templates import check_messages
from firsthand.text.tokenizer import Infill

CONTEXT = 512
END = 256


@dataclass
class Script:
    """The pieces of each answer, and how it ends. `fault` is raised after the pieces."""

    pieces: Sequence[str] = ("Hel", "lo")
    finish: Finish = field(default_factory=lambda: Finish(FinishReason.END_TOKEN, END))
    pause_s: float = 0.0
    fault: Exception | None = None
    endless: bool = False
    pooled: bytes = b""


POOLED = Script((), Finish(FinishReason.LENGTH, 0), pooled=bytes(8 * 8))


def report(num_prompt: int, num_tokens: int) -> Report:
    return Report(
        load=LoadTimes(1, 1, 1, 1, 1, 5),
        memory=Memory(1, 1, 1, 1, 1),
        num_prompt_tokens=num_prompt,
        num_tokens=num_tokens,
        tokenize_ms=0.1,
        queue_ms=0.2,
        prompt_ms=3.0,
        token_ms=(1.0,) * max(0, num_tokens - 1),
        forward_ms=1.0,
        sample_ms=1.0,
        detokenize_ms=0.1,
        ttft_ms=3.3,
        total_ms=5.0,
        num_steps=num_tokens,
        peak_batch=1,
    )


class FakeStream(AsyncTextStream):
    def __init__(self, script: Script, prompt: Prompt, n: int, logprobs: bool) -> None:
        self._script = script
        self._prompt = prompt
        self._logprobs = logprobs
        self._chunks = self._make(n)
        self._n = n
        self.num_tokens = 0
        self.is_closed = self.is_aborted = False
        self.has_ended = False

    @property
    def request(self) -> Request:
        stop = StopRules(max(1, len(self._script.pieces)))
        return Request("request-1", self._prompt.token_ids, SamplingParams(), stop, 0, self._n)

    @property
    def request_id(self) -> str:
        return "request-1"

    @property
    def prompt(self) -> Prompt:
        return self._prompt

    @property
    def usage(self) -> StreamUsage:
        return StreamUsage(self._prompt.num_tokens, self.num_tokens, 0)

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    def error_of(self, finish: Finish) -> EngineError:
        return EngineError(str(finish.cause))

    def close(self) -> None:
        self.is_closed = True

    async def _make(self, n: int) -> Any:
        pieces = self._script.pieces
        texts = dict.fromkeys(range(n), "")
        while True:
            for piece in pieces:
                for index in range(n):
                    if self.is_aborted:
                        yield self._end(index, texts[index], Finish(FinishReason.CANCELLED))
                        return
                    await asyncio.sleep(self._script.pause_s)
                    texts[index] += piece
                    ids = tuple(piece.encode())
                    self.num_tokens += len(ids)
                    yield Chunk(piece, ids, self._entries(piece), index=index)
            if not self._script.endless:
                break
        if self._script.fault is not None:
            raise self._script.fault
        for index in range(n):
            yield self._end(index, texts[index], self._script.finish)
        self.has_ended = True

    def _end(self, index: int, text: str, finish: Finish) -> Chunk:
        count = len(text.encode())
        completion = Completion(
            text=text,
            token_ids=tuple(text.encode()),
            finish=finish,
            usage=Usage(self._prompt.num_tokens, count),
            seed=0,
            report=report(self._prompt.num_tokens, count),
            logprobs=self._entries(text),
            index=index,
            pooled=self._script.pooled,
        )
        return Chunk("", (), self._entries(""), completion, index)

    def _entries(self, text: str) -> tuple[TokenLogprob, ...] | None:
        if not self._logprobs:
            return None
        return tuple(
            TokenLogprob(byte, chr(byte), bytes((byte,)), -0.5, ((byte, chr(byte), -0.5),))
            for byte in text.encode()
        )


class FakeService(Service):
    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.streams: list[FakeStream] = []
        self.options: list[Options] = []
        self.template = "template"
        self.rendered: list[tuple[Any, Any]] = []  # messages and tools
        self.variables: list[dict[str, Any]] = []  # of each
        self.status = Status.READY
        self.fault: Exception | None = None  # raised by `submit`

    @property
    def state(self) -> ServiceState:
        return ServiceState(self.status, "", 1.0, 0.1, 0.1, 0, 1)

    @property
    def model(self) -> ModelFacts:
        sizes = (8, 32, 16, None, 8)
        return ModelFacts("micro", 1, CONTEXT, 257, (END,), True, self.template, "micro", *sizes)

    @property
    def memory(self) -> Memory | None:
        return Memory(1 << 20, 2 << 20, 4 << 20, 0, 0)

    @property
    def load(self) -> Load:
        none = (0, 0, 0)
        return Load(0, 0, 0, none, none, 0, 32, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)

    def clock(self) -> float:
        return 0.0

    def tick(self) -> None:
        pass

    def listen(self, listener: Callable[[StepFacts], None]) -> Callable[[], None]:
        return lambda: None

    def listen_events(
        self, listener: Callable[[tuple[TokenEvent, ...]], None]
    ) -> Callable[[], None]:
        return lambda: None

    def look(self) -> None:
        pass

    @property
    def picture(self) -> Picture | None:
        return None

    @property
    def pace(self) -> Pace:
        return Pace()

    def set_pace(self, *, paused: bool, num_steps: int = 0, delay_s: float = 0.0) -> None:
        raise AssertionError("nobody holds this one back")

    async def tokenize(
        self, text: str | Infill, *, add_bos: bool | None = None, limit: int = 0
    ) -> Prompt:
        if isinstance(text, Infill):
            raise InvalidRequest("suffix", "this model has no tokens for filling in")
        return Prompt(tuple(text.encode()), True, 0.0, 0.0, text)

    def prompt_of(self, token_ids: Sequence[int], field: str = "prompt") -> Prompt:
        check_token_ids(field, token_ids, self.model.vocab_size, placed=True)
        return Prompt(tuple(token_ids), True, 0.0, 0.0)

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        checked = check_messages(messages)
        self.rendered.append((checked, tools))
        self.variables.append(dict(variables or {}))
        text = "".join(f"{message['role']}: {message.get('content')}\n" for message in checked)
        prompt = await self.tokenize(text + "assistant: " * add_generation_prompt)
        return replace(prompt, continues=continue_final_message)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        if any(token_id > END for token_id in token_ids):
            raise InvalidRequest("token_ids", "outside the vocabulary")
        return bytes(one for one in token_ids if one < END).decode("utf-8", "replace")

    async def check_grammar(self, grammar: Grammar) -> None:
        pass

    def has_control(self, texts: Sequence[str]) -> bool:
        return False

    def num_tokens_of(self, token_ids: Sequence[int], num_chars: int) -> int:
        return min(num_chars, len(token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def submit(
        self,
        prompt: Prompt,
        options: Options,
        *,
        n: int = 1,
        skip_special_tokens: bool = True,
        include_stop_string: bool = False,
    ) -> AsyncTextStream:
        read_options({**options, "n": n}, frozenset((END,)))
        return self._open(prompt, options, self.script, n)

    def submit_pooling(self, prompt: Prompt, options: Options, pooling: str) -> AsyncTextStream:
        read_pooling(pooling, options)
        return self._open(prompt, options, POOLED)

    def abort(self, request_id: str) -> bool:
        """The only name that its requests have: all of them end."""
        for stream in self.streams:
            stream.is_aborted = True
        return True

    def _open(
        self, prompt: Prompt, options: Options, script: Script, n: int = 1
    ) -> AsyncTextStream:
        if self.fault is not None:
            raise self.fault
        if not prompt.token_ids:
            raise InvalidRequest("prompt", "must hold at least one token")
        if any(not 0 <= token_id < 257 for token_id in prompt.token_ids):
            raise InvalidRequest("prompt", "a token id is outside the vocabulary")
        if prompt.num_tokens >= CONTEXT:
            raise ContextLengthExceeded("prompt", f"{prompt.num_tokens} tokens, room for {CONTEXT}")
        self.options.append(options)
        stream = FakeStream(script, prompt, n, options.get("logprobs") is not None)
        self.streams.append(stream)
        return stream


def registry_of(service: Service) -> Registry:
    """With one model, which is there."""
    member = Member("micro", RegistryEntry(ServiceOptions("micro")), service, 0)
    return Registry([member], Limit(None, ""), Stays())
