"""The commands that turn text into more text: run, chat, tokenize.

Owns: how text gets in and out of a terminal or a pipe, and what Ctrl-C means there.
May not know: how anything is generated.
Read next: `generation/llm.py`, which does the work; `options.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import (
    INTERRUPTED,
    print_json,
    print_table,
    progress,
    reported,
    say,
)
from firsthand.cli.report import op_as_dict, print_report, print_shapes
from firsthand.errors import InvalidRequest

MAX_PROMPT_BYTES = 64 * 2**20

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="Without one, or with -, standard input is read."),
]


def run(
    model: options.Model,
    prompt: Prompt = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    min_tokens: options.MinTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_end: options.IgnoreEnd = False,
    repetition_guard: options.RepetitionGuard = False,
    seed: options.Seed = None,
    logprobs: options.Logprobs = None,
    executor: options.Executor = "native",
    device: options.Device = "cpu",
    quantization: options.Quantization = "auto",
    threads: options.Threads = None,
    max_context: options.MaxContext = None,
    kv_dtype: options.KvDtype = "float16",
    disabled_rules: options.DisableRule = None,
    attention: options.Attention = None,
    as_json: options.AsJson = False,
    report: options.Report = False,
) -> None:
    """Continue a text, or answer a message with --chat."""
    given = dict(locals())
    with reported(as_json):
        if system is not None and not chat:
            raise InvalidRequest("system", "is a part of a conversation; add --chat")
        text = read_text(prompt, "prompt")
        wanted = options.sampling(given)
        with open_llm(model, options.loading(given)) as llm:
            messages = conversation(system, text)
            stream = llm.stream_chat(messages, **wanted) if chat else llm.stream(text, **wanted)
            done = write_out(stream, quiet=as_json)
            ids = llm.tokenize_chat(messages) if chat else llm.tokenize(text)
            step = llm.trace(ids) if report else ()
        if as_json:
            traced = {"step": [op_as_dict(op) for op in step]} if report else {}
            print_json({"model": model, **done.to_dict(), **traced})
        if report:
            print_report(done.report)
            print_shapes(step)
        if done.finish_reason == "cancelled":
            raise typer.Exit(INTERRUPTED)


def chat(
    model: options.Model,
    system: options.System = None,
    max_tokens: options.MaxTokens = 1024,
    min_tokens: options.MinTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    stop_token_ids: options.StopTokenIds = None,
    ignore_end: options.IgnoreEnd = False,
    repetition_guard: options.RepetitionGuard = True,
    seed: options.Seed = None,
    executor: options.Executor = "native",
    device: options.Device = "cpu",
    quantization: options.Quantization = "auto",
    threads: options.Threads = None,
    max_context: options.MaxContext = None,
    kv_dtype: options.KvDtype = "float16",
    disabled_rules: options.DisableRule = None,
    attention: options.Attention = None,
    report: options.Report = False,
) -> None:
    """Talk with a model. Ctrl-C ends an answer; /reset forgets, /bye leaves."""
    given = dict(locals()) | {"logprobs": None}
    with reported():
        wanted = options.sampling(given)
        with open_llm(model, options.loading(given)) as llm:
            messages = conversation(system)
            for text in lines():
                if text == "/reset":
                    messages = conversation(system)
                    continue
                messages = answer(llm, [*messages, user(text)], wanted, report)


def answer(
    llm: Any, messages: list[dict[str, str]], wanted: dict[str, Any], report: bool
) -> list[dict[str, str]]:
    """Write the answer out; the conversation with it, or without the question if it was refused."""
    try:
        done = write_out(llm.stream_chat(messages, **wanted))
    except InvalidRequest as error:
        say(f"error: {error}")
        return messages[:-1]
    if report:
        print_report(done.report)
    return [*messages, {"role": "assistant", "content": done.text}]


def tokenize(
    model: options.Model,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="Without one, or with -, standard input is read."),
    ] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Read markers such as <|im_end|> as tokens.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the tokens of a text."""
    with reported(as_json):
        from firsthand.config import read_environment
        from firsthand.generation.loading import read_tokenizer
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


def open_llm(model: str, loading: dict[str, Any]) -> Any:
    """The model, ready for one sequence; progress goes to standard error while it is loaded."""
    from firsthand.generation import LLM

    report = progress()
    return LLM(
        model,
        max_sequences=1,
        progress=lambda done, total: report("loading", done, total),
        **loading,
    )


def write_out(stream: Any, quiet: bool = False) -> Any:
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


def conversation(system: str | None, *texts: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [user(text) for text in texts]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def lines() -> Iterator[str]:
    """What a person types, line by line, until /bye or the end of the input.

    Ctrl-C at the prompt drops the line. Without a terminal no prompt is shown.
    """
    live = sys.stdin.isatty()
    if live:
        say("Ctrl-C ends an answer, /reset forgets the conversation, /bye leaves.")
    while True:
        try:
            text = input("> " if live else "").strip()
        except KeyboardInterrupt:
            print(flush=True)
            continue
        except EOFError:
            return
        if text == "/bye":
            return
        if text:
            yield text


def read_text(given: str | None, field: str) -> str:
    """The argument, or standard input as UTF-8 without the newline at its end."""
    if given is not None and given != "-":
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
