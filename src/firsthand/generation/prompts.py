"""From what a caller sends to token ids, without holding the event loop.

Owns: which work is done in threads, and how a message that is to be continued is cut.
May not know: engines, requests, HTTP.
Read next: `text/tokenizer.py`, `text/templates.py`.

A short text is tokenised at once, for a thread costs more than that; a long one in one of a few
threads, where the library lets go of the interpreter. Templates are rendered in a process of
their own, for which other threads wait, so that a slow template holds up no plain text.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from firsthand.config import read_environment
from firsthand.engine.grammar_process import GrammarProcess
from firsthand.errors import InvalidRequest, TemplateError
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.reading import read_spec, read_tokenizer
from firsthand.generation.service_values import Prompt
from firsthand.request import Grammar
from firsthand.scheduling.limits import check_token_ids
from firsthand.text.detokenize import Detokenizer
from firsthand.text.template_process import TemplateProcess
from firsthand.text.templates import ChatTemplate, check_messages
from firsthand.text.tokenizer import Infill, RenderedPrompt, Tokenizer
from firsthand.values import dataclass
from firsthand.weights.catalogue import Source as Origin
from firsthand.weights.catalogue import resolve
from firsthand.weights.open import open_checkpoint
from firsthand.weights.verifying import sums_of, verified

SHORT_CHARS = 1024  # tokenised in less than a millisecond
SHORT_IDS = 1024
NUM_THREADS = 2
SMALL_BYTES = 32 << 20  # larger files are compared with the manifest by the engine alone
NUM_RENDERS = 8  # that wait for the two processes of the renderer at once

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What the service itself reads of a model. `sha256` is that of its manifest or, of a known
    model without one, the pinned one of its file."""

    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    created_s: int
    file: str
    sha256: str | None
    width: int


def read_source(model: str | Path, options: LoadOptions) -> Source:
    """Raises ModelNotFound, CheckpointError, UnsupportedModel, InvalidRequest."""
    environment = read_environment()
    resolved, keys = resolve(str(model), environment), environment.trusted_keys
    pinned = resolved.revision if resolved.source is Origin.KNOWN else None
    with (
        verified(resolved.path, sums_of(environment), SMALL_BYTES, trusted=keys) as manifest,
        closing(open_checkpoint(resolved.path)) as checkpoint,
    ):
        spec = read_spec(checkpoint, options.max_context, options.family)
        tokenizer = read_tokenizer(checkpoint)
        tokenizer.check_width(spec.vocab_size)
        return Source(
            tokenizer=tokenizer,
            vocab_size=spec.vocab_size,
            context_length=spec.context_length,
            created_s=int(resolved.path.stat().st_mtime),
            file=resolved.path.name,
            sha256=manifest or pinned,
            width=spec.width,
        )


class Prompts:
    """One model's tokenizer and template, for one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, chat_template: str | None, clock: Callable[[], float]
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._templates = TemplateProcess()
        self._template = ChatTemplate(tokenizer, self._templates, chat_template)
        self._threads = ThreadPoolExecutor(NUM_THREADS, "firsthand-text")
        self._renders = ThreadPoolExecutor(NUM_RENDERS, "firsthand-render")
        self._compilers = ThreadPoolExecutor(1, "firsthand-grammar")
        self._grammars = GrammarProcess()

    @property
    def template_source(self) -> str | None:
        return self._template.source

    async def check_template(self) -> None:
        """Raises InvalidRequest for `chat_template`."""
        await _in(self._renders, self._template.check)

    def reap(self) -> None:
        """Helper processes that ended by themselves leave nothing behind."""
        self._templates.reap()
        self._grammars.reap()

    def close(self) -> None:
        """Ends the threads; what still waits for one raises."""
        self._templates.close()
        self._grammars.close()
        for threads in (self._threads, self._renders, self._compilers):
            threads.shutdown(wait=True, cancel_futures=True)

    async def tokenize(
        self, text: str | Infill, limit: int, *, add_bos: bool | None = None
    ) -> Prompt:
        """Raises InvalidRequest; ContextLengthExceeded when it can only have `limit` ids or more,
        before the work."""
        called_s = self._clock()
        whole = text.before + text.after if isinstance(text, Infill) else text
        if not isinstance(whole, str):
            raise InvalidRequest("prompt", f"must be a text, not {type(whole).__name__}")

        def work() -> list[int]:
            self._tokenizer.check_length(whole, limit)
            if isinstance(text, Infill):
                return self._tokenizer.encode_infill(text, add_bos=add_bos)
            return self._tokenizer.encode(text, add_bos=add_bos)

        token_ids = work() if len(whole) <= SHORT_CHARS else await _in(self._threads, work)
        told = text if isinstance(text, str) else None
        return Prompt(tuple(token_ids), True, called_s, self._clock(), told)

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> Prompt:
        """Raises InvalidRequest, TemplateError, CapacityExceeded."""
        called_s = self._clock()
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message", "excludes add_generation_prompt, which begins a new one"
            )

        def work() -> tuple[str, list[int]]:
            mark, given = "", messages
            if continue_final_message:
                mark = secrets.token_hex(16)  # nobody's text has it
                given = _marked(messages, mark)
            rendered = self._template.render(
                given,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                variables=variables,
            )
            if mark:
                rendered = _cut(rendered, mark)
            return rendered.text, self._tokenizer.encode_rendered(rendered)

        text, token_ids = await _in(self._renders, work)
        return Prompt(tuple(token_ids), continue_final_message, called_s, self._clock(), text)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special: bool) -> str:
        """Raises InvalidRequest for an id that the vocabulary does not have."""

        def work() -> str:
            check_token_ids("tokens", token_ids, self._tokenizer.vocab_size, placed=True)
            return self._tokenizer.decode(token_ids, skip_special=skip_special)

        return work() if len(token_ids) <= SHORT_IDS else await _in(self._threads, work)

    async def check_grammar(self, grammar: Grammar) -> None:
        """Raises InvalidRequest, CapacityExceeded."""
        await _in(self._compilers, lambda: self._grammars.check(grammar))

    def num_tokens_of(self, token_ids: Sequence[int], num_chars: int) -> int:
        """How many of the first tokens the first `num_chars` characters of their text take."""
        detokenizer = Detokenizer(self._tokenizer, skip_special=False)
        num_tokens, length = 0, 0
        while length < num_chars and num_tokens < len(token_ids):
            length += len(detokenizer.add(token_ids[num_tokens]))
            num_tokens += 1
        return num_tokens

    def has_control(self, texts: Sequence[str]) -> bool:
        special = self._tokenizer.special_ids
        return any(
            special.intersection(self._tokenizer.encode(text, special=True, add_bos=False))
            for text in texts
        )


async def _in(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _marked(messages: Sequence[Mapping[str, Any]], mark: str) -> list[dict[str, Any]]:
    checked = check_messages(messages)
    content = checked[-1].get("content")
    if not isinstance(content, str):
        raise InvalidRequest("continue_final_message", "the last message has no text to go on from")
    return [*checked[:-1], {**checked[-1], "content": content + mark}]


def _cut(rendered: RenderedPrompt, mark: str) -> RenderedPrompt:
    """What comes before the mark. A template that does not keep a message's end cannot be used."""
    if rendered.guarded.count(mark) != 1:
        raise TemplateError(
            "continue_final_message", "this chat template does not show the last message once"
        )
    return RenderedPrompt(rendered.guarded[: rendered.guarded.index(mark)], rendered.guard)
