"""The commands that ask a running server: ps, top, and chat with --url.

Owns: what is asked, what is printed of it, and what Ctrl-C means there.
May not know: HTTP.
Read next: `client.py`; `top.py`, its picture; `generate.py`, where chat is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from firsthand.cli import options
from firsthand.cli.conversation import Piece, conversation, lines, user
from firsthand.cli.output import exit_code, in_bytes, print_json, print_table, reported, say
from firsthand.errors import FirsthandError, InvalidRequest, ModelNotFound

DEFAULT_URL = "http://127.0.0.1:8000"
SHORT_HASH = 12
# Ours → the protocol's; what is not here has the same name.
_NAMES = {"ignore_end": "ignore_eos"}
_NOT_SENT = ("adapter",)

Write = Callable[[str], object]

Url = Annotated[
    str, typer.Option("--url", metavar="URL", help="Of a server in the form of OpenAI's API.")
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="FIRSTHAND_API_KEY", help="Its key; default: none."),
]


class Server(Protocol):
    """A `Client`; its module is loaded when it is used."""

    def models(self) -> list[dict[str, Any]]: ...
    def chat(self, body: Mapping[str, Any]) -> Generator[Piece]: ...


class Picture(Protocol):
    """A `Pane`, likewise."""

    def shown(self) -> AbstractContextManager[Write]: ...


def ps(url: Url = DEFAULT_URL, api_key: ApiKey = None, as_json: options.AsJson = False) -> None:
    """List what a running server has, and which of it is loaded."""
    with reported(as_json):
        from firsthand.cli.client import client_of

        cards = client_of(url, first_key(api_key)).models()
        if as_json:
            print_json({"models": cards})
            return
        heads = ("NAME", "STATUS", "CONTEXT", "PLANNED", "OPEN", "SHA256", "RELEASE")
        print_table(heads, [_row(card) for card in cards])


def top(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    recording: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Play what `record` has kept, in place of a server."),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Play it on the page.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of that page.")] = 8008,
    as_json: options.AsJson = False,
) -> None:
    """Watch what a running server does; Ctrl-C ends it. Into a file or a pipe: once."""
    with reported(as_json):
        if recording is not None:
            _play(recording, port if page else None)
            return
        if page:
            raise InvalidRequest("page", "goes with --recording; a server has a page of its own")
        from firsthand.cli.client import client_of

        client = client_of(url, first_key(api_key))
        if as_json:
            print_json(client.own("/firsthand/engine/state"))
            return
        from firsthand.cli.top import watch

        watch(client)


def _play(recording: Path, port: int | None) -> None:
    if port is None:
        from firsthand.cli.top import play

        play(recording)
        return
    from firsthand.server.recorded import HOST, show_recording

    say(f"http://{HOST}:{port}/#/engine plays {recording}; Ctrl-C ends it")
    show_recording(recording, port)


def _row(card: Mapping[str, Any]) -> tuple[str, ...]:
    num_bytes = card.get("firsthand_memory_bytes")
    sha256 = card.get("firsthand_manifest_sha256")
    return (
        str(card["id"]),
        _shown(card.get("firsthand_status")),
        _shown(card.get("max_model_len")),
        in_bytes(num_bytes) if isinstance(num_bytes, int) else "-",
        _shown(card.get("firsthand_requests_open")),
        sha256[:SHORT_HASH] if isinstance(sha256, str) else "-",
        _release(card),
    )


def _release(card: Mapping[str, Any]) -> str:
    """Its number and its hash's beginning; of a canary, its share."""
    sha256, share = card.get("firsthand_release"), card.get("firsthand_canary_share")
    if not isinstance(sha256, str):
        return "-"
    told = f"{_shown(card.get('firsthand_release_number'))} {sha256[:SHORT_HASH]}"
    return f"{told}, {share:.3g} of the requests" if isinstance(share, float) else told


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def first_key(given: str | None) -> str | None:
    """The variable may hold all keys of a server, by commas."""
    return None if given is None else given.split(",")[0].strip() or None


