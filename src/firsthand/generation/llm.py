"""The façade: a model that answers.

Owns: the public methods, prompts (text, ids, messages), request ids, the life of the engine.
May not know: HTTP, terminals, how anything below works.
Read next: `options.py` (the keyword arguments), `stream.py` (events become text), `loading.py`.

    with LLM("smollm2-135m") as llm:
        print(llm.generate("The capital of France is", max_tokens=8, temperature=0).text)
        for chunk in llm.stream_chat([{"role": "user", "content": "Hello!"}]):
            print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeGuard, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import check_choice, check_integer, shown
from firsthand.compute.executor import Held, OpTime
from firsthand.engine.facts import StepFacts
from firsthand.engine.grammar_process import GrammarProcess
from firsthand.engine.worker import Worker
from firsthand.errors import InvalidRequest
from firsthand.generation.assembly import assemble, max_requests
from firsthand.generation.choice import Job
from firsthand.generation.completion import Completion
from firsthand.generation.embedding import Company, Shape
from firsthand.generation.listeners import Listeners
from firsthand.generation.load_options import LoadKeywords, LoadOptions
from firsthand.generation.loading import Claim, LoadedModel, Progress, load_model
from firsthand.generation.options import (
    Checked,
    Options,
    check_names,
    read_options,
    read_pooling,
    request_of,
)
from firsthand.generation.report import (
    Memory,
    Report,
    StepLedger,
    StepTimes,
    Timeline,
    build_report,
)
from firsthand.generation.stream import TextStream
from firsthand.kvcache.regions import RegionPool
from firsthand.memory.arena import ArenaFacts
from firsthand.processes import peak_resident_bytes
from firsthand.request import FinishReason, Request
from firsthand.scheduling.waiting import Queue
from firsthand.text.template_process import TemplateProcess
from firsthand.text.templates import ChatTemplate
from firsthand.text.tokenizer import Infill

Messages = Sequence[Mapping[str, Any]]
One = Literal[1] | None  # of `n`: one completion, which is not in a list


class LLM:
    """One model, one engine on a thread of its own. Every method may be called from any thread.

    `model` is a name that `firsthand pull` knows, a path, a hub id, or a `LoadedModel`. `options`
    are the fields of `LoadOptions`. `chat_template` replaces the model's own, `queue` the one in
    which requests wait. A prompt is text or token ids. Close it, or use it as a context manager; a
    forgotten one is closed when it is dropped.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        chat_template: str | None = None,
        progress: Progress | None = None,
        queue: Queue | None = None,
        **options: Unpack[LoadKeywords],
    ) -> None:
        check_names(options, LoadOptions.__slots__)
        if chat_template is not None and not isinstance(chat_template, str):
            raise InvalidRequest("chat_template", f"must be text, not {shown(chat_template)}")
        if progress is not None and not callable(progress):
            raise InvalidRequest("progress", f"must be callable, not {shown(progress)}")
        if not isinstance(model, str | Path | LoadedModel):
            raise InvalidRequest("model", f"must be a name or a path, not {shown(model)}")
        if isinstance(model, LoadedModel):
            if options:
                raise InvalidRequest(next(iter(options)), "the model is loaded already")
            loaded = model
        else:
            loaded = load_model(model, LoadOptions(**options), progress)
        self._clock = time.perf_counter
        self._loaded = loaded
        self._ledger = StepLedger(capacity=2 * max_requests(loaded))
        self._listeners: Listeners[StepFacts] = Listeners()
        self._listeners.add(self._ledger.record)
        assembly = assemble(loaded, self._clock, self._listeners.tell, queue=queue)
        self._engine, self._runner = assembly.engine, assembly.runner
        self._kv_memory = assembly.scheduler.memory
        self._held: Held | None = None  # what no request changes, once one has run
        self._grammars, self._compiler = assembly.grammars, GrammarProcess()
        self._worker = Worker(self._engine, self._clock, max_requests(loaded))
        self._numbers = count()
        self._templates = TemplateProcess()
        self._template = ChatTemplate(loaded.tokenizer, self._templates, chat_template)
        self._claim = loaded.claim()
        # For an owner who forgets; from here on a failure or an interrupt leaves nothing behind.
        self._forgotten = weakref.finalize(
            self, _close_all, self._worker, self._templates, self._compiler, self._claim
        )
        self._worker.start()

    @property
    def loaded(self) -> LoadedModel:
        """The parts: spec, tokenizer, executor, store, and what the load did."""
        return self._loaded

    def close(self) -> None:
        """Cancel what runs and stop the engine. May be called again, also after an interrupt."""
        _close_all(self._worker, self._templates, self._compiler, self._claim)
        self._forgotten.detach()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tokenize(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """The ids of a text prompt. `add_bos` None is the model's own rule."""
        return self._loaded.tokenizer.encode(text, add_bos=add_bos)

    def tokenize_infill(self, before: str, after: str, *, add_bos: bool | None = None) -> list[int]:
        """The ids of a prompt whose answer belongs between two texts; only for a model that has
        tokens for it. Raises InvalidRequest."""
        return self._loaded.tokenizer.encode_infill(Infill(before, after), add_bos=add_bos)

    def tokenize_chat(self, messages: Messages, *, add_generation_prompt: bool = True) -> list[int]:
        """The ids of a conversation, rendered by the chat template."""
        rendered = self._template.render(messages, add_generation_prompt=add_generation_prompt)
        return self._loaded.tokenizer.encode_rendered(rendered)

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str | Sequence[int], *, n: One = None, **options: Unpack[Options]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, n: int, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: list[str] | list[list[int]], *, n: One = None, **options: Unpack[Options]
    ) -> list[Completion]: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], *, n: int, **options: Unpack[Options]
    ) -> list[list[Completion]]: ...

    def generate(
        self,
        prompt: str | Sequence[int] | list[str] | list[list[int]],
        *,
        n: int | None = None,
        **options: Unpack[Options],
    ) -> Completion | list[Completion] | list[list[Completion]]:
        """Continue a prompt; or each prompt of a list, giving what it would give alone.

        With n > 1, that many continuations of each prompt, as a list: number i is the one that the
        seed + i gives alone. Ctrl-C ends what runs with finish reason CANCELLED. A fault of the
        engine raises EngineError; in a list it is the finish reason ERROR of those that it hit.
        """
        called_s = self._clock()
        checked = self._read(options, n)
        if not _is_list_of_prompts(prompt):
            return _natural(self._submit(self._job(self._ids(prompt), checked, called_s)), checked)
        jobs = []
        for one in prompt:
            called_s = self._clock()
            jobs.append(self._job(self._ids(one), checked, called_s))
            self._engine.check(jobs[-1].request)  # all are right before the first one runs
        answers = list(self._run_all(jobs))
        return answers if checked.n > 1 else [answer[0] for answer in answers]

    def stream(
        self, prompt: str | Sequence[int], *, n: int | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """As `generate`, piece by piece; with n > 1 the pieces of all come as they are there, and
        `index` tells which. Closing the stream aborts the request."""
        called_s = self._clock()
        checked = self._read(options, n)
        return self._submit(self._job(self._ids(prompt), checked, called_s))

    @overload
    def chat(  # type: ignore[overload-overlap]
        self, messages: Messages, *, n: One = None, **options: Unpack[Options]
    ) -> Completion: ...

    @overload
    def chat(
        self, messages: Messages, *, n: int, **options: Unpack[Options]
    ) -> list[Completion]: ...

    def chat(
        self, messages: Messages, *, n: int | None = None, **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """Answer a conversation: a list of {"role": …, "content": …}, in the model's template."""
        checked = self._read(options, n)
        return _natural(self.stream_chat(messages, n=n, **options), checked)

    def stream_chat(
        self, messages: Messages, *, n: int | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """As `chat`, piece by piece."""
        called_s = self._clock()
        checked = self._read(options, n)
        token_ids = tuple(self.tokenize_chat(messages))
        return self._submit(self._job(token_ids, checked, called_s, continues=False))

    def embed(
        self,
        texts: Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: str = "last",
        normalize: bool = True,
        dimensions: int | None = None,
        **company: Unpack[Company],
    ) -> list[NDArray[np.float32]]:
        """A vector (M,) for each text, the same as alone; similar lengths run together."""
        shape = Shape(self._loaded.spec.width, pooling, normalize, dimensions)
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise InvalidRequest("texts", f"must be a list of texts, not {shown(texts)}")
        checked = read_pooling(pooling, company)
        jobs = [self._job(self._ids(text), checked, self._clock()) for text in texts]
        for job in jobs:
            self._engine.check(job.request)
        ordered = sorted(jobs, key=lambda job: len(job.request.prompt_token_ids))
        found = zip(ordered, self._run_all(ordered), strict=True)
        vectors = {id(job): shape.vector(one) for job, (one,) in found}
        return [vectors[id(job)] for job in jobs]

    def trace(
        self, prompt: str | Sequence[int], *, step: Literal["prompt", "token"] = "prompt"
    ) -> tuple[OpTime, ...]:
        """One step, operator by operator: shapes, times, bytes.

        `prompt`: the step that computes the prompt (its first `max_step_tokens` tokens). `token`:
        that of the prompt's last token, after all the others. Runs between two steps of the
        engine, in blocks of the store that no sequence has.
        """
        check_choice("step", step, ("prompt", "token"))
        job = self._job(self._ids(prompt), self._read({}), self._clock())
        self._engine.check(job.request)
        token_ids = job.request.prompt_token_ids

        def run() -> tuple[OpTime, ...]:
            block_ids, budget = self._loaded.trace_block_ids, self._loaded.limits.max_step_tokens
            return tuple(
                self._runner.trace(token_ids, block_ids, budget, last_only=step == "token")
            )

        return self._worker.call(run)

    @contextmanager
    def listening(self, listener: Callable[[StepFacts], None]) -> Iterator[None]:
        """Meanwhile, `listener` gets the facts of each step, on the engine's thread: it must be
        quick. One that raises is told no more."""
        end = self._listeners.add(listener)
        try:
            yield
        finally:
            end()

    def memory(self, num_tokens: int = 0) -> Memory:
        """What holds the memory now; `num_tokens` are those of one request in the KV store."""
        check_integer("num_tokens", num_tokens, 0)
        return self._memory(self._loaded.executor.memory(), num_tokens)

    def _memory(self, held: Held, num_tokens: int) -> Memory:
        return Memory(
            weights_bytes=held.weights_bytes,
            scratch_bytes=held.scratch_bytes,
            kv_reserved_bytes=self._loaded.budget.kv_bytes,
            kv_used_bytes=self._loaded.store.resident_bytes(num_tokens),
            peak_rss_bytes=peak_resident_bytes(),
        )

    def arena(self) -> ArenaFacts | None:
        """The contiguous cache now: what is used, what is free in how large pieces, what was moved.
        None for a paged one."""
        return self._kv_memory.facts() if isinstance(self._kv_memory, RegionPool) else None

    def _read(self, options: Mapping[str, Any], n: int | None = None) -> Checked:
        checked = read_options({**options, "n": n}, self._loaded.tokenizer.end_ids)
        grammar = checked.grammar
        if grammar is not None and self._grammars.find(grammar) is None:
            self._compiler.check(grammar)
            self._grammars.compile(grammar)
        return checked

    def _ids(self, prompt: object) -> tuple[int, ...]:
        if isinstance(prompt, str):
            self._loaded.tokenizer.check_length(prompt, self._loaded.limits.context_length)
            return tuple(self.tokenize(prompt))
        if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
            return tuple(prompt)  # that they are ids is checked with their range, by the engine
        raise InvalidRequest("prompt", f"must be text or token ids, not {type(prompt).__name__}")

    def _job(
        self,
        token_ids: tuple[int, ...],
        checked: Checked,
        called_s: float,
        *,
        continues: bool = True,
    ) -> Job:
        request = request_of(checked, next(self._numbers), token_ids, called_s)
        return Job(request, checked.stop_strings, continues, called_s, self._clock())

    def _submit(self, job: Job) -> TextStream:
        try:
            events = self._worker.submit(job.request)
            tokens = self._loaded.tokenizer
            return TextStream(events, job, tokens, self._clock, self._ledger, self._report)
        except BaseException:  # also an interrupt, which may come after it was submitted
            self._worker.abort(job.request.request_id)
            raise

    def _run_all(self, jobs: Sequence[Job]) -> Iterator[list[Completion]]:
        """Each job's completions, in order. A few more than run at once are submitted ahead, so
        that a place is taken again in the step after it is free, and the inbox stays short."""
        ahead = 2 * self._loaded.limits.max_sequences
        waiting = deque(jobs)
        submitted: deque[TextStream] = deque()
        interrupted = False
        try:
            while waiting or submitted:
                while waiting and len(submitted) < ahead:
                    submitted.append(self._submit(waiting.popleft()))
                stream = submitted.popleft()
                if interrupted:
                    stream.cancel()
                completions = stream.outcome()
                reasons = [completion.finish.reason for completion in completions]
                interrupted = interrupted or FinishReason.CANCELLED in reasons
                yield completions
        finally:
            for stream in submitted:
                stream.close()

    def _report(self, request: Request, timeline: Timeline, steps: StepTimes) -> Report:
        num_prompt_tokens = len(request.prompt_token_ids)
        num_stored = num_prompt_tokens + max(0, len(timeline.token_at_s) - 1)
        if self._held is None:  # each weight is asked, which takes longer than a short answer may
            self._held = self._loaded.executor.memory()
        memory = self._memory(self._held, num_stored)
        return build_report(self._loaded.times, memory, num_prompt_tokens, timeline, steps)


def _close_all(
    worker: Worker, templates: TemplateProcess, compiler: GrammarProcess, claim: Claim
) -> None:
    worker.close()
    templates.close()
    compiler.close()
    claim.release()


def _is_list_of_prompts(
    prompt: str | Sequence[int] | list[str] | list[list[int]],
) -> TypeGuard[list[str] | list[list[int]]]:
    """A list is one prompt if it begins with a token id, several if it begins with a prompt."""
    return isinstance(prompt, list | tuple) and bool(prompt) and not isinstance(prompt[0], int)


def _natural(stream: TextStream, checked: Checked) -> Completion | list[Completion]:
    """Read to the end: one completion, or a list where several were asked for."""
    return stream.completions() if checked.n > 1 else stream.completion()
