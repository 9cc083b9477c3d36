"""The command that runs a recorded request again, and compares: replay.

Owns: what has to be the same before a comparison says anything, and how its outcome is shown.
May not know: HTTP, engines.
Read next: `requests.py` (where the record comes from), `../generation/replaying.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from firsthand.cli import options
from firsthand.cli.output import CHECK_FAILED, print_json, print_table, reported, say
from firsthand.cli.remote import DEFAULT_URL, ApiKey, Url
from firsthand.cli.requests import read_record
from firsthand.errors import InvalidRequest


def replay(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="Of the request.")],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="The model that answered it.")
    ],
    lora: Annotated[
        list[str] | None,
        typer.Option("--lora", metavar="NAME=FOLDER", help="The adapter that answered it."),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a request of a server again, here, and compare token by token. The server must run with
    --record-content."""
    with reported(as_json):
        from firsthand.generation import kept_requests, replaying
        from firsthand.generation.loading import load_model
        from firsthand.release.record import model_of

        model = model_of(model)
        contents = _contents(read_record(request_id, url, api_key))
        made = contents[0]["made_by"]
        adapters = options.load_keywords(replace(options.LOADING, lora=lora), with_adapters=True)
        load = kept_requests.load_options(made, adapters["lora"])
        apart, noted = kept_requests.differing(
            made, kept_requests.made_by(model, load, made["context_length"])
        )
        if apart:
            raise InvalidRequest("model", f"is not what answered: {'; '.join(apart)}")
        for note in noted:
            say(f"note: {note}")
        loaded = load_model(model, load)
        rows: list[dict[str, Any]] = []
        for number, content in enumerate(contents):
            recorded = _drawn(content)
            request = kept_requests.request_of_plain(content["request"])
            _check_adapter(
                request.adapter, content, {n: a.sha256 for n, a in loaded.adapters.items()}
            )
            replayed = replaying.replay(loaded, request, recorded)
            difference = replaying.first_difference(recorded, replayed)
            for index, one in enumerate(recorded):
                found = difference if difference and difference.index == index else None
                rows.append(
                    {
                        "prompt": number,
                        "choice": index,
                        "tokens": len(one.token_ids),
                        "logprobs": len(one.logprobs),
                        "difference": None if found is None else asdict(found),
                    }
                )
        equal = not any(row["difference"] for row in rows)
        if as_json:
            print_json({"id": request_id, "equal": equal, "choices": rows, "notes": noted})
        else:
            _print(rows, equal=equal)
        if not equal:
            raise typer.Exit(CHECK_FAILED)


def _contents(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each prompt. Raises InvalidRequest where there is nothing that could be run."""
    parts = [part for part in found["parts"] if part.get("given_up_ms") is None]
    contents = [part.get("content") for part in parts]
    if not contents:
        raise InvalidRequest("ID", "nothing of this request reached an engine")
    if None in contents:
        message = "its tokens were not kept; a server keeps them with --record-content"
        raise InvalidRequest("ID", message)
    if not all(content["made_by"] for content in contents):
        raise InvalidRequest("ID", "what made its answer is not known yet: the model is hashed")
    return contents


def _drawn(content: Mapping[str, Any]) -> list[Any]:
    from firsthand.generation.replaying import Drawn

    pairs = zip(content["outputs"], content["logprobs"], strict=True)
    return [Drawn(tuple(ids), tuple(values)) for ids, values in pairs]


def _check_adapter(name: str, content: Mapping[str, Any], here: Mapping[str, str]) -> None:
    if not name:
        return
    if name not in here:
        raise InvalidRequest(
            "lora", f"the adapter {name!r} answered; give it: --lora {name}=FOLDER"
        )
    if content["adapter"] not in (None, here[name]):
        raise InvalidRequest("lora", f"{name!r} is not the adapter that answered: its hash differs")


def _print(rows: list[dict[str, Any]], *, equal: bool) -> None:
    shown = []
    for row in rows:
        found = row["difference"]
        text = "equal"
        if found is not None:
            text = f"{found['what']} {found['position']}: {found['recorded']}, {found['replayed']}"
        counts = (row["prompt"], row["choice"], row["tokens"], row["logprobs"])
        shown.append((*map(str, counts), text))
    print_table(("PROMPT", "CHOICE", "TOKENS", "LOGPROBS", "RECORDED AND REPLAYED"), shown)
    print("equal, token by token" if equal else "not equal")
