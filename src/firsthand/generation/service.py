"""Text in, text out for one model whose engine is a child process: the seam that `server` knows.

Owns: prompts (text, ids, messages) off the event loop, request ids, streams of text, and what is
known of the engine now: its state, its load, its steps.
May not know: HTTP, keys, how an engine works, sockets.
Read next: `remote.py` (the child and its watch), `texts.py` (events become text).

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from firsthand.engine.facts import StepFacts
from firsthand.generation.completion import Chunk, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.options import Options


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """`model` is a name, a path or a hub id; `name` what the service calls it (default: the model
    as given). `chat_template` replaces the model's own. A step loop that is silent for `hang_s`
    (or three times the longest step that the model can take, if that is more) is taken for hung.
    `max_requests` bounds what waits and runs together; one more is refused: CapacityExceeded."""

    model: str | Path
    load: LoadOptions = field(default_factory=LoadOptions)
    name: str | None = None
    chat_template: str | None = None
    hang_s: float = 8.0
    max_requests: int = 1040


class Status(StrEnum):
    LOADING = "loading"  # the first engine is not there yet
    READY = "ready"
    DEGRADED = "degraded"  # it takes requests, but its step loop is late: `reason` says how much
    RESTARTING = "restarting"  # an engine died or hung, the next one loads
    FAILED = "failed"  # engines end as soon as they start; tried again, less and less often
    ASLEEP = "asleep"  # `sleep` was asked for: no engine, no memory
    CLOSED = "closed"

    @property
    def takes_requests(self) -> bool:
        return self in (Status.READY, Status.DEGRADED)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What is known of the engine now. Ages are seconds; None: there was none yet."""

    status: Status
    reason: str  # "" when ready; fit to be shown to a user
    age_s: float  # since the status began
    heartbeat_age_s: float | None  # since the step loop last answered; 0.0 … 1.0 when all is well
    step_age_s: float | None  # since the last step
    num_restarts: int
    pid: int | None  # of the engine
    progress: float | None = None  # of a load, 0.0 … 1.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of the model without an engine; `context_length` and the sizes of the cache
    are those of the engine once it was ready (0 until then)."""

    name: str
    created_s: int  # when the model's file was last changed, in Unix time
    context_length: int
    vocab_size: int
    end_token_ids: tuple[int, ...]
    has_chat_template: bool
    chat_template: str | None
    file: str  # the base name only
    max_sequences: int
    num_blocks: int
    block_size: int
    manifest_sha256: str | None = None  # None: not known without reading the whole file


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and what making them took. `continues`: the answer goes on from this text, so a
    space at its beginning belongs to it (not so after a chat template). `called_s` is the time
    of the service's clock from which times to the first token and deadlines count."""

    token_ids: tuple[int, ...]
    continues: bool
    called_s: float
    tokenized_s: float
    text: str | None = None  # what was tokenised, where it was text

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Tokens of one request, all its n sequences; `cached_tokens` of the prompt's were not
    computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """Live numbers for admission; those of the engine are as of its last step.

    `num_open` requests are in progress in all (waiting, running, or on their way). The waiting
    tokens are of prompts of requests that have not begun; `num_owed_tokens` is an upper bound of
    what all open requests may still compute (prompt and max_tokens × n). Totals count since the
    service began; the rates are of the last half minute, over the time in which there was work
    (0.0: none measured yet).
    """

    num_open: int
    num_waiting: int  # sequences
    num_running: int  # sequences
    waiting_by_class: tuple[int, int, int]  # urgent, normal, background
    running_by_class: tuple[int, int, int]
    num_used_blocks: int
    num_blocks: int
    num_waiting_tokens: int
    num_owed_tokens: int
    total_submitted: int
    total_ended: int
    total_computed_tokens: int
    total_drawn_tokens: int
    ended_per_s: float
    computed_tokens_per_s: float
    drawn_tokens_per_s: float


