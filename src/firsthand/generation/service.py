"""Text in, text out for one model whose engine is a child process: the seam that `server` knows.

Owns: prompts (text, ids, messages) off the event loop, request ids, streams of text, and what is
known of the engine now: its state, its load, its steps.
May not know: HTTP, keys, how an engine works, sockets.
Read next: `remote.py` (the child and its watch), `async_stream.py` (what `submit` gives),
`service_values.py` (what is told and asked), `prompts.py` (text becomes ids).

One event loop owns a service; every method is called on it. Two steps make an answer, so that the
prompt's length is known before anything is admitted:

    service = await Service.start(ServiceOptions("smollm2-135m"))
    await service.wait_ready()
    prompt = await service.render([{"role": "user", "content": "Hello!"}])
    stream = service.submit(prompt, {"max_tokens": 8}, n=1)
    async for chunk in stream:
        print(chunk.text, end="")
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from firsthand.engine.facts import StepFacts
from firsthand.generation.async_stream import AsyncTextStream
from firsthand.generation.choice import Job
from firsthand.generation.engines import Engines, MakesEngines
from firsthand.generation.frames import Disturb, EngineFacts, LoadModel, Look, Pace
from firsthand.generation.listeners import Listeners
from firsthand.generation.options import Checked, Options, read_options, read_pooling, request_of
from firsthand.generation.prompts import Prompts, Source, read_source
from firsthand.generation.remote import Remote
from firsthand.generation.report import (
    Memory,
    Report,
    StepLedger,
    StepTimes,
    Timeline,
    build_report,
)
from firsthand.generation.service_values import (
    Load,
    ModelFacts,
    Prompt,
    ServiceOptions,
    ServiceState,
    Status,
    StreamUsage,
)
from firsthand.generation.texts import Texts
from firsthand.generation.traffic import Traffic
from firsthand.generation.watch import Watch
from firsthand.request import Grammar, Request, TokenEvent
from firsthand.scheduling.limits import check_token_ids
from firsthand.scheduling.picture import Picture
from firsthand.text.tokenizer import Infill

__all__ = [
    "AsyncTextStream",
    "Load",
    "ModelFacts",
    "Prompt",
    "Service",
    "ServiceOptions",
    "ServiceState",
    "Status",
    "StreamUsage",
]

COMPILE_S = 300.0  # a step that compiles waits for other processes


class Service:
    """One model and its engine process. Made by `start`, ended by `close`."""

    def __init__(
        self, options: ServiceOptions, after: Service | None, engines: MakesEngines | None
    ) -> None:
        """For `start`: no model is read and no process started yet."""
        self._options = options
        self._clock = time.perf_counter
        self._ledger = StepLedger(capacity=2 * options.max_requests)
        self._traffic = Traffic(self._clock)
        self._step_listeners: Listeners[StepFacts] = Listeners()
        self._event_listeners: Listeners[tuple[TokenEvent, ...]] = Listeners()
        # Who comes after another computes where that one did.
        self._engines: MakesEngines = engines or (Remote if after is None else after._engines)
        self._remote: Engines = self._engines(
            LoadModel(str(options.model), options.load, options.chaos),
            Watch(hang_s=max(options.hang_s, COMPILE_S if options.load.compile else 0.0)),
            options.max_requests,
            on_step=self._on_step,
            on_end=self._traffic.ended,
            on_events=self._event_listeners.tell,
            clock=self._clock,
        )
        self._numbers: Iterator[int] = count() if after is None else after._numbers
        self._source: Source | None = None
        self._prompts: Prompts | None = None

    @classmethod
    async def start(
        cls,
        options: ServiceOptions,
        *,
        load: bool = True,
        after: Service | None = None,
        engines: MakesEngines | None = None,
    ) -> Service:
        """Start the engine and read the tokenizer; returns when text can be tokenised, usually
        before that is ready. Without `load` it is asleep. Ids go on from those of `after`.

        Raises ModelNotFound, CheckpointError, UnsupportedModel, InvalidRequest.
        """
        service = cls(options, after, engines)
        if load:
            service._remote.start()
        try:
            await service._read_source()
        except BaseException:
            await service.close()
            raise
        return service

    async def wait_ready(self) -> None:
        """Until the engine takes requests (warm-up included). Raises what its load raised:
        CheckpointError, UnsupportedModel, CapacityExceeded, InvalidRequest, EngineError."""
        await self._remote.wait_ready()

    async def close(self) -> None:
        """End the engine; open streams raise EngineUnavailable. May be called again."""
        await self._remote.stop(Status.CLOSED, "the service was closed")
        if self._prompts is not None:
            await asyncio.to_thread(self._prompts.close)

    def cut(self) -> None:
        """For a process that ends at once: the engine is killed, open streams raise EngineClosed
        now, and nothing is waited for. `close` may follow."""
        self._remote.cut("the process ends")

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def sleep(self) -> None:
        """End the engine, so that its memory is free, and keep the tokenizer."""
        if self._remote.status is not Status.CLOSED:
            await self._remote.stop(Status.ASLEEP, "the model was put to sleep")

    async def wake(self) -> None:
        """Start an engine again, if there is none (asleep or failed); see `wait_ready`."""
        if self._remote.status is not Status.CLOSED:
            self._remote.start()

    async def disturb(self, name: str, seconds: float, amount: float) -> None:
        """Put a fault of `faults.py` into the engine. Raises InvalidRequest, EngineUnavailable."""
        await self._remote.disturb(Disturb(name, seconds, amount))

    def tick(self) -> None:
        """About once a second: reap helper processes that were ended from outside."""
        if self._prompts is not None:
            self._prompts.reap()

    @property
    def state(self) -> ServiceState:
        remote, now_s = self._remote, self._clock()
        return ServiceState(
            status=remote.status,
            reason=remote.reason,
            age_s=now_s - remote.since_s,
            heartbeat_age_s=remote.silent_s,
            step_age_s=None if remote.last_step_s is None else now_s - remote.last_step_s,
            num_restarts=remote.num_restarts,
            pid=remote.pid,
            progress=remote.progress,
            memory_short=remote.memory_short,
            stalled_s=remote.stalls_s,
            is_lost=remote.is_lost,
            replicas=remote.replicas,
        )

    @property
    def model(self) -> ModelFacts:
        source, engine = self._known, self._remote.facts
        template = self._text.template_source
        return ModelFacts(
            name=self._options.name or str(self._options.model),
            created_s=source.created_s,
            context_length=self._context_length,
            vocab_size=source.vocab_size,
            end_token_ids=tuple(sorted(source.tokenizer.end_ids)),
            has_chat_template=template is not None,
            chat_template=template,
            file=source.file,
            max_sequences=engine.limits.max_sequences if engine else 0,
            num_blocks=engine.num_blocks if engine else 0,
            block_size=engine.block_size if engine else 0,
            manifest_sha256=source.sha256,
            release=self._options.release,
            width=source.width,
            adapters=engine.adapters if engine else {},
            own_context_length=source.context_length,
            numerics=self._options.load.numerics,
        )

    @property
    def load(self) -> Load:
        engine = self._remote.facts
        return self._traffic.load(engine.num_blocks if engine else 0)

    @property
    def memory(self) -> Memory | None:
        """What holds the engine's memory; None before the first one was ready."""
        engine = self._remote.facts
        return None if engine is None else self._memory(engine, self.load.num_used_blocks)

    def clock(self) -> float:
        """Seconds, as `Prompt.called_s` and the engine's times: a clock for the whole machine."""
        return self._clock()

    def listen(self, listener: Callable[[StepFacts], None]) -> Callable[[], None]:
        """From now on `listener` gets the facts of each step, on the event loop, before the step's
        chunks are read. It must be quick; one that raises is told no more. The result ends it."""
        return self._step_listeners.add(listener)

    def listen_events(
        self, listener: Callable[[tuple[TokenEvent, ...]], None]
    ) -> Callable[[], None]:
        """As `listen`: the events of each step, right after its facts."""
        return self._event_listeners.add(listener)

    def look(self) -> None:
        """Ask the engine who runs and waits; the answer is `picture`, soon."""
        self._remote.tell(Look())

    @property
    def picture(self) -> Picture | None:
        """The last one that was asked for; None: none of this engine."""
        return self._remote.picture

    def set_pace(self, *, paused: bool, num_steps: int = 0, delay_s: float = 0.0) -> None:
        """Hold the engine back, for whoever wants to see its steps: no step but the next
        `num_steps`, or so much time between two. An engine that begins has its full pace."""
        self._remote.tell(Pace(paused, num_steps, delay_s))

    @property
    def pace(self) -> Pace:
        return self._remote.pace

    async def tokenize(
        self, text: str | Infill, *, add_bos: bool | None = None, limit: int = 0
    ) -> Prompt:
        """A text prompt. `add_bos` None is the model's own rule, `limit` 0 its context. Holds no
        loop up. Raises InvalidRequest, ContextLengthExceeded (before the work, if certain)."""
        return await self._text.tokenize(text, limit or self._context_length, add_bos=add_bos)

    def prompt_of(self, token_ids: Sequence[int], field: str = "prompt") -> Prompt:
        """A prompt of ids as they are. Raises InvalidRequest, which names the place in `field`."""
        check_token_ids(field, token_ids, self.model.vocab_size, placed=True)
        now_s = self._clock()
        return Prompt(tuple(token_ids), continues=True, called_s=now_s, tokenized_s=now_s)

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """A conversation in the model's template (`Prompt.text` is the rendered text); `variables`
        are chat_template_kwargs. With `continue_final_message` the answer goes on inside the last
        message. Raises InvalidRequest, TemplateError, CapacityExceeded."""
        return await self._text.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
        )

    async def detokenize(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of ids. Raises InvalidRequest."""
        return await self._text.detokenize(token_ids, skip_special=skip_special)

    async def check_grammar(self, grammar: Grammar) -> None:
        """Raise InvalidRequest, naming its field, for a grammar that cannot be compiled. Ask before
        `submit`, which does not wait: there it would be an error of the running request."""
        await self._text.check_grammar(grammar)

    def has_control(self, texts: Sequence[str]) -> bool:
        """Whether one of these is a control token, whose text is left out unless
        `skip_special_tokens` is False."""
        return self._text.has_control(texts)

    def num_tokens_of(self, token_ids: Sequence[int], num_chars: int) -> int:
        """How many of the first tokens the first `num_chars` characters of their text take."""
        return self._text.num_tokens_of(token_ids, num_chars)

    def token_bytes(self, token_id: int) -> bytes:
        return self._known.tokenizer.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """What a token's bytes decode to on their own (for return_token_strs)."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def submit(
        self,
        prompt: Prompt,
        options: Options,
        *,
        n: int = 1,
        skip_special_tokens: bool = True,
        include_stop_string: bool = False,
    ) -> AsyncTextStream:
        """Hand a request over; nothing waits. The keys of `options` are those of `Options`.
        `include_stop_string`: what ends the text, a stop string or a token by its id, is part of
        it. Raises InvalidRequest or ContextLengthExceeded (the field is named), CapacityExceeded
        (`max_requests`), EngineUnavailable (no engine now).
        """
        checked = read_options({**options, "n": n}, self._known.tokenizer.end_ids)
        return self._submit(prompt, checked, skip_special_tokens, include_stop_string)

    def submit_pooling(self, prompt: Prompt, options: Options, pooling: str) -> AsyncTextStream:
        """As `submit`, for one vector of the prompt and no text: `pooled` of its completion, of
        which `embedding.Shape` makes the vector."""
        return self._submit(prompt, read_pooling(pooling, options))

    def abort(self, request_id: str) -> bool:
        """End a request, from anywhere; its stream gives the finish CANCELLED. False: unknown."""
        return self._remote.abort(request_id)

    def _submit(
        self,
        prompt: Prompt,
        checked: Checked,
        skip_special_tokens: bool = True,
        include_stop_string: bool = False,
    ) -> AsyncTextStream:
        job = Job(
            request_of(checked, next(self._numbers), prompt.token_ids, prompt.called_s),
            checked.stop_strings,
            prompt.continues,
            prompt.called_s,
            prompt.tokenized_s,
            skip_special_tokens,
            include_stop_string,
        )
        events = self._remote.submit(job.request)
        self._traffic.submitted(job.request)
        texts = Texts(job, self._known.tokenizer, self._clock, self._ledger, self._report)
        return AsyncTextStream(events, texts, prompt)

    async def _read_source(self) -> None:
        options = self._options
        self._source = await asyncio.to_thread(read_source, options.model, options.load)
        self._prompts = Prompts(self._source.tokenizer, options.chat_template, self._clock)
        if options.chat_template is not None:  # the operator's: nobody's request is to blame for it
            await self._prompts.check_template()

    @property
    def _known(self) -> Source:
        assert self._source is not None, "made by `start`"
        return self._source

    @property
    def _text(self) -> Prompts:
        assert self._prompts is not None, "made by `start`"
        return self._prompts

    @property
    def _context_length(self) -> int:
        """The engine's, which memory may have made shorter than the model's own."""
        engine = self._remote.facts
        return engine.limits.context_length if engine else self._known.context_length

    def _report(self, request: Request, timeline: Timeline, steps: StepTimes) -> Report:
        engine = self._remote.facts
        assert engine is not None, "it took the request"
        num_prompt_tokens = len(request.prompt_token_ids)
        num_stored = num_prompt_tokens + max(0, len(timeline.token_at_s) - 1)
        memory = self._memory(engine, -(-num_stored // engine.block_size))
        return build_report(engine.load, memory, num_prompt_tokens, timeline, steps)

    def _memory(self, engine: EngineFacts, num_used_blocks: int) -> Memory:
        used_bytes, peak_bytes = num_used_blocks * engine.block_bytes, self._remote.peak_rss_bytes
        return replace(engine.memory, kv_used_bytes=used_bytes, peak_rss_bytes=peak_bytes)

    def _on_step(self, facts: StepFacts) -> None:
        self._ledger.record(facts)
        self._traffic.stepped(facts)
        self._step_listeners.tell(facts)
