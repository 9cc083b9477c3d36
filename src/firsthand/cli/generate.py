"""The commands that turn text into more text: run, chat, tokenize.

Owns: how text gets in and out of a terminal or a pipe, and what Ctrl-C means there.
May not know: how anything is generated.
Read next: `generation/llm.py`, which does the work; `options.py`.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any, Protocol

import typer

import firsthand
from firsthand.checks import shown
from firsthand.cli import options, remote
from firsthand.cli.conversation import check_utf8, conversation, lines, user
from firsthand.cli.output import (
    INTERRUPTED,
    exit_code,
    print_json,
    print_table,
    progress,
    reported,
    say,
)
from firsthand.errors import InvalidRequest
from firsthand.request import FinishReason

MAX_AT_ONCE = 16  # of several answers; the others wait
MAX_PROMPT_BYTES = 64 * 2**20
CHAT_SAMPLING = options.Sampling(max_tokens=1024, repetition_guard=True)

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help=options.FROM_STANDARD_INPUT),
]


def run(
    model: options.Model,
    prompt: Prompt = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    system: options.System = None,
    suffix: Annotated[
        str | None,
        typer.Option(
            help="What follows the gap, where the model can fill in a text; default: no gap."
        ),
    ] = None,
    sampling: options.Sampling = options.SAMPLING,
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="With --json: log-probabilities, with this many alternatives; default: off."
        ),
    ] = None,
    n: Annotated[
        int, typer.Option("-n", help="Answers; several are printed when all are there.")
    ] = 1,
    loading: options.Loading = options.LOADING,
    as_json: options.AsJson = False,
    report: options.Report = False,
) -> None:
    """Continue a text, or answer a message with --chat."""
    with reported(as_json):
        if system is not None and not chat:
            raise InvalidRequest("system", "is a part of a conversation; add --chat")
        if suffix is not None and chat:
            raise InvalidRequest("suffix", "goes with a text, not with --chat")
        if logprobs is not None and not as_json:
            raise InvalidRequest("logprobs", "are shown in JSON only; add --json")
        wanted = request_options(sampling, loading, logprobs=logprobs, n=n)
        messages = conversation(system)
        text = read_text(prompt, "prompt")
        messages.append(user(text))
        with open_llm(model, loading, min(n, MAX_AT_ONCE), with_adapters=True) as llm:
            asked = text if suffix is None else llm.tokenize_infill(text, suffix)
            stream = llm.stream_chat(messages, **wanted) if chat else llm.stream(asked, **wanted)
            answers = write_all(stream, n, llm.loaded.spec.context_length, quiet=as_json)
            if report:
                from firsthand.cli.report import op_as_dict, print_report, print_shapes

                print_report(answers[0], llm.loaded)
                compiled = llm.loaded.compiled_steps
                step = llm.trace(llm.tokenize_chat(messages) if chat else asked)
                print_shapes(step)
        if as_json:
            traced: dict[str, Any] = {}
            if report:
                traced = {"step": [op_as_dict(op) for op in step]}
                traced["compile"] = None if compiled is None else compiled.to_dict()
            budget = {"budget": llm.loaded.budget.to_dict()}
            given = [done.to_dict() for done in answers]
            whole = given[0] if n == 1 else {"answers": given}
            print_json({"model": model, **whole, **budget, **traced})
        if any(done.finish.reason is FinishReason.CANCELLED for done in answers):
            raise typer.Exit(INTERRUPTED)


def chat(
    model: Annotated[
        str | None, typer.Argument(help="As of `run`; without one, --url.", metavar="[MODEL]")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="Talk with a server of OpenAI's API; default: none."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--model", help="Of the server's models; default: its first.")
    ] = None,
    api_key: remote.ApiKey = None,
    system: options.System = None,
    sampling: options.Sampling = CHAT_SAMPLING,
    loading: options.Loading = options.LOADING,
    report: options.Report = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what the server's scheduler does meanwhile.")
    ] = False,
) -> None:
    """Talk with a model. Ctrl-C ends an answer; /reset forgets, /bye leaves."""
    with reported():
        wanted = request_options(sampling, loading)
        if url is not None:
            remote.refuse_loading(loading, model)
            fields = remote.sampling_fields(sampling, CHAT_SAMPLING)
            remote.chat_with(url, api_key, name, system, fields, report=report, watched=watch)
            return
        if model is None:
            raise InvalidRequest("model", "is missing: firsthand chat MODEL, or --url URL")
        if name is not None:
            raise InvalidRequest("--model", "names a model of a server; it goes with --url")
        if watch:
            raise InvalidRequest("watch", "shows a server's scheduler; it goes with --url")
        messages, code = conversation(system), 0
        with open_llm(model, loading, with_adapters=True) as llm:
            for text in lines():
                if text == "/reset":
                    messages = conversation(system)
                    continue
                asked = [*messages, user(text)]
                try:
                    done = write_out(llm.stream_chat(asked, **wanted))
                except InvalidRequest as error:
                    say(f"error: {error}")
                    code = exit_code(error)
                    continue
                say_why(done, llm.loaded.spec.context_length)
                messages = [*asked, {"role": "assistant", "content": done.text}]
                if report:
                    from firsthand.cli.report import print_report

                    print_report(done, llm.loaded)
        if code:
            raise typer.Exit(code)


def tokenize(
    model: options.Model,
    text: options.Text = None,
    special: Annotated[
        bool, typer.Option("--special", help="Read markers such as <|im_end|> as tokens.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the tokens of a text."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.generation.reading import read_tokenizer
        from firsthand.weights.catalogue import resolve
        from firsthand.weights.open import open_checkpoint

        content = read_text(text, "text")
        with closing(open_checkpoint(resolve(model, read_environment()).path)) as checkpoint:
            tokenizer = read_tokenizer(checkpoint)
        ids = tokenizer.encode(content, special=special)
        pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
        if as_json:
            shown = [
                {"id": token_id, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)}
                for token_id, piece in zip(ids, pieces, strict=True)
            ]
            print_json({"model": model, "num_tokens": len(ids), "tokens": shown})
            return
        rows = [
            (str(token_id), repr(piece)[1:]) for token_id, piece in zip(ids, pieces, strict=True)
        ]
        print_table(("ID", "BYTES"), rows)
        say(f"{len(ids)} tokens")


class Stream(Protocol):
    """What `LLM.stream` gives."""

    def __next__(self) -> firsthand.Chunk: ...
    def cancel(self) -> firsthand.Chunk: ...
    def completions(self) -> list[firsthand.Completion]: ...


def open_llm(
    model: str,
    loading: options.Loading,
    max_sequences: int = 1,
    *,
    with_adapters: bool = False,
) -> firsthand.LLM:
    """The model, ready for so many sequences at once; progress goes to standard error while it is
    loaded."""
    report = progress()
    llm = firsthand.LLM(
        model,
        max_sequences=max_sequences,
        progress=lambda done, total: report("loading", done, total),
        **options.load_keywords(loading, with_adapters=with_adapters),
    )
    budget = llm.loaded.budget
    say_context(loading.max_context, budget.wished_context_length)
    if budget.context_length < budget.wished_context_length:
        say(
            f"note: memory allows a context of {budget.context_length} tokens, not "
            f"{budget.wished_context_length}; see memory_limit"
        )
    return llm


def request_options(
    sampling: options.Sampling, loading: options.Loading, **more: Any
) -> dict[str, Any]:
    """The options as `generation` has them, checked now and not after a load. Where one adapter is
    loaded, it is the one that answers."""
    from firsthand.generation.options import read_options

    for text in sampling.stop or ():
        check_utf8("stop", text)
    bias = options.logit_bias(sampling.logit_bias)
    wanted = asdict(sampling) | {"logit_bias": bias, **more}
    loaded = [*(options.load_keywords(loading, with_adapters=True)["lora"] or ())]
    if sampling.adapter is None and len(loaded) == 1:
        wanted["adapter"] = loaded[0]
    elif sampling.adapter is not None and sampling.adapter not in loaded:
        raise InvalidRequest("adapter", f"{shown(sampling.adapter)} is of no --lora")
    read_options(wanted, frozenset())
    return wanted


def say_context(asked: int | None, context_length: int) -> None:
    """Tell when a model has less context than was asked for."""
    if asked is not None and asked > context_length:
        say(f"note: max_context {asked} is beyond the model's; it is {context_length}")


def say_why(done: firsthand.Completion, context_length: int) -> None:
    """Tell why a text ended, unless its model ended it, or a stop that the caller asked for."""
    reasons = {
        FinishReason.LENGTH: f"max_tokens {done.usage.completion_tokens} reached",
        FinishReason.CONTEXT: f"the context of {context_length} tokens is full",
        FinishReason.REPETITION: "the same tokens again and again",
        FinishReason.CANCELLED: "interrupted",
    }
    if done.finish.reason in reasons:
        say(f"(stopped: {reasons[done.finish.reason]})")


def write_all(
    stream: Stream, n: int, context_length: int, quiet: bool
) -> list[firsthand.Completion]:
    """Print the only answer as it comes; of several, each when all are there."""
    answers = [write_out(stream, quiet)] if n == 1 else stream.completions()
    for done in answers:
        if n > 1 and not quiet:
            say(f"answer {done.index + 1} of {n}, seed {done.seed}")
            print(done.text, end="" if done.text.endswith("\n") else "\n", flush=True)
        if not quiet and done.finish.reason is not FinishReason.CANCELLED:
            say_why(done, context_length)
    return answers


def write_out(stream: Stream, quiet: bool = False) -> firsthand.Completion:
    """Print the text as it comes, to a line's end; the completion.

    Ctrl-C while the stream waits makes its next chunk the last one, with reason `cancelled`.
    """
    done = None
    while done is None:
        chunk = next(stream)
        done = chunk.completion
        try:
            if chunk.text and not quiet:
                print(chunk.text, end="", flush=True)
        except KeyboardInterrupt:
            done = done or stream.cancel().completion
    if not quiet and done.text and not done.text.endswith("\n"):
        print(flush=True)
    return done


def read_text(given: str | None, field: str) -> str:
    """The argument, or standard input as UTF-8 without the newline at its end."""
    if given is not None and given != "-":
        check_utf8(field, given)
        return given
    if given is None and sys.stdin.isatty():
        raise InvalidRequest(field, "is missing: give it as an argument, or through a pipe")
    content = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(content) > MAX_PROMPT_BYTES:
        raise InvalidRequest(field, f"standard input is longer than {MAX_PROMPT_BYTES} bytes")
    try:
        return content.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(field, f"standard input is not UTF-8: {error}") from None