def chat_with(
    url: str,
    api_key: str | None,
    model: str | None,
    system: str | None,
    wanted: Mapping[str, Any],
    *,
    report: bool = False,
    watched: bool = False,
) -> None:
    """Talk, until the input ends. An answer that fails, or is interrupted, ends nothing else; where
    one failed, the command ends with that fault's exit code."""
    from firsthand.cli.client import client_of

    client = client_of(url, first_key(api_key))
    body = {"model": model or only_model(client), **wanted}
    pane = None
    if watched:
        from firsthand.cli.pane import Pane

        pane = Pane(client)
    if report:
        body["timings_per_token"] = True  # what llama.cpp's server calls it too
    messages, code = conversation(system), 0
    for text in lines():
        if text == "/reset":
            messages = conversation(system)
            continue
        asked = [*messages, user(text)]
        answer = write_answer(client, {**body, "messages": asked}, pane)
        if isinstance(answer, str):
            messages = [*asked, {"role": "assistant", "content": answer}]
        else:
            code = exit_code(answer)
    if code:
        raise typer.Exit(code)


def write_answer(
    client: Server, body: Mapping[str, Any], pane: Picture | None = None
) -> str | FirsthandError:
    """Print an answer as it comes; its text, or the fault that it ended by, which was said."""
    parts: list[str] = []
    why, fault, timings = None, None, None
    try:
        with (
            _printed() if pane is None else pane.shown() as write,
            closing(client.chat(body)) as it,
        ):
            for piece in it:
                if piece.reasoning:
                    say(piece.reasoning, end="")
                if piece.text:
                    parts.append(piece.text)
                    write(piece.text)
                timings = piece.timings or timings
                if piece.finish_reason == "length":
                    why = "(stopped: the longest answer, or the context, is reached)"
    except KeyboardInterrupt:
        why = "(stopped: interrupted)"
    except FirsthandError as error:
        why, fault = f"error: {error}", error
    if parts and not parts[-1].endswith("\n"):
        print(flush=True)
    if why is not None:
        say(why)
    if timings is not None:
        say(figures(timings))
    return "".join(parts) if fault is None else fault


def _printed() -> AbstractContextManager[Write]:
    return nullcontext(lambda text: print(text, end="", flush=True))


def figures(timings: Mapping[str, Any]) -> str:
    """What an answer cost, in a line; what the server does not tell is left out."""
    told = (
        ("queue_ms", "queue {:.0f} ms"),
        ("ttft_ms", "first token after {:.0f} ms"),
        ("prompt_n", "{:.0f} tokens read"),
        ("cache_n", "{:.0f} found in the cache"),
        ("predicted_n", "{:.0f} written"),
        ("predicted_per_second", "{:.1f} tokens/s"),
        ("peak_batch", "in a batch of {:.0f}"),
    )
    found = [(form, timings.get(name)) for name, form in told]
    return "(" + " · ".join(form.format(x) for form, x in found if isinstance(x, int | float)) + ")"


def sampling_fields(given: options.Sampling, default: options.Sampling) -> dict[str, Any]:
    """What was asked for, in the protocol's names, and how long an answer may be at most, so that
    one that does not end does not fill the context; the rest is left to the server."""
    asked: dict[str, Any] = {"max_tokens": given.max_tokens}
    for one in fields(given):
        value = getattr(given, one.name)
        if value != getattr(default, one.name) and one.name not in _NOT_SENT:
            asked[_NAMES.get(one.name, one.name)] = value
    if given.logit_bias:
        bias = options.logit_bias(given.logit_bias)
        asked["logit_bias"] = {str(token_id): amount for token_id, amount in bias.items()}
    return asked


def refuse_loading(given: options.Loading, model: str | None) -> None:
    """Raises InvalidRequest for what only whoever loads a model can carry out."""
    if model is not None:
        raise InvalidRequest("model", "is loaded here; of a server's models, take --model NAME")
    default = asdict(options.LOADING)
    for name, value in asdict(given).items():
        if value != default[name]:
            raise InvalidRequest(name, "is the server's own business; it goes with MODEL")


def only_model(client: Server) -> str:
    cards = client.models()
    if not cards:
        raise ModelNotFound(f"{client}: has no model")
    name = str(cards[0]["id"])
    if len(cards) > 1:
        others: Sequence[str] = [str(card["id"]) for card in cards[1:]]
        say(f"talking with {name}; --model takes another: {', '.join(others)}")
    return name