class AsyncTextStream:
    """An async iterator of `Chunk` (index, text, token ids, logprobs; the last one of each of the
    n sequences has its `Completion` with finish, usage, seed and report with the timings).

    A reader that is slower than the engine gets larger chunks. With n = 1 a fault of the engine
    raises EngineError from `__anext__`; with more it is the finish reason ERROR of the sequences
    that it hit. When the engine's process is lost, EngineUnavailable is raised, whatever n is.
    Closing, dropping or leaving it before the end aborts the request: its blocks are free before
    the next step.
    """

    @property
    def request_id(self) -> str:
        """The service's own, never a caller's."""
        raise NotImplementedError

    @property
    def prompt(self) -> Prompt:
        raise NotImplementedError

    @property
    def usage(self) -> StreamUsage:
        """So far; after the last chunk, all of it."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> Chunk:
        raise NotImplementedError

    async def completions(self) -> list[Completion]:
        """Read to the end; one per sequence, in the order of their index."""
        raise NotImplementedError

    def close(self) -> None:
        """Abort what is left; no-op after the end, may be called again."""
        raise NotImplementedError

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Service:
    """One model and its engine process. Made by `start`, ended by `close`."""

    @classmethod
    async def start(cls, options: ServiceOptions) -> Service:
        """Start the engine and read the tokenizer meanwhile; returns when text can be tokenised,
        usually before the engine is ready.

        Raises ModelNotFound, CheckpointError, UnsupportedModel, InvalidRequest.
        """
        raise NotImplementedError

    async def wait_ready(self) -> None:
        """Until the first engine takes requests (warm-up included). Raises what its load raised:
        CheckpointError, UnsupportedModel, CapacityExceeded, InvalidRequest, EngineError."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the engine; open streams raise EngineUnavailable. May be called again."""
        raise NotImplementedError

    async def sleep(self) -> None:
        """End the engine, so that its memory is free, and keep the tokenizer."""
        raise NotImplementedError

    async def wake(self) -> None:
        """Start an engine again, if there is none (asleep or failed); see `wait_ready`."""
        raise NotImplementedError

    @property
    def state(self) -> ServiceState:
        raise NotImplementedError

    @property
    def model(self) -> ModelFacts:
        raise NotImplementedError

    @property
    def load(self) -> Load:
        raise NotImplementedError

    def clock(self) -> float:
        """Seconds; those of `Prompt.called_s` and of the engine's times."""
        raise NotImplementedError

    def listen(self, listener: Callable[[StepFacts], None]) -> Callable[[], None]:
        """From now on `listener` gets the facts of each step, on the event loop, before the step's
        chunks are read. It must be quick and must not raise. The result ends it."""
        raise NotImplementedError

    def listen_state(self, listener: Callable[[ServiceState], None]) -> Callable[[], None]:
        """As `listen`, at each change of the status."""
        raise NotImplementedError

    async def tokenize(self, text: str, *, add_bos: bool | None = None) -> Prompt:
        """A text prompt. `add_bos` None is the model's own rule. Long texts do not hold the loop.

        Raises InvalidRequest, ContextLengthExceeded (before the work, where that is certain).
        """
        raise NotImplementedError

    def prompt_of(self, token_ids: Sequence[int]) -> Prompt:
        """A prompt of ids as they are; their range is checked by `submit`."""
        raise NotImplementedError

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
        are chat_template_kwargs. Raises InvalidRequest, TemplateError, CapacityExceeded."""
        raise NotImplementedError

    async def detokenize(self, token_ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of ids. Raises InvalidRequest."""
        raise NotImplementedError

    def token_text(self, token_id: int) -> str:
        """What a token's bytes decode to on their own (for return_token_strs)."""
        raise NotImplementedError

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

        Raises InvalidRequest or ContextLengthExceeded (the field is named), CapacityExceeded
        (`max_requests`, or it can never fit the cache), EngineUnavailable (no engine now).
        """
        raise NotImplementedError

    def abort(self, request_id: str) -> bool:
        """End a request, from anywhere; its stream gives the finish CANCELLED. False: unknown."""
        raise NotImplementedError
